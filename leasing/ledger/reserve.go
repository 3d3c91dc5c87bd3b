package ledger

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const (
	// lookAhead is about how many proxies are compared by their last use for the target.
	lookAhead = 32
	// maxTargetsRemembered is for how many targets the last use of a proxy is remembered.
	maxTargetsRemembered = 256
)

// Request is what a lease asks for.
type Request struct {
	Lease types.NamespacedName
	// UID of the lease; empty when it is not created yet.
	UID    types.UID
	Holder string
	// Selector matches the labels of the proxies of the lease's namespace. nil with a ProxyName.
	Selector labels.Selector
	// ProxyName asks for one proxy.
	ProxyName string
	Targets   []string
	Mode      v1alpha1.LeaseMode
	Excluded  []string
	// Claim is the key of the claim of exclusive requests that wait, see Ledger.Claim; empty: none.
	Claim string
}

// Reservation is a slot that was taken for a lease.
type Reservation struct {
	Lease   types.NamespacedName
	Binding record.Binding
	Mode    v1alpha1.LeaseMode
	// Proxy as last seen; read only.
	Proxy *v1alpha1.Proxy
}

// TakenError says that the lease has, or had, a slot already.
type TakenError struct{ Lease Lease }

// Error implements error.
func (e *TakenError) Error() string {
	return fmt.Sprintf("lease %s has proxy %s", e.Lease.Key, e.Lease.Binding.ProxyName)
}

// NoProxyError says that no proxy can be granted now, and why.
type NoProxyError struct {
	// Reason is one of the reasons of a lease's Bound condition.
	Reason  string
	Message string
	// Unmatched: no proxy has what is asked for, whatever its state.
	Unmatched bool
	// Earliest is when a cooldown ends that stands in the way; zero when there is none.
	Earliest time.Time
}

// Error implements error.
func (e *NoProxyError) Error() string { return e.Message }

// ErrNoProxy says that no proxy can be granted now; Explain says why.
var ErrNoProxy = errors.New("no proxy can be granted now")

// Reserve takes a slot of the best proxy for the request: among those that qualify, one with the least load, of these the
// one that was least recently used for the targets. The error is a *TakenError or a *NoProxyError.
func (l *Ledger) Reserve(r Request, now time.Time) (Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	reservation, err := l.reserve(r, now)
	if errors.Is(err, ErrNoProxy) {
		err = l.explain(r, now)
	}
	return reservation, err
}

// Try is Reserve for those who do not ask why, because to find that out is to look at every proxy. The error is a *TakenError
// or ErrNoProxy.
func (l *Ledger) Try(r Request, now time.Time) (Reservation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reserve(r, now)
}

func (l *Ledger) reserve(r Request, now time.Time) (Reservation, error) {
	if e := l.taken(r); e != nil {
		return Reservation{}, &TakenError{Lease: e.export()}
	}
	p := l.choose(r, now)
	if p == nil {
		return Reservation{}, ErrNoProxy
	}
	l.withdraw(r.Claim)
	l.grants++
	l.uses++
	e := &entry{
		key: r.Lease, uid: r.UID, state: reserved, mode: r.Mode, holder: r.Holder,
		binding: record.Binding{
			ProxyName: p.key.Name, ProxyUID: p.uid, InstanceID: record.InstanceID(p.object),
			Epoch: l.epoch, Seq: l.grants,
		},
	}
	l.writing[r.Lease] = e
	p.usage.used(r.Targets, l.uses)
	l.take(e)
	return Reservation{Lease: r.Lease, Binding: e.binding, Mode: r.Mode, Proxy: p.object}, nil
}

// Taken tells what stands in the way of a reservation under a lease's name.
func (l *Ledger) Taken(key types.NamespacedName) (Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.taken(Request{Lease: key}); e != nil {
		return e.export(), true
	}
	return Lease{}, false
}

// taken is what stands in the way of a reservation under the lease's name; nil when nothing does.
func (l *Ledger) taken(r Request) *entry {
	if w := l.writing[r.Lease]; w != nil {
		return w
	}
	if e := l.leases[r.Lease]; e != nil && (r.UID == "" || e.uid == r.UID || e.state != finished) {
		return e
	}
	return nil
}

// choose finds the best proxy; nil when none qualifies.
func (l *Ledger) choose(r Request, now time.Time) *proxy {
	if r.Mode == v1alpha1.LeaseExclusive && len(l.unfenced[r.Lease.Namespace]) > 0 {
		return nil
	}
	if p := l.claimedFor(r, now); p != nil {
		return p
	}
	s := l.spaces[r.Lease.Namespace]
	if s == nil {
		return nil
	}
	if r.ProxyName != "" {
		p := l.proxies[types.NamespacedName{Namespace: r.Lease.Namespace, Name: r.ProxyName}]
		if p != nil && p.level >= 0 && l.qualifies(p, r, now) {
			return p
		}
		return nil
	}
	var best *proxy
	compared := 0
	for _, c := range s.classes {
		if c.open == 0 || !r.Selector.Matches(c.labels) {
			continue
		}
		budget := max(compared+1, lookAhead) // of every class at least the first
		for level := c.lowest; level < len(c.buckets) && (best == nil || level <= best.level); level++ {
			if r.Mode == v1alpha1.LeaseExclusive && level > 0 {
				break
			}
			for p := c.buckets[level].first; p != nil && compared < budget; p = p.next {
				if !l.qualifies(p, r, now) {
					continue
				}
				compared++
				if best == nil || p.before(best, r.Targets) {
					best = p
				}
			}
		}
	}
	return best
}

// qualifies tells whether a proxy that has room may be given to this request.
func (l *Ledger) qualifies(p *proxy, r Request, now time.Time) bool {
	if r.Mode == v1alpha1.LeaseExclusive && p.load() > 0 {
		return false
	}
	return l.suits(p, r, now)
}

// suits tells whether a proxy may be given to this request, whatever it carries.
func (l *Ledger) suits(p *proxy, r Request, now time.Time) bool {
	if slices.Contains(r.Excluded, p.key.Name) {
		return false
	}
	if healthy, known := l.verdict(p.uid, record.InstanceID(p.object)); known && !healthy {
		return false
	}
	return l.cooling(p, r.Targets, now).IsZero()
}

// before orders proxies by load, then by the last use for the targets, then by the last use at all.
func (p *proxy) before(q *proxy, targets []string) bool {
	if p.level != q.level {
		return p.level < q.level
	}
	if a, b := p.usage.lastFor(targets), q.usage.lastFor(targets); a != b {
		return a < b
	}
	if p.usage.lastUse != q.usage.lastUse {
		return p.usage.lastUse < q.usage.lastUse
	}
	return p.key.Name < q.key.Name
}

func (u *usage) lastFor(targets []string) uint64 {
	var last uint64
	for _, t := range targets {
		last = max(last, u.byTarget[t])
	}
	return last
}

func (u *usage) used(targets []string, at uint64) {
	u.lastUse = at
	for _, t := range targets {
		if _, known := u.byTarget[t]; !known && len(u.byTarget) >= maxTargetsRemembered {
			u.forgetOldestTarget()
		}
		u.byTarget[t] = at
	}
}

func (u *usage) forgetOldestTarget() {
	oldest, found := "", false
	for t, at := range u.byTarget {
		if !found || at < u.byTarget[oldest] {
			oldest, found = t, true
		}
	}
	delete(u.byTarget, oldest)
}
