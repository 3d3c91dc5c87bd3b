package instance

import (
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// The simulation runs whole lives of a Proxy through Decide and the record functions against a cloud that answers late,
// loses replies, refuses and silently drops what it accepted, and a manager that reads old status, crashes between effect
// and write, and has a predecessor whose last call is still on its way. A truthful cloud never says NotFound of what it
// shows; then nothing may leak and nothing may be doubled.

const (
	simLives      = 20000
	simVisibleMax = 45 * time.Second
)

var simTiming = providers.Timing{
	Window: 10 * time.Second, Settle: 60 * time.Second, Confirm: 10 * time.Second,
	Poll: 3 * time.Second, PollMax: 10 * time.Second, Slow: time.Minute,
}

var simZones = []string{"a", "b"}

// rules can be switched off, to show that each of them carries weight.
type rules struct {
	lock    bool // the release carries the resourceVersion
	confirm bool // NotFound is believed the second time
	settle  bool // an attempt settles before it is given up
}

type simMachine struct {
	id, zone, hash                string
	uid                           types.UID
	visible, runs, gone, vanishes time.Time
}

type simCloud struct {
	machines []*simMachine
	sequence int
	now      time.Time
	random   *rand.Rand
}

func (c *simCloud) one(n int) bool { return c.random.Intn(n) == 0 }

func (c *simCloud) upTo(d time.Duration) time.Duration {
	return time.Duration(c.random.Int63n(int64(d)))
}

func (c *simCloud) settle() {
	kept := c.machines[:0]
	for _, m := range c.machines {
		if (m.gone.IsZero() || c.now.Before(m.gone)) && (m.vanishes.IsZero() || c.now.Before(m.vanishes)) {
			kept = append(kept, m)
		}
	}
	c.machines = kept
}

func (c *simCloud) find(zone string) *simMachine {
	for _, m := range c.machines {
		if m.zone == zone || zone == "" {
			return m
		}
	}
	return nil
}

// alive are the machines that are there to stay.
func (c *simCloud) alive() int {
	n := 0
	for _, m := range c.machines {
		if m.gone.IsZero() && m.vanishes.IsZero() {
			n++
		}
	}
	return n
}

func (c *simCloud) get(zone string) *Observed {
	c.settle()
	if c.one(20) {
		return &Observed{Err: providers.NewError(providers.Unavailable, "get", "", errors.New("503"))}
	}
	m := c.find(zone)
	if m == nil || !m.vanishes.IsZero() || c.now.Before(m.visible) {
		return &Observed{}
	}
	i := providers.Instance{
		Ref:   providers.Ref{Name: "n", Zone: m.zone, ID: m.id, ProviderID: "sim://" + m.zone},
		Owner: providers.Owner{UID: m.uid}, Hash: m.hash, State: providers.StatePending,
	}
	switch {
	case !m.gone.IsZero():
		i.State = providers.StateTerminating
	case !c.now.Before(m.runs):
		i.State, i.Addresses = providers.StateRunning, []string{"10.0.0.1"}
	}
	return &Observed{Found: true, Instance: i}
}

func (c *simCloud) create(zone, hash string, uid types.UID) (providers.Receipt, error) {
	c.settle()
	if c.one(15) {
		// The quota is looked at before the name, as some clouds do.
		return providers.Receipt{}, providers.NewError(providers.Capacity, "create", "", nil)
	}
	if c.one(25) {
		return providers.Receipt{}, providers.NewError(providers.Unavailable, "create", "", nil)
	}
	if c.find(zone) != nil {
		return providers.Receipt{}, providers.NewError(providers.AlreadyExists, "create", "", nil)
	}
	c.sequence++
	m := &simMachine{id: fmt.Sprint(c.sequence), zone: zone, hash: hash, uid: uid, visible: c.now.Add(c.upTo(simVisibleMax))}
	m.runs = m.visible.Add(c.upTo(time.Minute))
	if c.one(6) {
		m.vanishes = c.now.Add(c.upTo(simVisibleMax))
	}
	c.machines = append(c.machines, m)
	if c.one(15) {
		return providers.Receipt{}, providers.NewError(providers.Unavailable, "create", "", errors.New("reply lost"))
	}
	return providers.Receipt{Operation: m.id}, nil
}

func (c *simCloud) delete(ref providers.Ref) error {
	c.settle()
	if c.one(20) {
		return providers.NewError(providers.Unavailable, "delete", "", nil)
	}
	for _, m := range c.machines {
		if m.zone == ref.Zone && m.id == ref.ID && m.gone.IsZero() {
			m.gone = c.now.Add(c.upTo(40 * time.Second))
		}
	}
	return nil
}

// place is the fake's rule: the zone after the one that was tried.
func (c *simCloud) place(tried string) string {
	for i, zone := range simZones {
		if zone == tried {
			return simZones[(i+1)%len(simZones)]
		}
	}
	return simZones[0]
}

type tally struct{ leaks, doubles, unfinished, steps, running int }

// life runs one Proxy from its creation to its release.
func life(seed int64, on rules, truthful bool, sum *tally) {
	random := rand.New(rand.NewSource(seed))
	cloud := &simCloud{now: time.Unix(1e9, 0), random: random}
	timing := simTiming
	if !on.confirm {
		timing.Confirm = -time.Second // the stored time is rounded up
	}
	if !on.settle {
		timing.Settle = timing.Window
	}
	d := Desired{UID: "u", Hash: "v1-1", ClassGeneration: 1, ProvisionTimeout: 10 * time.Minute}
	deleteAt := cloud.now.Add(cloud.upTo(40 * time.Minute))
	changeAt := cloud.now.Add(cloud.upTo(30 * time.Minute))
	end := deleteAt.Add(time.Hour)
	// history are the versions of the record; a cache may show any of the last few.
	history := make([]v1alpha1.Instance, 1, 64)
	type late struct {
		at         time.Time
		zone, hash string
	}
	var old *late

	for cloud.now.Before(end) {
		sum.steps++
		d.Deleting = cloud.now.After(deleteAt)
		d.Hash, d.Hold = "v1-1", nil
		if cloud.now.After(changeAt) {
			d.Hash = "v1-2"
		}
		if cloud.one(400) {
			d.Hash, d.Hold = "", &Finding{v1alpha1.ReasonCloudInitError, "no Secret"}
		}
		if old != nil && cloud.now.After(old.at) {
			now := cloud.now
			cloud.now = old.at
			_, _ = cloud.create(old.zone, old.hash, d.UID)
			cloud.now, old = now, nil
		}
		read, stale := history[len(history)-1], false
		if cloud.one(4) && len(history) > 1 {
			read, stale = history[max(0, len(history)-2-random.Intn(3))], true
		}
		crash := cloud.one(12)
		// write stores a record, unless the process dies first or the resourceVersion is old.
		write := func(next v1alpha1.Instance) bool {
			if crash || stale {
				return false
			}
			if same(read, next) {
				return true
			}
			history = append(history, next)
			read = next
			return true
		}
		var o *Observed
		after := time.Duration(0)
	decisions:
		for range maxDecisions {
			a := Decide(d, read, o, cloud.now, timing)
			after = a.After
			switch a.Kind {
			case Look:
				o = cloud.get(read.Zone)
				if !truthful && o.Found && cloud.one(60) {
					o.Found = false
				}
				if !o.Found && o.Err == nil && !d.Deleting {
					d.Zone, _ = chooseZone(simPlacer{cloud}, &v1alpha1.ProxySpec{}, 1, read, cloud.now, timing)
				}
			case AddFinalizer:
				d.Finalizer = true
			case RecordIntent:
				if !write(recordIntent(d, read, "n", cloud.now)) {
					break decisions
				}
			case Create:
				if cloud.one(200) && old == nil {
					// The process is cut off; its call arrives later, but within what Settle allows for.
					old = &late{cloud.now.Add(cloud.upTo(read.IntentTime.Add(simTiming.Settle - simVisibleMax).Sub(cloud.now))), read.Zone, d.Hash}
					break decisions
				}
				receipt, err := cloud.create(read.Zone, d.Hash, d.UID)
				write(recordCreated(d, read, receipt, err, cloud.now))
				break decisions
			case Delete:
				if err := cloud.delete(o.Instance.Ref); err == nil {
					write(recordDeleting(recordFound(d, read, o.Instance, cloud.now), a.Reason))
				}
				break decisions
			case RecordMissing:
				write(recordMissing(read, cloud.now))
				if on.confirm {
					break decisions
				}
			case RemoveFinalizer:
				if stale && on.lock {
					break decisions
				}
				cloud.settle()
				sum.leaks += cloud.alive()
				return
			case Report:
				if o != nil && o.Found {
					write(recordFound(d, read, o.Instance, cloud.now))
					if a.Reason == v1alpha1.ReasonRunning && o.Instance.Hash == d.Hash {
						sum.running++
					}
				}
				break decisions
			case Ignore:
				break decisions
			}
		}
		cloud.settle()
		if cloud.alive() > 1 {
			sum.doubles++
			return
		}
		if after == 0 {
			after = 500 * time.Millisecond
		}
		cloud.now = cloud.now.Add(time.Duration(float64(after) * (0.5 + random.Float64())))
	}
	sum.unfinished++
}

// same compares records as far as the simulation changes them; times by identity.
func same(a, b v1alpha1.Instance) bool {
	return a.ID == b.ID && a.State == b.State && a.Zone == b.Zone && a.Hash == b.Hash && a.DesiredHash == b.DesiredHash &&
		a.IntentTime == b.IntentTime && a.SubmittedTime == b.SubmittedTime && a.StartedTime == b.StartedTime && a.MissingTime == b.MissingTime
}

// simPlacer is as much of a Provider as chooseZone needs.
type simPlacer struct{ cloud *simCloud }

func (p simPlacer) Place(_ *v1alpha1.ProxySpec, tried []string) (string, error) {
	if len(tried) == 0 {
		return simZones[0], nil
	}
	return p.cloud.place(tried[len(tried)-1]), nil
}

func simulate(on rules, truthful bool, lives int) tally {
	var sum tally
	for seed := range int64(lives) {
		life(seed, on, truthful, &sum)
	}
	return sum
}

func TestSimulation_NoLeakAndNoDouble(t *testing.T) {
	sum := simulate(rules{lock: true, confirm: true, settle: true}, true, simLives)
	t.Logf("%d lives: %+v", simLives, sum)
	if sum.leaks != 0 || sum.doubles != 0 || sum.unfinished != 0 {
		t.Errorf("leaks %d, doubled %d, unfinished %d, want none", sum.leaks, sum.doubles, sum.unfinished)
	}
	if sum.running < simLives {
		t.Errorf("only %d times an instance ran in %d lives: the simulation shows nothing", sum.running, simLives)
	}
}

// Each rule carries weight: without it the same lives leak or double.
func TestSimulation_RulesCarryWeight(t *testing.T) {
	const lives = 4000
	all := rules{lock: true, confirm: true, settle: true}
	for name, without := range map[string]rules{
		"the release carries the resourceVersion": {confirm: true, settle: true},
		"an attempt settles":                      {lock: true, confirm: true},
	} {
		if sum := simulate(without, true, lives); sum.leaks+sum.doubles == 0 {
			t.Errorf("without %q nothing leaks or doubles: %+v", name, sum)
		}
	}
	// A truthful cloud does not need the second look. This one says NotFound of what is there once in sixty times.
	with, without := simulate(all, false, lives), simulate(rules{lock: true, settle: true}, false, lives)
	if without.leaks <= 10*max(1, with.leaks) {
		t.Errorf("leaks with the second look %d, without %d: no difference", with.leaks, without.leaks)
	}
}
