package leasing

import (
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
)

// Exclusive leases that have waited for a while claim a proxy in the ledger: one for all that ask for the same.

// demand is the exclusive leases and calls that wait for the same.
type demand struct {
	n int
	// since then some have waited, and none was served.
	since time.Time
}

// demands by shape. They have no lock of their own: they change with the queue.
type demands struct {
	byShape map[string]*demand
	// ended is called when nobody waits for a shape any more.
	ended func(shape string)
}

func (d *demands) count(v *waiter, n int) {
	if v.request.Mode != v1alpha1.LeaseExclusive {
		return
	}
	of := d.byShape[v.shape]
	if of == nil {
		if d.byShape == nil {
			d.byShape = map[string]*demand{}
		}
		of = &demand{since: v.since}
		d.byShape[v.shape] = of
	}
	if of.n += n; of.n == 0 {
		delete(d.byShape, v.shape)
		d.ended(v.shape)
	}
}

// served lets the others that ask for the same wait from now on.
func (d *demands) served(v *waiter, now time.Time) {
	if of := d.byShape[v.shape]; of != nil {
		of.since = now
	}
}

// claiming is what a waiter asks for, with the claim of its like.
func (v *waiter) claiming() ledger.Request {
	r := v.request
	if r.Mode == v1alpha1.LeaseExclusive {
		r.Claim = v.shape
	}
	return r
}

// claim claims a proxy for a waiter that could not be served, if its like have waited long enough. It gives the moment at
// which that has to be looked at again; zero: when something changes. It is called under the queue's lock.
func (a *Allocator) claim(v *waiter, now time.Time) (again time.Time) {
	of := a.waiting.demands.byShape[v.shape]
	if of == nil {
		return time.Time{}
	}
	if at := of.since.Add(a.ExclusivePatience); at.After(now) {
		return at
	}
	return a.ledger.Claim(v.shape, v.claiming(), now)
}

// unclaimed lets others have what nobody waits for exclusively any more.
func (a *Allocator) unclaimed(shape string) {
	a.ledger.Withdraw(shape)
	a.wake()
}

// earlier is the earlier of two moments; zero ones do not count.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
