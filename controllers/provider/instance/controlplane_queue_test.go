package instance

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// queueWorkers are as many as a manager has for each controller.
const queueWorkers = 8

// queue is what a manager does around its reconcilers, on the clock of the test: requeues, retries, and the events of the
// mirror through the predicates and mappings of production. Time passes only when nothing is left to do at the moment.
type queue struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	// reconcilers by name; what is not there is asleep.
	reconcilers map[string]reconcile.Reconciler
	// provider is the reconciler whose predicates count.
	provider *Reconciler
	workers  int
	// check runs whenever no reconcile is under way.
	check func()

	mu       sync.Mutex
	due      map[queued]time.Time
	failures map[queued]int
	// reconciles that were made, by the name of the reconciler.
	reconciles map[string]int
	waiting    chan time.Time
}

type queued struct {
	reconciler string
	types.NamespacedName
}

// Names of reconcilers in a queue.
const (
	inProvider = "provider"
	inCore     = "core"
	inClass    = "class"
)

// newQueue makes a queue around the bed's reconciler, which reads and writes through a mirror from now on, as the test
// does.
func (s *bed) newQueue() (*queue, *mirror) {
	m := newMirror(s.client)
	s.client = m.client()
	q := &queue{
		t: s.t, clock: s.clock, workers: queueWorkers, check: func() {}, reconcilers: map[string]reconcile.Reconciler{},
		due: map[queued]time.Time{}, failures: map[queued]int{}, reconciles: map[string]int{}, waiting: make(chan time.Time),
	}
	m.changed = q.event
	q.start(s, s.newReconciler(s.client))
	return q, m
}

// start lets a provider manager take over: it looks at everything once, as after a restart.
func (q *queue) start(s *bed, r *Reconciler) {
	s.Reconciler = r
	q.provider, q.reconcilers[inProvider] = r, r
	list := &v1alpha1.ProxyList{}
	s.must(s.client.List(context.Background(), list))
	for i := range list.Items {
		q.add(inProvider, client.ObjectKeyFromObject(&list.Items[i]))
	}
}

// add wakes a reconciler now.
func (q *queue) add(reconciler string, key types.NamespacedName) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.soonest(queued{reconciler, key}, q.clock.Now())
}

// soonest notes when something is due, unless it is sooner. The lock is held.
func (q *queue) soonest(item queued, at time.Time) {
	if now, ok := q.due[item]; !ok || at.Before(now) {
		q.due[item] = at
	}
}

// event wakes who is to be woken by a new version of an object.
func (q *queue) event(before, after client.Object) {
	obj := after
	if obj == nil {
		obj = before
	}
	passes := before == nil || after == nil
	switch obj.(type) {
	case *v1alpha1.Proxy:
		// What core passes on is a matter of its own; here it looks at every change.
		q.add(inCore, client.ObjectKeyFromObject(obj))
		if passes || relevant(q.provider.finalizer).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
			q.add(inProvider, client.ObjectKeyFromObject(obj))
		}
	case *v1alpha1.ProviderClass:
		own := passes || before.GetGeneration() != after.GetGeneration() || before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero()
		if own {
			q.add(inClass, client.ObjectKeyFromObject(obj))
		}
		if passes || classChanged(q.provider.kind).Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
			q.addAll(inProvider, q.provider.proxiesOfClass(context.Background(), obj))
		}
		q.addAll(inCore, q.proxiesThatName(obj.GetName()))
	default:
		q.addAll(inProvider, q.provider.proxiesOfSecret(context.Background(), obj))
		q.addAll(inCore, q.provider.proxiesOfSecret(context.Background(), obj))
	}
}

// proxiesThatName are the Proxies with a class in their specification, bound or not.
func (q *queue) proxiesThatName(class string) (requests []reconcile.Request) {
	list := &v1alpha1.ProxyList{}
	if err := q.provider.Client.List(context.Background(), list); err != nil {
		q.t.Error(err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.Provider == class {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
		}
	}
	return requests
}

func (q *queue) addAll(reconciler string, requests []reconcile.Request) {
	for _, request := range requests {
		q.add(reconciler, request.NamespacedName)
	}
}

// run works until done, and fails the test when that is not within limit; without done it works for that long.
func (q *queue) run(what string, limit time.Duration, done func() bool) {
	q.t.Helper()
	end := q.clock.Now().Add(limit)
	for done == nil || !done() {
		batch, next := q.take()
		switch {
		case len(batch) > 0:
			q.work(batch)
			q.check()
			if !q.clock.Now().After(end) {
				continue
			}
			// The workers waited for the clock, and there is more to do than they can.
			if done != nil && !done() {
				q.t.Fatalf("not within %v: %s", limit, what)
			}
			return
		case next.IsZero() || next.After(end):
			if done != nil {
				q.t.Fatalf("not within %v: %s", limit, what)
			}
			q.clock.SetTime(end)
			return
		default:
			q.clock.SetTime(next)
			q.check()
		}
	}
}

// take gives what is due, the longest first, and when the next is due.
func (q *queue) take() (batch []queued, next time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.clock.Now()
	for item, at := range q.due {
		switch {
		case q.reconcilers[item.reconciler] == nil:
		case !at.After(now):
			batch = append(batch, item)
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	slices.SortFunc(batch, func(a, b queued) int {
		return cmp.Or(q.due[a].Compare(q.due[b]), cmp.Compare(a.reconciler, b.reconciler), cmp.Compare(a.Name, b.Name))
	})
	batch = batch[:min(len(batch), q.workers)]
	for _, item := range batch {
		delete(q.due, item)
	}
	return batch, next
}

// work reconciles a batch, one worker for each. When all of them wait for the clock, it moves.
func (q *queue) work(batch []queued) {
	finished := make(chan struct{})
	for _, item := range batch {
		go func() {
			defer func() { finished <- struct{}{} }()
			q.reconcile(item)
		}()
	}
	var timers []time.Time
	for left := len(batch); left > 0; {
		select {
		case <-finished:
			left--
		case at := <-q.waiting:
			timers = append(timers, at)
		}
		if left > 0 && len(timers) == left {
			at := slices.MinFunc(timers, time.Time.Compare)
			timers = slices.DeleteFunc(timers, func(t time.Time) bool { return !t.After(at) })
			q.clock.SetTime(at)
		}
	}
}

func (q *queue) reconcile(item queued) {
	result, err := q.reconcilers[item.reconciler].Reconcile(context.Background(), reconcile.Request{NamespacedName: item.NamespacedName})
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reconciles[item.reconciler]++
	switch {
	case err != nil:
		q.soonest(item, q.clock.Now().Add(min(retryMin<<min(q.failures[item], 20), retryMax)))
		q.failures[item]++
		return
	case result.RequeueAfter > 0:
		q.soonest(item, q.clock.Now().Add(result.RequeueAfter))
	}
	delete(q.failures, item)
}

// clockOfWorkers is a clock whose timers let the queue know that a worker waits.
type clockOfWorkers struct {
	*clocktesting.FakeClock
	waiting chan<- time.Time
}

func (c clockOfWorkers) NewTimer(d time.Duration) clock.Timer {
	at := c.Now().Add(d)
	timer := c.FakeClock.NewTimer(d)
	c.waiting <- at
	return timer
}

// known are the Proxies that exist; they must not be changed.
func (s *bed) known() map[types.UID]*v1alpha1.Proxy {
	s.t.Helper()
	list := &v1alpha1.ProxyList{}
	s.must(s.client.List(context.Background(), list, client.UnsafeDisableDeepCopy))
	out := map[types.UID]*v1alpha1.Proxy{}
	for i := range list.Items {
		out[list.Items[i].UID] = &list.Items[i]
	}
	return out
}

// every tells whether something holds for all Proxies that exist.
func (s *bed) every(holds func(*v1alpha1.Proxy) bool) bool {
	for px := range maps.Values(s.known()) {
		if !holds(px) {
			return false
		}
	}
	return true
}
