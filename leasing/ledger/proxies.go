package ledger

import (
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/cooldown"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// proxy is one Proxy object as last seen.
type proxy struct {
	key      types.NamespacedName
	uid      types.UID
	object   *v1alpha1.Proxy // read only
	closed   string
	capacity int // 0: unlimited
	identity string
	usage    *usage
	class    *class
	// claim is the key of the claim on the proxy; empty: there is none.
	claim string
	// wasOver is over when it was last said.
	wasOver bool
	// level is the load bucket of the class the proxy stands in; -1 when it is in none.
	level      int
	prev, next *proxy
}

func (p *proxy) load() int { return len(p.usage.leases) }

// over tells whether the proxy carries more leases than its capacity.
func (p *proxy) over() bool { return p.capacity > 0 && p.load() > p.capacity }

// space is one namespace.
type space struct {
	classes map[string]*class
	pools   map[string]map[*proxy]struct{}
}

// ObserveProxy takes in what an informer or a list says about a Proxy. It tells whether the Proxy can take
// leases, or is claimed by one that waits, so that waiting ones should be tried again.
func (l *Ledger) ObserveProxy(px *v1alpha1.Proxy) (open bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.observeProxy(px)
}

// AnswerProxy takes in the answer to a write of a Proxy, and gives what was known of it before. It may come after the event
// of the Proxy's deletion: one that the ledger does not have stays unknown, and the result is nil. So it is when the answer
// is older than what is known.
func (l *Ledger) AnswerProxy(px *v1alpha1.Proxy) (before *v1alpha1.Proxy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[types.NamespacedName{Namespace: px.Namespace, Name: px.Name}]
	if p == nil || p.uid != px.UID || older(px.ResourceVersion, p.object.ResourceVersion) {
		return nil
	}
	before = p.object
	l.observeProxy(px)
	return before
}

func (l *Ledger) observeProxy(px *v1alpha1.Proxy) (open bool) {
	key := types.NamespacedName{Namespace: px.Namespace, Name: px.Name}
	old := l.proxies[key]
	if !l.open {
		return false
	}
	if old != nil && older(px.ResourceVersion, old.object.ResourceVersion) {
		return false
	}
	if old != nil && old.uid != px.UID {
		l.remove(old)
		old = nil
	}
	p := old
	if p == nil {
		p = &proxy{key: key, uid: px.UID, level: -1, usage: l.usage[px.UID]}
		if p.usage == nil {
			p.usage = newUsage()
			l.usage[px.UID] = p.usage
		}
		l.proxies[key] = p
	} else {
		l.unlink(p)
	}
	p.object = px
	p.closed = Closed(px)
	p.capacity = 0
	if px.Spec.Capacity != nil {
		p.capacity = int(*px.Spec.Capacity)
	}
	p.identity = Identity(px)
	l.link(p)
	return p.level >= 0 || p.claim != ""
}

// DeleteProxy takes in the event of a deletion. Leases that hold the proxy stay: ending them is a decision of its own.
func (l *Ledger) DeleteProxy(px *v1alpha1.Proxy) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.proxies[types.NamespacedName{Namespace: px.Namespace, Name: px.Name}]; p != nil && p.uid == px.UID {
		l.remove(p)
	}
}

// Proxy is the Proxy object as last seen; read only. It is nil when there is none, or only a namesake of another UID.
func (l *Ledger) Proxy(key types.NamespacedName, uid types.UID) *v1alpha1.Proxy {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.proxies[key]; p != nil && (uid == "" || p.uid == uid) {
		return p.object
	}
	return nil
}

// Sibling is another Proxy that leaves by the same exit, has an instance and is not going away; nil when there is none.
func (l *Ledger) Sibling(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.exits[Identity(px)]
	if e == nil {
		return nil
	}
	var best *proxy
	for p := range e.members {
		if p.uid != px.UID && p.object.DeletionTimestamp.IsZero() && record.InstanceID(p.object) != "" && (best == nil || p.key.String() < best.key.String()) {
			best = p
		}
	}
	if best == nil {
		return nil
	}
	return best.object
}

// NextCooldownEnd is the earliest end of a cooldown that runs; zero when none does.
func (l *Ledger) NextCooldownEnd(now time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	var next time.Time
	for _, p := range l.proxies {
		for _, c := range cooldown.Live(p.object.Status.Cooldowns, record.InstanceID(p.object), now) {
			if next.IsZero() || c.UntilTime.Time.Before(next) {
				next = c.UntilTime.Time
			}
		}
	}
	return next
}

// CountCooldowns is how many cooldowns run.
func (l *Ledger) CountCooldowns(now time.Time) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.proxies {
		n += len(cooldown.Live(p.object.Status.Cooldowns, record.InstanceID(p.object), now))
	}
	return n
}

// Identity is the key of a Proxy's exit. Until core has found one out, the proxy is an exit of its own.
func Identity(px *v1alpha1.Proxy) string {
	if px.Status.EgressIdentity != "" {
		return px.Status.EgressIdentity
	}
	return "uid/" + string(px.UID)
}

// exit is the proxies that leave by one identity.
type exit struct {
	members map[*proxy]struct{}
	// until is the latest end of a cooldown for each target over all members; nil when it must be computed again.
	until map[string]time.Time
}

// cooling is the latest end of a cooldown of the proxy's exit for one of the targets; zero when it may be leased.
func (l *Ledger) cooling(p *proxy, targets []string, now time.Time) time.Time {
	var until time.Time
	if len(targets) == 0 {
		return until
	}
	e := l.exits[p.identity]
	if e.until == nil {
		e.until = map[string]time.Time{}
		for member := range e.members {
			for _, c := range cooldown.Live(member.object.Status.Cooldowns, record.InstanceID(member.object), now) {
				if c.UntilTime.After(e.until[c.Target]) {
					e.until[c.Target] = c.UntilTime.Time
				}
			}
		}
	}
	for _, target := range targets {
		if end := e.until[target]; end.After(now) && end.After(until) {
			until = end
		}
	}
	return until
}

// HasProxies tells whether there are proxies in a namespace.
func (l *Ledger) HasProxies(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.spaces[namespace] != nil
}

// remove takes a proxy out. What it carries stays known by its UID until the leases end.
func (l *Ledger) remove(p *proxy) {
	if c := l.claims[p.claim]; c != nil {
		l.unclaim(c)
	}
	l.unlink(p)
	delete(l.proxies, p.key)
	if len(p.usage.leases) == 0 {
		delete(l.usage, p.uid)
	}
}

// link puts a proxy into its namespace, class, pool and exit.
func (l *Ledger) link(p *proxy) {
	s := l.spaces[p.key.Namespace]
	if s == nil {
		s = &space{classes: map[string]*class{}, pools: map[string]map[*proxy]struct{}{}}
		l.spaces[p.key.Namespace] = s
	}
	name := canonical(p.object.Labels)
	c := s.classes[name]
	if c == nil {
		c = &class{key: name, labels: labels.Set(maps.Clone(p.object.Labels)), members: map[*proxy]struct{}{}}
		s.classes[name] = c
	}
	c.members[p] = struct{}{}
	p.class = c
	if pool := record.Pool(p.object); pool != "" {
		addTo(s.pools, pool, p)
	}
	e := l.exits[p.identity]
	if e == nil {
		e = &exit{members: map[*proxy]struct{}{}}
		l.exits[p.identity] = e
	}
	e.members[p] = struct{}{}
	e.until = nil
	c.place(p)
	l.weigh(p)
}

func (l *Ledger) unlink(p *proxy) {
	s := l.spaces[p.key.Namespace]
	p.class.take(p)
	delete(p.class.members, p)
	if len(p.class.members) == 0 {
		delete(s.classes, p.class.key)
	}
	if pool := record.Pool(p.object); pool != "" {
		removeFrom(s.pools, pool, p)
	}
	e := l.exits[p.identity]
	delete(e.members, p)
	e.until = nil
	if len(e.members) == 0 {
		delete(l.exits, p.identity)
	}
	if len(s.classes) == 0 {
		delete(l.spaces, p.key.Namespace)
	}
}

// reindex puts a proxy where its load belongs.
func (l *Ledger) reindex(key types.NamespacedName) {
	if p := l.proxies[key]; p != nil {
		p.class.take(p)
		p.class.place(p)
		l.weigh(p)
	}
}

// weigh says so when a proxy begins or ceases to carry too much.
func (l *Ledger) weigh(p *proxy) {
	if over := p.over(); over != p.wasOver {
		p.wasOver = over
		if l.onOvercommit != nil {
			l.onOvercommit(p.key)
		}
	}
}

// StaleExclusive is the UID of the exclusive lease that the Proxy names although the ledger knows no such lease on it;
// empty when there is none. While a Proxy names a lease it is not given to another.
func (l *Ledger) StaleExclusive(px *v1alpha1.Proxy) types.UID {
	l.mu.Lock()
	defer l.mu.Unlock()
	x := px.Status.Exclusive
	if x == nil || x.LeaseUID == "" {
		return ""
	}
	if u := l.usage[px.UID]; u != nil {
		for e := range u.leases {
			if e.uid == x.LeaseUID {
				return ""
			}
		}
	}
	return x.LeaseUID
}

func addTo(index map[string]map[*proxy]struct{}, key string, p *proxy) {
	if index[key] == nil {
		index[key] = map[*proxy]struct{}{}
	}
	index[key][p] = struct{}{}
}

func removeFrom(index map[string]map[*proxy]struct{}, key string, p *proxy) {
	delete(index[key], p)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// canonical is the same for equal label sets and differs for different ones: neither keys nor values can contain the
// separators.
func canonical(set map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(set)) {
		b.WriteString(k)
		b.WriteByte('=')
		b.WriteString(set[k])
		b.WriteByte(',')
	}
	return b.String()
}
