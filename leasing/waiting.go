package leasing

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/queue"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// bindRetry is the pause before a lease is tried again whose grant could not be written.
const bindRetry = time.Second

// firstPass is how long a lease with waitSeconds 0 waits that was found at the start of a leader.
const firstPass = time.Second

var (
	errQueueFull   = errors.New("too many calls wait for a proxy")
	errHolderLimit = errors.New("too many calls of this holder wait for a proxy")
)

// waiter is a lease, or a call for one, that waits.
type waiter struct {
	request ledger.Request
	pool    string
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

// callCounts is how many calls wait, and of which holders. It has no lock of its own.
type callCounts struct {
	all     int
	holders map[string]int
}

// room tells whether one more call of the holder may wait.
func (c *callCounts) room(holder string, limit, perHolder int) error {
	switch {
	case c.all >= limit:
		return errQueueFull
	case c.holders[holder] >= perHolder:
		return errHolderLimit
	}
	return nil
}

func (c *callCounts) add(holder string, n int) {
	if c.holders == nil {
		c.holders = map[string]int{}
	}
	c.all += n
	if c.holders[holder] += n; c.holders[holder] == 0 {
		delete(c.holders, holder)
	}
}

// holderOf is whose turn a lease takes, and whose limit a call counts for.
func holderOf(namespace, holder string) string { return namespace + "/" + holder }

// waiting is the queue behind its lock.
type waiting struct {
	mu             sync.Mutex
	queue          *queue.Queue[*waiter]
	pools          map[types.NamespacedName]int
	calls          callCounts
	max, perHolder int
	demands        demands
}

func (w *waiting) init(limit, perHolder int) {
	w.queue = queue.New[*waiter]()
	w.pools = map[types.NamespacedName]int{}
	w.max, w.perHolder = limit, perHolder
}

// add puts a waiter at the end. Calls are limited; leases that exist are not.
func (w *waiting) add(id string, v *waiter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	holder := holderOf(v.request.Lease.Namespace, v.request.Holder)
	if v.served != nil {
		if err := w.calls.room(holder, w.max, w.perHolder); err != nil {
			return err
		}
	}
	v.shape = shape(v)
	if w.queue.Add(&queue.Item[*waiter]{ID: id, Holder: holder, Shape: v.shape, Value: v}) {
		w.count(v, 1)
		w.demands.join(v)
	}
	return nil
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

// pass offers the waiters to serve. serve is called under the lock.
func (w *waiting) pass(serve func(id string, v *waiter) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue.Retry()
	w.queue.Pass(func(item *queue.Item[*waiter]) bool {
		if !serve(item.ID, item.Value) {
			return false
		}
		w.count(item.Value, -1)
		w.demands.leave(item.Value, true)
		return true
	})
}

// expire ends the demands of calls that did not come again.
func (w *waiting) expire(now time.Time) (again time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.demands.expire(now)
}

func (w *waiting) count(v *waiter, n int) {
	if v.served != nil {
		w.calls.add(holderOf(v.request.Lease.Namespace, v.request.Holder), n)
	}
	if v.pool != "" {
		key := types.NamespacedName{Namespace: v.request.Lease.Namespace, Name: v.pool}
		if w.pools[key] += n; w.pools[key] == 0 {
			delete(w.pools, key)
		}
	}
}

// since tells since when a lease waits.
func (w *waiting) since(id string) (time.Time, bool) {
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

// objects is how many of those who wait are leases that exist.
func (w *waiting) objects() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.queue.Len() - w.calls.all
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
	if _, waits := a.waiting.since(id); waits {
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
	// An error is possible for calls only.
	_ = a.waiting.add(id, &waiter{request: request, pool: pool, ttlSeconds: lease.Spec.TTLSeconds, since: now, polls: atOnce})
	if atOnce {
		a.pass()
		if a.waiting.remove(id) {
			go a.timeOut(request.Lease, lease.UID)
		}
		return
	}
	a.wake()
}

// dispatch serves waiters whenever there may be something for them.
func (a *Allocator) dispatch(ctx context.Context) {
	for {
		next := a.pass()
		if a.waiting.len() > 0 {
			next = earlier(next, a.ledger.NextCooldownEnd(a.Clock.Now()))
		}
		var due <-chan time.Time
		stop := func() bool { return true }
		if !next.IsZero() {
			timer := a.Clock.NewTimer(next.Sub(a.Clock.Now()))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-a.wakeup:
		case <-due:
		case <-ctx.Done():
			stop()
			return
		}
		stop()
	}
}

// pass serves as many waiters as can be served. It gives the moment at which claims of those that were not have to be looked
// at again; zero: there is none.
func (a *Allocator) pass() (again time.Time) {
	if !a.Recovered() {
		return again
	}
	now := a.Clock.Now()
	a.waiting.pass(func(id string, v *waiter) bool {
		reservation, err := a.ledger.Reserve(v.claiming(), now)
		var taken *ledger.TakenError
		switch {
		case err == nil && v.served == nil:
			a.pipeline.Go(func() { a.bind(types.UID(id), v, reservation) })
		case err == nil || v.served != nil && errors.As(err, &taken):
			v.served <- served{reservation, err}
		case errors.As(err, &taken) && taken.Lease.UID == types.UID(id):
			// The lease has been served already.
		default:
			// Also while a call holds a slot under the lease's name: one of the two will be refused.
			again = earlier(again, a.claim(v, now))
			return false
		}
		a.waiting.demands.served(v, now)
		return true
	})
	return earlier(again, a.waiting.expire(now))
}

// bind writes the grant of a lease that exists.
func (a *Allocator) bind(uid types.UID, v *waiter, r ledger.Reservation) {
	ctx := a.pipeline.Base
	ttl, err := a.ttl(ctx, r.Proxy, v.ttlSeconds)
	if err != nil {
		a.ledger.Cancel(r)
	} else {
		lease, bindErr := a.pipeline.Bind(ctx, uid, r, ttl)
		if bindErr == nil {
			a.track(lease)
			a.metrics.grants.WithLabelValues(pathCR).Inc()
			a.metrics.duration.WithLabelValues(pathCR).Observe(a.Clock.Since(v.since).Seconds())
			return
		}
		err = bindErr
	}
	if errors.Is(err, grant.ErrGone) || ctx.Err() != nil {
		a.wake()
		return
	}
	a.Log.Error(err, "Grant a lease", "lease", r.Lease, "proxy", r.Binding.ProxyName)
	timer := a.Clock.NewTimer(bindRetry)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
		return
	}
	// What became of the lease is read again before it waits again.
	a.chores.Add(chore{what: requeue, key: r.Lease, uid: uid})
}

// ttl is the TTL that a lease of this proxy gets, in seconds.
func (a *Allocator) ttl(ctx context.Context, px *v1alpha1.Proxy, wish int32) (int32, error) {
	bounds, err := a.bounds(ctx, px)
	if err != nil {
		return 0, err
	}
	return record.ClampTTL(wish, bounds), nil
}
