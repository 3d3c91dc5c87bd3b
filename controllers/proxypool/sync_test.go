package proxypool

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
)

// faults are what goes wrong with calls of the reconciler.
type faults struct {
	create func(n int64) (take bool, err error)
	count  atomic.Int64
}

func newFakePool(t *testing.T, pool *v1alpha1.ProxyPool, f *faults) (*Reconciler, client.Client, *testingclock.FakePassiveClock) {
	t.Helper()
	clk := testingclock.NewFakePassiveClock(start)
	c := fake.NewClientBuilder().WithScheme(manager.Scheme()).
		WithStatusSubresource(&v1alpha1.ProxyPool{}, &v1alpha1.Proxy{}).
		WithIndex(&v1alpha1.Proxy{}, indexOwner, byOwner).
		WithObjects(pool).
		WithInterceptorFuncs(interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			n := f.count.Add(1)
			if f.create == nil {
				return c.Create(ctx, obj, opts...)
			}
			take, failure := f.create(n)
			if take {
				if err := c.Create(ctx, obj.DeepCopyObject().(client.Object), opts...); err != nil {
					return err
				}
			}
			if take && failure == nil {
				return c.Get(ctx, client.ObjectKeyFromObject(obj), obj)
			}
			return failure
		}}).Build()
	return &Reconciler{Options: Options{Clock: clk}, Client: c, APIReader: c, Recorder: events.NewFakeRecorder(1000)}, c, clk
}

func reconcilePool(t *testing.T, r *Reconciler, pool *v1alpha1.ProxyPool) (reconcile.Result, error) {
	t.Helper()
	return r.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(pool)})
}

func countProxies(t *testing.T, c client.Client) int {
	t.Helper()
	list := &v1alpha1.ProxyList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// refusedAgain reconciles a pool that the API server refuses members, and says when that is tried again.
func refusedAgain(t *testing.T, r *Reconciler, c client.Client, pool *v1alpha1.ProxyPool) time.Duration {
	t.Helper()
	result, err := reconcilePool(t, r, pool)
	if err != nil || result.RequeueAfter == 0 {
		t.Fatalf("%+v %v, want another try", result, err)
	}
	fresh := &v1alpha1.ProxyPool{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), fresh); err != nil {
		t.Fatal(err)
	}
	if ready := meta.FindStatusCondition(fresh.Status.Conditions, v1alpha1.ConditionReady); ready == nil || !strings.Contains(ready.Message, "exceeded quota") {
		t.Fatalf("Ready says %+v", ready)
	}
	return result.RequeueAfter
}

// A quota is met by a few creates and not by all of them, and the pool grows on when there is room again.
func TestP18_RefusedCreatesStopEarly(t *testing.T) {
	pool := newPool(100)
	quota := true
	f := &faults{create: func(n int64) (bool, error) {
		if quota && n > 5 {
			return false, apierrors.NewForbidden(v1alpha1.Resource("proxies"), "p", errors.New("exceeded quota"))
		}
		return true, nil
	}}
	r, c, _ := newFakePool(t, pool, f)
	if refusedAgain(t, r, c, pool) > lastRetry {
		t.Fatal("it is not tried again soon")
	}
	// 1, 2 and 4.
	if got := f.count.Load(); got != 7 {
		t.Errorf("%d creates were tried, want 7", got)
	}
	if got := countProxies(t, c); got != 5 {
		t.Errorf("%d proxies, want 5", got)
	}
	before := f.count.Load()
	first := refusedAgain(t, r, c, pool)
	if got := f.count.Load() - before; got != 1 {
		t.Errorf("%d creates were tried again, want 1", got)
	}
	for range 20 {
		refusedAgain(t, r, c, pool)
	}
	// Ever more rarely, and never so rarely that the pool's own clock stands still.
	if last := refusedAgain(t, r, c, pool); last < 4*first || last > lastRetry {
		t.Errorf("tried again after %v at first and %v later", first, last)
	}
	quota = false
	if _, err := reconcilePool(t, r, pool); err != nil {
		t.Fatal(err)
	}
	if got := countProxies(t, c); got != 100 {
		t.Errorf("%d proxies, want 100", got)
	}
}

// However large the batches have become: once one create is refused, those that run are the last.
func TestP18_RefusalsEndALargeBatch(t *testing.T) {
	pool := newPool(500)
	f := &faults{create: func(n int64) (bool, error) {
		if n > 300 {
			return false, apierrors.NewForbidden(v1alpha1.Resource("proxies"), "p", errors.New("exceeded quota"))
		}
		return true, nil
	}}
	r, c, _ := newFakePool(t, pool, f)
	refusedAgain(t, r, c, pool)
	if tried, made := f.count.Load(), countProxies(t, c); tried > 300+2*maxBatch || made != 300 {
		t.Errorf("%d creates were tried and %d took effect, want few after 300", tried, made)
	}
}

// A create whose answer is lost took effect, and its proxy is found and not made twice.
func TestLostAnswersOfCreates(t *testing.T) {
	pool := newPool(10)
	f := &faults{create: func(n int64) (bool, error) {
		if n%3 == 0 {
			return true, apierrors.NewTimeoutError("lost", 1)
		}
		return true, nil
	}}
	r, c, _ := newFakePool(t, pool, f)
	for range 20 {
		if _, err := reconcilePool(t, r, pool); err == nil && countProxies(t, c) == 10 {
			break
		}
	}
	if got, tried := countProxies(t, c), f.count.Load(); got != 10 || tried != 10 {
		t.Errorf("%d proxies by %d creates, want 10 by 10", got, tried)
	}
}

type leases struct {
	known           bool
	leased, pending int32
	held            map[types.UID]int
}

func (l *leases) CountLeases(uid types.UID) (int, bool) { return l.held[uid], l.known }

func (l *leases) Emptied(_ types.NamespacedName, uid types.UID) bool {
	return l.known && l.held[uid] == 0
}

func (l *leases) PoolCounts(_, _ string) (leased, pending int32, known bool) {
	return l.leased, l.pending, l.known
}

func TestNothingIsDeletedWhileLeasesAreUnknown(t *testing.T) {
	pool := newPool(3)
	r, c, clk := newFakePool(t, pool, &faults{})
	l := &leases{held: map[types.UID]int{}, known: true}
	r.Leases = l
	if _, err := reconcilePool(t, r, pool); err != nil {
		t.Fatal(err)
	}
	l.known = false
	scaled := &v1alpha1.ProxyPool{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), scaled); err != nil {
		t.Fatal(err)
	}
	*scaled.Spec.Replicas = 1
	if err := c.Update(t.Context(), scaled); err != nil {
		t.Fatal(err)
	}
	result, err := reconcilePool(t, r, pool)
	if err != nil || countProxies(t, c) != 3 || result.RequeueAfter != unknownLeasesRequeue {
		t.Errorf("%d proxies, requeue after %s, error %v", countProxies(t, c), result.RequeueAfter, err)
	}

	// Known again: the leased one stays. Counts reach the status at most every 10 s.
	list := &v1alpha1.ProxyList{}
	if err := c.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	leased := list.Items[0]
	l.known, l.leased, l.pending, l.held[leased.UID] = true, 1, 4, 1
	status := func() v1alpha1.ProxyPoolStatus {
		if _, err := reconcilePool(t, r, pool); err != nil {
			t.Fatal(err)
		}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), scaled); err != nil {
			t.Fatal(err)
		}
		return scaled.Status
	}
	if got := status(); got.Leased != 0 || got.Pending != 0 {
		t.Errorf("leased %d and pending %d within 10 s of the last count", got.Leased, got.Pending)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(&leased), &leased); err != nil || countProxies(t, c) != 1 {
		t.Errorf("the leased proxy: %v, of %d", err, countProxies(t, c))
	}
	clk.SetTime(start.Add(countInterval))
	if got := status(); got.Leased != 1 || got.Pending != 4 {
		t.Errorf("leased %d and pending %d, want 1 and 4", got.Leased, got.Pending)
	}
}

// The cache swallows an event for good: the pool finds out by itself, within the visibility timeout.
func TestP10_LostEventDoesNotWedge(t *testing.T) {
	pool := newPool(2)
	r, c, clk := newFakePool(t, pool, &faults{})
	if _, err := reconcilePool(t, r, pool); err != nil {
		t.Fatal(err)
	}
	mem := r.memories.of(pool)
	// A member that was made and deleted again before the cache ever showed it.
	ghost := memberOf(pool, "ghost")
	mem.noteCreated(ghost, clk.Now())
	result, err := reconcilePool(t, r, pool)
	if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > visibilityTimeout {
		t.Fatalf("requeue after %s, error %v", result.RequeueAfter, err)
	}
	clk.SetTime(start.Add(visibilityTimeout + time.Second))
	for range 2 {
		if _, err := reconcilePool(t, r, pool); err != nil {
			t.Fatal(err)
		}
	}
	if got := countProxies(t, c); got != 2 || mem.pending() {
		t.Errorf("%d proxies, want 2, pending %v", got, mem.pending())
	}
}

// TestRequeueIsBoundedWhileLeasesAreUnknown: a pool that waits for leasing to recover asks again after a while, not at once.
func TestRequeueIsBoundedWhileLeasesAreUnknown(t *testing.T) {
	r := &Reconciler{Options: Options{Leases: &leases{}}}
	for name, counted := range map[string]time.Time{"never counted": {}, "counted long ago": start.Add(-time.Hour)} {
		if got := r.requeue(&memory{countedTime: counted}, Plan{}, start, false, false); got != unknownLeasesRequeue {
			t.Errorf("%s: again after %v, want %v", name, got, unknownLeasesRequeue)
		}
	}
	if got := r.requeue(&memory{countedTime: start.Add(-4 * time.Second)}, Plan{}, start, false, false); got != countInterval-4*time.Second {
		t.Errorf("counted just now: again after %v", got)
	}
}

// What fails again and again, conflicts included, is tried ever more rarely; and a former member that cannot be released keeps
// neither the others nor the pool from going on.
func TestFailingCallsHoldUpNothingElse(t *testing.T) {
	conflict := apierrors.NewConflict(v1alpha1.Resource("proxies"), "p", errors.New("changed"))
	for name, failure := range map[string]error{
		"conflict":  conflict,
		"not found": apierrors.NewNotFound(v1alpha1.Resource("proxies"), "p"),
		"refused":   apierrors.NewForbidden(v1alpha1.Resource("proxies"), "p", errors.New("no")),
	} {
		pool := newPool(2)
		f := &faults{create: func(int64) (bool, error) { return false, failure }}
		r, _, _ := newFakePool(t, pool, f)
		var waits []time.Duration
		for range 12 {
			result, err := reconcilePool(t, r, pool)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			waits = append(waits, result.RequeueAfter)
		}
		if waits[0] > 2*firstRetry || waits[11] != lastRetry {
			t.Errorf("%s: tried again after %v", name, waits)
		}
		f.create = nil
		if result, err := reconcilePool(t, r, pool); err != nil || result.RequeueAfter > 0 && result.RequeueAfter < lastRetry {
			t.Errorf("%s: after a success again in %v, %v", name, result.RequeueAfter, err)
		}
	}
}

func TestFormerMemberThatCannotBeReleasedHoldsUpNothing(t *testing.T) {
	pool := newPool(2)
	r, c, _ := newFakePool(t, pool, &faults{})
	var stuck, free *v1alpha1.Proxy
	for _, name := range []string{"a-stuck", "b-free"} {
		px := newProxy(pool, name, "abcdefgh")
		px.OwnerReferences = nil
		if err := c.Create(t.Context(), px); err != nil {
			t.Fatal(err)
		}
		stuck, free = cmp.Or(stuck, px), px
	}
	refusing := interceptor.NewClient(c.(client.WithWatch), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if obj.GetName() == stuck.Name {
				return apierrors.NewForbidden(v1alpha1.Resource("proxies"), stuck.Name, errors.New("no"))
			}
			return c.Patch(ctx, obj, patch, opts...)
		},
	})
	r.Client = refusing
	result, err := reconcilePool(t, r, pool)
	if err != nil || result.RequeueAfter == 0 || result.RequeueAfter > lastRetry {
		t.Errorf("again after %v, %v", result.RequeueAfter, err)
	}
	if got := countProxies(t, c); got != 4 {
		t.Errorf("%d proxies, want the pool's 2 and the former ones", got)
	}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(free), free); err != nil || formerMember(free) != "" {
		t.Errorf("the other former member is still made up as one: %v %v", free.Labels, err)
	}
}
