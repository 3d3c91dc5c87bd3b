package ledger

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What former leaders have sent may be carried out at any time, long after they are gone. Two rules keep it from meeting an
// exclusive lease:
//
// A creation that lands after the list of the leases was read was promised to nobody: its leader has lost its office before
// it had the answer. When it clashes with what the ledger has, it is an outcast and is to be revoked, and nobody may promise
// it any more.
//
// A binding that is written to a lease which waits is a promise at once, because its holder sees the object. It carries the
// resourceVersion it was decided on. So no exclusive lease is given in a namespace until every lease that was found waiting
// has been written since (or has ended): from then on such a binding meets a conflict.

// unfenced is a lease that was found waiting, as it was read then.
type unfenced struct {
	uid types.UID
	rv  string
}

// Expect says that a lease was found waiting when the ledger was built.
func (l *Ledger) Expect(lease *v1alpha1.ProxyLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	space := l.unfenced[lease.Namespace]
	if space == nil {
		space = map[types.NamespacedName]unfenced{}
		l.unfenced[lease.Namespace] = space
	}
	space[keyOf(lease)] = unfenced{uid: lease.UID, rv: lease.ResourceVersion}
}

// Unfenced tells whether a former leader's binding of the lease may still be carried out.
func (l *Ledger) Unfenced(key types.NamespacedName, uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	known, ok := l.unfenced[key.Namespace][key]
	return ok && known.uid == uid
}

// Settled tells whether no former leader can bind a lease of the namespace any more.
func (l *Ledger) Settled(namespace string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.unfenced[namespace]) == 0
}

// fence notes that a lease was written, or that there is another one of its name.
func (l *Ledger) fence(lease *v1alpha1.ProxyLease) {
	known, ok := l.unfenced[lease.Namespace][keyOf(lease)]
	if ok && older(known.rv, lease.ResourceVersion) {
		l.fenced(keyOf(lease), known.uid)
	}
}

// fenced notes that nothing a former leader sent can bind the lease any more.
func (l *Ledger) fenced(key types.NamespacedName, uid types.UID) {
	space := l.unfenced[key.Namespace]
	if known, ok := space[key]; !ok || known.uid != uid {
		return
	}
	delete(space, key)
	if len(space) == 0 {
		delete(l.unfenced, key.Namespace)
	}
}

// TakeOutcasts are the leases that have become outcasts since it was last asked.
func (l *Ledger) TakeOutcasts() []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.outcasts) == 0 {
		return nil
	}
	leases := make([]Lease, 0, len(l.outcasts))
	for _, e := range l.outcasts {
		leases = append(leases, e.export())
	}
	l.outcasts = nil
	return leases
}

// Admits tells whether a lease that is written may be promised: the ledger counts it and it is no outcast. Of an exclusive one
// it is false as well while a former leader's binding of another lease to its proxy may come.
func (l *Ledger) Admits(key types.NamespacedName, uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.leases[key]
	return e != nil && e.uid == uid && e.state == bound && !e.outcast &&
		(e.mode != v1alpha1.LeaseExclusive || len(l.unfenced[key.Namespace]) == 0)
}

// judge looks for leases that may not be on one proxy with another one. news, when it is not nil, is the one that was just
// seen and that nobody expected.
func (l *Ledger) judge(u *usage, news *entry, lease *v1alpha1.ProxyLease) {
	if u.exclusives == 0 || len(u.leases) < 2 {
		return
	}
	if news != nil && lease.Spec.Grant != nil && lease.Status.ProxyRef == nil {
		// Whatever stands against it: this one was promised to nobody.
		if clashes(news, u) {
			l.cast(news)
		}
		return
	}
	for _, e := range losers(u, l.namedBy(u)) {
		l.cast(e)
	}
}

func (l *Ledger) cast(e *entry) {
	if !e.outcast {
		e.outcast = true
		l.outcasts = append(l.outcasts, e)
	}
}

func clashes(e *entry, u *usage) bool {
	for other := range u.leases {
		if other != e && !other.outcast && (other.mode == v1alpha1.LeaseExclusive || e.mode == v1alpha1.LeaseExclusive) {
			return true
		}
	}
	return false
}

// namedBy is the UID of the exclusive lease that the proxy of these leases names.
func (l *Ledger) namedBy(u *usage) types.UID {
	for e := range u.leases {
		p := l.proxies[types.NamespacedName{Namespace: e.key.Namespace, Name: e.binding.ProxyName}]
		if p != nil && p.uid == e.binding.ProxyUID && p.object.Status.Exclusive != nil {
			return p.object.Status.Exclusive.LeaseUID
		}
		return ""
	}
	return ""
}

// losers decides who has to go, always in the same way: the lease that the proxy names stays alone. An exclusive one that it
// does not name was promised to nobody, so it gives way to others; among such ones the first grant stays.
func losers(u *usage, named types.UID) []*entry {
	var shared, exclusive, all []*entry
	for e := range u.leases {
		switch {
		case e.outcast:
			continue
		case e.mode == v1alpha1.LeaseExclusive:
			exclusive = append(exclusive, e)
		default:
			shared = append(shared, e)
		}
		all = append(all, e)
	}
	for i, e := range all {
		if named != "" && e.uid == named {
			return slices.Delete(all, i, i+1)
		}
	}
	if len(shared) > 0 || len(exclusive) == 0 {
		return exclusive
	}
	slices.SortFunc(exclusive, func(a, b *entry) int { return cmp.Or(compare(a.binding, b.binding), cmp.Compare(a.uid, b.uid)) })
	return exclusive[1:]
}

func compare(a, b record.Binding) int {
	return cmp.Or(cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Seq, b.Seq))
}
