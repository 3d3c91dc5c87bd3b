package leasing

import (
	"time"

	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
)

// Exclusive leases that have waited for a while claim a proxy in the ledger: one for all that ask for the same.

// ClaimReturn is for how long a call that was not served may come again without losing what its like have waited for: a
// little longer than it is told to wait before that. Else calls that wait for less than ExclusivePatience would never claim.
const ClaimReturn = noProxyRetry + 2*time.Second

// demand is the exclusive leases and calls that wait for the same.
type demand struct {
	n int
	// since then some have waited, and none was served.
	since time.Time
	// left is when the last of them went away; set while n is 0.
	left time.Time
	// claimed is until when they claim what they do.
	claimed time.Time
}

// demands by shape. They have no lock of their own: they change with the queue.
type demands struct {
	byShape  map[string]*demand
	clock    clock.PassiveClock
	patience time.Duration
	// due is when one may end of which nobody waits; zero: there is none.
	due time.Time
	// ended is called when nobody waits for a shape any more, left when nobody does and a call may come again.
	ended func(shape string)
	left  func()
}

// join takes in that v waits. One that does not really wait has no demand. It gives the moment at which its claim has to be
// looked at although nothing happens; zero: others wait for the same.
func (d *demands) join(v *waiter) (again time.Time) {
	if v.request.Mode != v1alpha1.LeaseExclusive || v.polls {
		return again
	}
	of := d.byShape[v.shape]
	if of == nil {
		if d.byShape == nil {
			d.byShape = map[string]*demand{}
		}
		of = &demand{since: v.since}
		d.byShape[v.shape] = of
	}
	if of.n++; of.n == 1 {
		again = of.since.Add(d.patience)
	}
	return again
}

// leave takes in that v waits no more. A lease that exists and waits no more does not come again.
func (d *demands) leave(v *waiter, served bool) {
	of := d.byShape[v.shape]
	if of == nil || v.request.Mode != v1alpha1.LeaseExclusive || v.polls {
		return
	}
	switch of.n--; {
	case of.n > 0:
	case served || v.served == nil:
		d.end(v.shape)
	default:
		of.left = d.clock.Now()
		d.due = earlier(d.due, of.left.Add(ClaimReturn))
		d.left()
	}
}

func (d *demands) end(shape string) {
	delete(d.byShape, shape)
	d.ended(shape)
}

// expire ends the demands of calls that did not come again. It gives the moment at which it is to be called again; zero: when
// something changes.
func (d *demands) expire(now time.Time) (again time.Time) {
	if d.due.After(now) || d.due.IsZero() {
		return d.due
	}
	d.due = time.Time{}
	for shape, of := range d.byShape {
		if of.n > 0 {
			continue
		}
		if at := of.left.Add(ClaimReturn); at.After(now) {
			d.due = earlier(d.due, at)
		} else {
			d.end(shape)
		}
	}
	return d.due
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
	if at := of.since.Add(a.waiting.demands.patience); at.After(now) {
		return at
	}
	again = a.ledger.Claim(v.shape, v.claiming(), now)
	if !again.Equal(of.claimed) {
		of.claimed = again
		a.wake() // it may have let go of another proxy
	}
	return again
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
