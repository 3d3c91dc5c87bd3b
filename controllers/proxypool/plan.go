package proxypool

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
)

// Defaults of the pool's numbers.
const (
	// DefaultReplicas is the API's default, for pools that were read without it.
	DefaultReplicas = 1
	// DefaultMaxSurge and DefaultMaxUnavailable are a Deployment's.
	DefaultMaxSurge       = "25%"
	DefaultMaxUnavailable = "25%"
	// DefaultProgressDeadline is how long a rollout may stand still before it is reported.
	DefaultProgressDeadline = 600 * time.Second
	// drainShare bounds how many leaving proxies may exist besides their successors, as a share of the replicas: leases
	// may keep them for hours, and every one of them is an instance that costs money or quota.
	drainShare = "25%"
)

// Reasons for which a member is given up, as events and drain requests tell them.
const (
	reasonScaleDown = "ScaleDown"
	reasonRollout   = "Rollout"
	reasonMaxAge    = "MaxAge"
	reasonUnhealthy = "Unhealthy"
	reasonReported  = "Reported"
)

// Input is all that a plan is made from.
type Input struct {
	Pool *v1alpha1.ProxyPool
	// Members are the Proxies whose controller is the pool, by its UID.
	Members []*v1alpha1.Proxy
	// Deleted are the members whose deletion was asked for and is not seen yet.
	Deleted map[types.UID]bool
	// Blocked are names that are held by something else.
	Blocked map[string]bool
	// Collisions that were met since the status was written.
	Collisions int32
	// Refused is why the API server does not take new members; "" when it does.
	Refused string
	// Leases that hold a member; nil when nobody counts them.
	Leases func(types.UID) int
	// Emptied tells of a member without leases that is asked to drain whether leasing knows and so will grant none; nil when
	// nobody grants any.
	Emptied func(*v1alpha1.Proxy) bool
	// Reports on a member; nil when nobody takes them in.
	Reports func(types.UID) []Report
	// Counts of the pool as a whole, for the status.
	Leased, Pending int32
	Now             time.Time
}

// Plan is what is to be done now. Everything in it may be done in any order and again.
type Plan struct {
	// Creates are the names of new members of UpdateRevision.
	Creates []string
	Deletes []Delete
	// Drains ask members to be empty, Undrains take members back, Updates bring them to what the template says.
	Drains, Undrains, Updates []Update
	Status                    v1alpha1.ProxyPoolStatus
	// Recheck is when time alone changes the plan; 0 for never.
	Recheck time.Duration
}

// Delete is a member that is to go, and why.
type Delete struct {
	Proxy  *v1alpha1.Proxy
	Reason string
}

// Update is a member whose labels, annotations or specification change in place.
type Update struct {
	Proxy *v1alpha1.Proxy
	Ops   []objpatch.Op
	// Reason of a drain.
	Reason string
	// Patient drains have no deadline.
	Patient bool
}

// planner is the state of one MakePlan.
type planner struct {
	in       Input
	revision string
	replicas int
	surge    int
	// unavailable is how many replicas may be missing during a rollout.
	unavailable int
	// unhealthy is how many members run and do not work.
	unhealthy int
	// held: the limit keeps the pool from making members that it lacks.
	held bool

	all    []member
	active []member // not leaving
	plan   Plan
}

// MakePlan decides what a pool does next. It is pure and knows nothing but the members: no counter of the status is
// believed, since a fleet that counts on counters is the fleet that gets stuck.
func MakePlan(in Input) Plan {
	p := newPlanner(in)
	if in.Pool.DeletionTimestamp.IsZero() {
		p.finishDrains()
		p.scaleAndRoll()
		p.takeBack()
		p.propagate()
	}
	p.setStatus()
	return p.plan
}

func newPlanner(in Input) *planner {
	p := &planner{in: in, revision: RevisionOf(&in.Pool.Spec.Template.Spec), replicas: DefaultReplicas}
	if in.Pool.Spec.Replicas != nil {
		p.replicas = int(*in.Pool.Spec.Replicas)
	}
	p.surge, p.unavailable = fenceposts(in.Pool.Spec.Strategy, p.replicas)
	for _, px := range in.Members {
		m := p.in.newMember(px, p.revision)
		p.all = append(p.all, m)
		if !m.leaving && !m.unhealthySince.IsZero() {
			p.unhealthy++
		}
	}
	for i := range p.all {
		m := &p.all[i]
		if !m.leaving || m.patient {
			m.due = p.whyDue(m)
		}
		p.keep(m)
		if !m.leaving {
			p.active = append(p.active, *m)
		}
	}
	slices.SortFunc(p.active, p.compareVictims)
	return p
}

// fenceposts are maxSurge and maxUnavailable in proxies: the one rounded up, the other down, and never both 0, which would
// forbid every rollout.
func fenceposts(strategy *v1alpha1.PoolStrategy, replicas int) (surge, unavailable int) {
	var maxSurge, maxUnavailable *intstr.IntOrString
	if strategy != nil {
		maxSurge, maxUnavailable = strategy.MaxSurge, strategy.MaxUnavailable
	}
	surge = scaled(maxSurge, DefaultMaxSurge, replicas, true)
	unavailable = min(scaled(maxUnavailable, DefaultMaxUnavailable, replicas, false), replicas)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

func scaled(value *intstr.IntOrString, fallback string, total int, up bool) int {
	n, err := intstr.GetScaledValueFromIntOrPercent(intstr.ValueOrDefault(value, intstr.FromString(fallback)), total, up)
	if err != nil {
		// The schema admits no other text; the default is better than none.
		n, _ = intstr.GetScaledValueFromIntOrPercent(&intstr.IntOrString{Type: intstr.String, StrVal: fallback}, total, up)
	}
	return max(n, 0)
}

// limit is how many proxies of the pool may exist at once, leaving ones included.
func (p *planner) limit() int {
	return p.replicas + p.surge + max(1, scaled(nil, drainShare, p.replicas, true))
}

func (p *planner) scaleAndRoll() {
	// What maxSurge has room for are successors: members that are due beyond the replicas are surplus as ever.
	room := p.replicas
	if p.due() && p.replicas > 0 {
		room += min(p.surge, p.successors())
	}
	if len(p.active) >= p.replicas {
		p.dropForeign()
	}
	switch surplus := len(p.active) - room; {
	case surplus > 0:
		p.remove(p.active[:surplus], reasonScaleDown)
	case p.due():
		p.roll()
	case surplus < 0:
		p.grow(-surplus)
	}
}

// grow adds n members: those that are being drained come first, then new ones.
func (p *planner) grow(n int) {
	n -= p.undrain(n)
	if room := p.limit() - len(p.all); n > room {
		n, p.held = room, true
	}
	if n <= 0 || p.successorsWait() {
		return
	}
	taken := make(map[string]bool, len(p.all)+len(p.in.Blocked))
	for name := range p.in.Blocked {
		taken[name] = true
	}
	for _, m := range p.all {
		taken[m.Name] = true
	}
	p.plan.Creates = freeNames(p.in.Pool.Name, p.revision, n, taken)
}

// roll replaces members that are due: successors are made within maxSurge, and members go as far as maxUnavailable allows.
// Those that do not work go first, since nothing is lost with them; successors that are not available yet use up the
// allowance, so a template that never works stops at it.
func (p *planner) roll() {
	var due []member
	updated, available, updatedUnavailable := 0, 0, 0
	for _, m := range p.active {
		if m.available {
			available++
		}
		if m.due != "" {
			due = append(due, m)
			continue
		}
		updated++
		if !m.available {
			updatedUnavailable++
		}
	}
	p.grow(min(p.replicas-updated, p.replicas+p.surge-len(p.active)))

	least := p.replicas - p.unavailable
	broken := min(len(p.active)-least-updatedUnavailable, len(p.active))
	working := available - least
	for _, m := range due {
		switch {
		case !m.available && broken > 0:
			broken--
			p.replace(m)
		case m.available && working > 0:
			working--
			p.replace(m)
		}
	}
}

func (p *planner) propagate() {
	going := map[types.UID]bool{}
	for _, d := range p.plan.Deletes {
		going[d.Proxy.UID] = true
	}
	// One patch at a time: the next would conflict.
	for _, u := range slices.Concat(p.plan.Drains, p.plan.Undrains) {
		going[u.Proxy.UID] = true
	}
	for i := range p.all {
		m := &p.all[i]
		if !m.DeletionTimestamp.IsZero() || p.in.Deleted[m.UID] || going[m.UID] {
			continue
		}
		if ops := propagation(p.in.Pool, m); len(ops) > 0 {
			p.plan.Updates = append(p.plan.Updates, Update{Proxy: m.Proxy, Ops: ops})
		}
	}
}
