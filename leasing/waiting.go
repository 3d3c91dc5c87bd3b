package leasing

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/queue"
)

// refusalTTL is how long it is believed that who waits can be given nothing, when nobody says that something has changed: the
// newest verdicts of health count, and nobody says when they change.
const refusalTTL = time.Second

// firstPass is how long a lease with waitSeconds 0 waits that was found at the start of a leader.
const firstPass = time.Second

// waiter is a lease, or a call for one, that waits.
type waiter struct {
	request ledger.Request
	// identity shares the turns of its holders.
	identity string
	pool     string
	// ttlSeconds that the lease asks for; 0: the default.
	ttlSeconds int32
	since      time.Time
	// served takes the result of a call; nil for a lease that exists.
	served chan served
	// polls: it is served at once or not at all.
	polls bool
	// shape is set when it begins to wait.
	shape string
}

// served is what a waiting call gets.
type served struct {
	reservation ledger.Reservation
	err         error
}

// waiting is the queue behind its lock.
//
// Every waiter that was offered since the last change has been refused, so a pass has to offer only those that have come
// since; they are given what the others cannot be given. A change is what somebody says (see changed), what the time brings,
// and that a refusal is too old.
type waiting struct {
	mu      sync.Mutex
	queue   *queue.Queue[*waiter]
	pools   map[types.NamespacedName]int
	objects int
	demands demands

	changes atomic.Uint64
	// seen changes, and the moment from which on refusals count.
	seen  uint64
	since time.Time
	// until is when something changes by itself, as far as is known; zero: never.
	until time.Time
}

func (w *waiting) init() {
	w.queue = queue.New[*waiter]()
	w.pools = map[types.NamespacedName]int{}
}

// changed says that what was refused may be accepted now. It is to be called after the change, with or without the lock.
func (w *waiting) changed() { w.changes.Add(1) }

// add puts a waiter at the end.
func (w *waiting) add(id string, v *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	v.shape = shape(v)
	r := &v.request
	if w.queue.Add(&queue.Item[*waiter]{ID: id, Group: r.Lease.Namespace + "/" + v.identity, Holder: r.Holder, Shape: v.shape, Value: v}) {
		w.count(v, 1)
		w.until = earlier(w.until, w.demands.join(v))
	}
}

// remove takes a waiter out; false: it does not wait (any more).
func (w *waiting) remove(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	item := w.queue.Remove(id)
	if item == nil {
		return false
	}
	w.count(item.Value, -1)
	w.demands.leave(item.Value, false)
	return true
}

// pass offers the waiters to serve that may be accepted: all of them after a change, and else those that have come since the
// last pass. For one that serve refuses it gives the moment from which on it may be accepted although nobody says so; zero:
// there is none; cooldown gives the next end of a cooldown. Both are called under the lock. The result is the moment at which
// the next pass has to be made although nothing happens.
func (w *waiting) pass(now time.Time, cooldown func(now time.Time) time.Time, serve func(id string, v *waiter) (ok bool, again time.Time)) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.queue.Len() == 0 {
		return w.demands.expire(now)
	}
	changes := w.changes.Load()
	if changes != w.seen || now.Sub(w.since) >= refusalTTL || !w.until.IsZero() && !w.until.After(now) {
		w.queue.Retry()
		w.seen, w.since, w.until = changes, now, time.Time{}
	}
	refused := false
	w.queue.Pass(func(item *queue.Item[*waiter]) bool {
		ok, again := serve(item.ID, item.Value)
		if !ok {
			refused = true
			w.until = earlier(w.until, again)
			return false
		}
		w.count(item.Value, -1)
		w.demands.leave(item.Value, true)
		return true
	})
	if refused {
		w.until = earlier(w.until, cooldown(now))
	}
	return earlier(w.until, w.demands.expire(now))
}

func (w *waiting) count(v *waiter, n int) {
	if v.served == nil {
		w.objects += n
	}
	if v.pool != "" {
		key := types.NamespacedName{Namespace: v.request.Lease.Namespace, Name: v.pool}
		if w.pools[key] += n; w.pools[key] == 0 {
			delete(w.pools, key)
		}
	}
}

// waits tells since when a lease waits.
func (w *waiting) waits(id string) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if item := w.queue.Get(id); item != nil {
		return item.Value.since, true
	}
	return time.Time{}, false
}

func (w *waiting) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.Len()
}

// lenObjects is how many of those who wait are leases that exist.
func (w *waiting) lenObjects() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects
}

func (w *waiting) lenPool(namespace, pool string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pools[types.NamespacedName{Namespace: namespace, Name: pool}]
}

// shape is equal for waiters that the same proxies can serve.
func shape(v *waiter) string {
	r := &v.request
	selector := r.Selector.String()
	if selector == "" && !r.Selector.Empty() {
		selector = "!" // it selects nothing, and not everything
	}
	excluded := slices.Sorted(slices.Values(r.Excluded))
	return strings.Join([]string{
		r.Lease.Namespace, selector, r.ProxyName, string(r.Mode),
		strings.Join(slices.Sorted(slices.Values(r.Targets)), ","), strings.Join(excluded, ","),
	}, "\x00")
}

// requestOf is what a lease asks for. It fails only for a selector that the schema let through.
func requestOf(lease *v1alpha1.ProxyLease) (r ledger.Request, pool string, err error) {
	r = ledger.Request{
		Lease: client.ObjectKeyFromObject(lease), UID: lease.UID, Holder: lease.Spec.Holder, ProxyName: lease.Spec.ProxyName,
		Selector: labels.Nothing(), // a lease that says nothing must not get everything
		Targets:  lease.Spec.Targets, Mode: lease.Spec.Mode, Excluded: lease.Spec.ExcludedProxyNames,
	}
	switch {
	case lease.Spec.PoolRef != nil:
		pool = lease.Spec.PoolRef.Name
		r.Selector = labels.SelectorFromSet(labels.Set{v1alpha1.LabelPool: pool})
	case lease.Spec.Selector != nil:
		if r.Selector, err = selectorOf(lease.Spec.Selector); err != nil {
			return r, "", err
		}
		pool = lease.Spec.Selector.MatchLabels[v1alpha1.LabelPool]
	}
	return r, pool, nil
}

// enqueue lets a pending lease wait for a proxy. It may be called for one that waits already.
func (a *Allocator) enqueue(lease *v1alpha1.ProxyLease) {
	id := string(lease.UID)
	if _, waits := a.waiting.waits(id); waits {
		return
	}
	request, pool, err := requestOf(lease)
	if err != nil {
		go a.fail(lease, v1alpha1.ReasonInvalidSelector, err.Error())
		return
	}
	now := a.Clock.Now()
	atOnce := false // bound in one pass or not at all
	if seconds := lease.Spec.WaitSeconds; seconds != nil {
		wait := time.Duration(*seconds) * time.Second
		atOnce = wait == 0 && a.Recovered()
		if wait == 0 {
			wait = firstPass
		}
		if _, set := a.deadlines.Get(lease.UID); !set && !atOnce {
			if a.deadlines.Set(expiry.Deadline{Lease: request.Lease, UID: lease.UID, What: expiry.Wait, At: now.Add(wait)}) {
				a.kickDeadlines()
			}
		}
	}
	a.waiting.add(id, &waiter{
		request: request, identity: identityOf(lease.Spec.Holder), pool: pool, ttlSeconds: lease.Spec.TTLSeconds, since: now, polls: atOnce,
	})
	if atOnce {
		a.pass()
		if a.waiting.remove(id) {
			go a.timeOut(request.Lease, lease.UID)
		}
		return
	}
	a.rouse()
}
