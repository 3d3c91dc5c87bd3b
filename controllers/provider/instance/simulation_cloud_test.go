package instance

import (
	"context"
	"errors"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// simVisibleMax is how long after it was accepted an instance may be invisible, and within which an accepted creation
	// that comes to nothing is gone.
	simVisibleMax = 45 * time.Second
	simStartMax   = time.Minute
	simStopMax    = 40 * time.Second
	simGetMax     = 15 * time.Second
)

var simZones = []string{"a", "b"}

// machine is an instance with its future. Zero times mean never.
type machine struct {
	providers.Ref
	uid  types.UID
	hash string
	// made is what was asked for; doubted tells that something else was asked for at any time since.
	made    simSpec
	doubted bool

	visible, runs, fails, gone time.Time
	broken                     providers.State
	terminating                bool
	// Within its short spell Get says NotFound although it was seen before.
	hiddenFrom, hiddenUntil time.Time
	leaked                  bool
}

func due(t, now time.Time) bool { return !t.IsZero() && !now.Before(t) }

func (m *machine) state(now time.Time) providers.State {
	switch {
	case m.terminating:
		return providers.StateTerminating
	case due(m.fails, now):
		return m.broken
	case due(m.runs, now):
		return providers.StateRunning
	}
	return providers.StatePending
}

// simCloud answers late, loses replies, refuses, and drops in silence what it accepted. Names are unique within a zone.
type simCloud struct {
	*fate
	machines []*machine
	sequence int
	// down is what everything answers during an outage.
	down providers.Reason
	// invalid makes Create refuse the specification.
	invalid bool
	// quotaFirst looks at the quota before the name, as some clouds do; namesConflict tells a foreign holder's name apart.
	quotaFirst, namesConflict bool
	// lying makes Get say NotFound at any time.
	lying bool
	// anyIncarnation makes Delete look at the name only.
	anyIncarnation bool
	// onCreate and onDelete judge what happens.
	onCreate func(*machine)
	onDelete func(m *machine, meant providers.Ref)
}

// settle drops what is gone.
func (c *simCloud) settle() {
	kept := c.machines[:0]
	for _, m := range c.machines {
		if !due(m.gone, c.now) {
			kept = append(kept, m)
		}
	}
	c.machines = kept
}

// holder is what has the name in a zone; in any zone when zone is empty, the Proxy's own first.
func (c *simCloud) holder(name, zone string) *machine {
	c.settle()
	var held *machine
	for _, m := range c.machines {
		if m.Name == name && (zone == "" || m.Zone == zone) && (held == nil || held.uid == foreignUID) {
			held = m
		}
	}
	return held
}

// of are the instances of an owner that exist.
func (c *simCloud) of(uid types.UID) []*machine {
	c.settle()
	var owned []*machine
	for _, m := range c.machines {
		if m.uid == uid {
			owned = append(owned, m)
		}
	}
	return owned
}

func failure(reason providers.Reason, op string) error {
	return providers.NewError(reason, op, "", errors.New("answered so"))
}

// unanswered is what a call gets whose reply is lost; not all clients translate it.
func (c *simCloud) unanswered(op string) error {
	if c.random.IntN(2) == 0 {
		return context.DeadlineExceeded
	}
	return failure(providers.Unavailable, op)
}

// get is the truth at this moment, as far as the cloud shows it.
func (c *simCloud) get(ref providers.Ref) (providers.Instance, error) {
	notFound := failure(providers.NotFound, "get")
	switch {
	case c.down != "":
		return providers.Instance{}, failure(c.down, "get")
	case c.chance(30):
		return providers.Instance{}, c.unanswered("get")
	}
	m := c.holder(ref.Name, ref.Zone)
	switch {
	case m == nil:
		return providers.Instance{}, notFound
	case c.now.Before(m.visible):
		c.count(invisible)
		return providers.Instance{}, notFound
	case due(m.hiddenFrom, c.now) && c.now.Before(m.hiddenUntil):
		c.count(flickers)
		return providers.Instance{}, notFound
	case c.lying && c.chance(60):
		c.count(lies)
		return providers.Instance{}, notFound
	}
	i := providers.Instance{Ref: m.Ref, Owner: providers.Owner{UID: m.uid}, Hash: m.hash, State: m.state(c.now)}
	if i.State == providers.StateRunning {
		i.Addresses = simAddresses
	}
	return i, nil
}

var simAddresses = []string{"10.0.0.1"}

// create has at most one instance of a name in a zone, whatever its state.
func (c *simCloud) create(ref providers.Ref, uid types.UID, hash string, spec simSpec) (providers.Receipt, error) {
	none, held := providers.Receipt{}, c.holder(ref.Name, ref.Zone)
	switch {
	case c.down != "":
		return none, failure(c.down, "create")
	case c.chance(40):
		return none, c.unanswered("create")
	case c.invalid:
		c.count(refusals)
		return none, failure(providers.InvalidSpec, "create")
	case held == nil && c.chance(12), held != nil && c.quotaFirst && c.chance(3):
		// What is there may be what used the quota up.
		c.count(refusals)
		return none, failure(providers.Capacity, "create")
	case held != nil && held.uid != uid && c.namesConflict:
		return none, failure(providers.Conflict, "create")
	case held != nil:
		return none, failure(providers.AlreadyExists, "create")
	}
	c.sequence++
	m := &machine{Ref: ref, uid: uid, hash: hash, made: spec}
	m.ID = strconv.Itoa(c.sequence)
	m.ProviderID = "sim://" + ref.Zone + "/" + ref.Name
	c.foresee(m)
	c.machines = append(c.machines, m)
	c.count(creates)
	c.tell("cloud: %s in %s exists for %s, visible %v", m.ID, m.Zone, uid, m.visible.Sub(c.now))
	c.onCreate(m)
	if c.chance(10) {
		c.count(lostCreates)
		return none, c.unanswered("create")
	}
	return providers.Receipt{Operation: m.ID}, nil
}

// foresee decides what becomes of an instance.
func (c *simCloud) foresee(m *machine) {
	m.visible = c.now
	if !c.calm && !c.chance(3) {
		m.visible = m.visible.Add(c.upTo(simVisibleMax))
	}
	m.runs = m.visible.Add(c.upTo(simStartMax))
	switch {
	case c.chance(7):
		// The creation fails in silence, before or after it was seen.
		m.gone = c.now.Add(c.upTo(simVisibleMax))
		c.count(vanished)
	case c.chance(12):
		m.gone = m.runs.Add(c.upTo(5 * time.Minute))
		c.count(lostInstances)
	case c.chance(12):
		m.fails = m.visible.Add(c.upTo(5 * time.Minute))
		m.broken = providers.StateFailed
		if c.chance(2) {
			m.broken = providers.StateStopped
		}
		c.count(failedInstances)
	case c.chance(25):
		m.runs = time.Time{}
		c.count(neverStarted)
	}
	if c.chance(2) {
		m.hiddenFrom = m.visible.Add(c.upTo(2 * time.Minute))
		m.hiddenUntil = m.hiddenFrom.Add(c.upTo(simTiming.Confirm))
	}
}

// forgive takes back every misfortune that is still to come.
func (c *simCloud) forgive() {
	for _, m := range c.machines {
		if !m.terminating && c.now.Before(m.gone) {
			m.gone = time.Time{}
		}
		if c.now.Before(m.fails) {
			m.fails = time.Time{}
		}
		m.hiddenUntil = time.Time{}
	}
	c.down, c.invalid = "", false
}

// delete starts to delete the incarnation that is meant and nothing else.
func (c *simCloud) delete(ref providers.Ref) error {
	if c.down != "" {
		return failure(c.down, "delete")
	}
	if c.chance(30) {
		return c.unanswered("delete")
	}
	m := c.holder(ref.Name, ref.Zone)
	if m == nil || (m.ID != ref.ID && !c.anyIncarnation) {
		return failure(providers.NotFound, "delete")
	}
	c.onDelete(m, ref)
	switch {
	case c.chance(25):
		c.count(idleDeletes)
	case !m.terminating:
		stop := c.upTo(simStopMax)
		switch c.random.IntN(6) {
		case 0:
			stop = c.upTo(3 * time.Minute)
		case 1, 2:
			stop = 0
		}
		if end := c.now.Add(stop); m.gone.IsZero() || end.Before(m.gone) {
			m.gone = end
		}
		m.terminating = true
		c.tell("cloud: %s in %s terminates", m.ID, m.Zone)
	}
	if c.chance(10) {
		c.count(lostDeletes)
		return c.unanswered("delete")
	}
	return nil
}

// Place is the class's rule: what the specification says, else the zone after the one that was tried.
func (l *life) Place(spec *v1alpha1.ProxySpec, _ types.UID, tried []string) (string, error) {
	if spec.Placement != nil && spec.Placement.Zone != "" {
		return spec.Placement.Zone, nil
	}
	if len(tried) > 0 {
		for i, zone := range simZones {
			if zone == tried[len(tried)-1] {
				return simZones[(i+1)%len(simZones)], nil
			}
		}
	}
	if l.spread {
		// In turn, as a class does that spreads its instances.
		l.turn++
	}
	return simZones[l.turn%len(simZones)], nil
}
