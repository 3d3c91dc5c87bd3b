package ledger

import (
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// How the ledger takes in what the API server says: news once, old news never.

// ObserveLease takes in what an informer, a list or an answer says about a lease. It tells whether that is news, or at
// least not known to be outdated.
func (l *Ledger) ObserveLease(lease *v1alpha1.ProxyLease) (current bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.leases[keyOf(lease)]; e == nil && !record.Pending(lease) && older(lease.ResourceVersion, l.barrier) {
		return false // deleted before the list that the ledger was built from
	}
	return l.observe(lease)
}

// DeleteLease takes in the event of a deletion. Only the incarnation that is named is freed.
func (l *Ledger) DeleteLease(lease *v1alpha1.ProxyLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tombs, lease.UID)
	key := keyOf(lease)
	l.fenced(key, lease.UID)
	if b, ok := record.BindingOf(lease); ok && l.writing[key].is(lease, b) && l.writing[key].uid == "" {
		// Created and deleted before its creator had the answer. Until that comes, a repeated creation may be under way.
		l.writing[key].gone = lease.UID
	}
	l.forget(key, lease.UID)
}

// forget drops what is known of a lease if it is that incarnation. A lease that does not exist cannot be bound any more.
func (l *Ledger) forget(key types.NamespacedName, uid types.UID) {
	if e := l.leases[key]; e != nil && e.uid == uid {
		l.drop(e)
		delete(l.leases, key)
	}
	if w := l.writing[key]; w != nil && w.uid == uid && uid != "" {
		l.unwritten(w)
	}
}

func (l *Ledger) observe(lease *v1alpha1.ProxyLease) (current bool) {
	if _, dead := l.tombs[lease.UID]; dead || !l.open {
		return false
	}
	key := keyOf(lease)
	b, _ := record.BindingOf(lease)
	holds := record.Holds(lease)
	pending := record.Pending(lease)

	l.fence(lease)
	switch w := l.writing[key]; {
	case w == nil || pending:
	case holds && w.is(lease, b):
		return l.written(w, lease)
	case w.uid == lease.UID:
		// It has ended, or another leader has bound it: our write will be refused.
		l.unwritten(w)
	}
	e := l.leases[key]
	if e != nil && older(lease.ResourceVersion, e.rv) {
		return false
	}
	if e != nil && e.uid != lease.UID {
		// A namesake was created after the one we know was deleted.
		l.drop(e)
		delete(l.leases, key)
		e = nil
	}
	switch {
	case e != nil:
		e.rv = lease.ResourceVersion
		if e.state == bound && !holds {
			l.drop(e)
			e.state = finished
		}
	case !pending:
		e = &entry{key: key, uid: lease.UID, rv: lease.ResourceVersion, state: finished, mode: lease.Spec.Mode, holder: lease.Spec.Holder}
		l.leases[key] = e
		if holds {
			e.binding, e.state = b, bound
			l.take(e)
			if l.epoch > 0 {
				l.judge(l.usage[b.ProxyUID], e, lease)
			}
		}
	}
	return true
}

// take gives the entry a slot of its proxy.
func (l *Ledger) take(e *entry) {
	u := l.usage[e.binding.ProxyUID]
	if u == nil {
		u = newUsage()
		l.usage[e.binding.ProxyUID] = u
	}
	u.leases[e] = struct{}{}
	if e.mode == v1alpha1.LeaseExclusive {
		u.exclusives++
	}
	name := types.NamespacedName{Namespace: e.key.Namespace, Name: e.binding.ProxyName}
	if l.named[name] == nil {
		l.named[name] = map[*entry]struct{}{}
	}
	l.named[name][e] = struct{}{}
	l.reindex(name)
}

// drop takes the slot away from the entry, if it has one.
func (l *Ledger) drop(e *entry) {
	u := l.usage[e.binding.ProxyUID]
	if u == nil {
		return
	}
	if _, has := u.leases[e]; !has {
		return
	}
	delete(u.leases, e)
	if e.mode == v1alpha1.LeaseExclusive {
		u.exclusives--
	}
	name := types.NamespacedName{Namespace: e.key.Namespace, Name: e.binding.ProxyName}
	delete(l.named[name], e)
	if len(l.named[name]) == 0 {
		delete(l.named, name)
	}
	if p := l.proxies[name]; len(u.leases) == 0 && (p == nil || p.uid != e.binding.ProxyUID) {
		delete(l.usage, e.binding.ProxyUID)
	}
	l.reindex(name)
}

func newUsage() *usage {
	return &usage{leases: map[*entry]struct{}{}, byTarget: map[string]uint64{}}
}
