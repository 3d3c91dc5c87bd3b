package proxypool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/objpatch"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
)

const (
	// maxBatch is the most calls of one kind that run at the same time for one pool. Creates begin with one and double, so
	// that a refusal is met once and not a hundred times.
	maxBatch = 16
	// maxUnchecked is the most creates between two looks at whether the pool still wants them.
	maxUnchecked = 4 * maxBatch
	// countInterval is how rarely the status counts leases: they change far more often than anybody reads them.
	countInterval = 10 * time.Second
	// unknownLeasesRequeue is how soon a pool that must delete something asks again for the leases, while leasing recovers
	// them after a restart. Until then nothing is deleted: it could be the wrong one.
	unknownLeasesRequeue = time.Second
	// listPage bounds one answer of the API server. Unit: objects.
	listPage = 500
)

// Reasons and actions of events.
const (
	eventCreated      = "ProxiesCreated"
	eventCreateFailed = "CreateFailed"
	eventDeleted      = "ProxyDeleted"
	eventDraining     = "ProxyDraining"
	eventKept         = "ProxyKept"

	actionScale = "Scale"
)

var (
	// errStopped ends a series of creates because the pool is being deleted.
	errStopped = errors.New("the pool is being deleted")
	// errOutdated ends what a plan does because the pool is no longer what the plan was made from: somebody asked for
	// something else, or another leader works.
	errOutdated = errors.New("the pool has changed")
)

// Reconcile brings one pool a step on and writes its status. It tries again by itself what fails, ever more rarely.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	// A former member that cannot be released is not the pool's fault, which goes on without it.
	releaseErr := r.release(ctx, req.NamespacedName)
	next, err := r.bringOn(ctx, req.NamespacedName)
	if err = errors.Join(releaseErr, err); err == nil {
		r.failures.forget(req.NamespacedName)
		return reconcile.Result{RequeueAfter: next}, nil
	}
	retry := r.failures.next(req.NamespacedName)
	if outdated(err) {
		log.FromContext(ctx).V(1).Info("A pool was looked at with outdated data; tried again", "reason", err.Error(), "after", retry)
	} else {
		log.FromContext(ctx).Error(err, "A pool could not be brought on as planned; tried again", "after", retry)
	}
	if next == 0 || retry < next {
		next = retry
	}
	return reconcile.Result{RequeueAfter: next}, nil
}

// outdated tells whether an error only says that somebody else was faster.
func outdated(err error) bool {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return !slices.ContainsFunc(joined.Unwrap(), func(one error) bool { return !outdated(one) })
	}
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || errors.Is(err, errOutdated)
}

// bringOn is when to look again without an event; 0 for not at all. It says that beside an error, too.
func (r *Reconciler) bringOn(ctx context.Context, key types.NamespacedName) (time.Duration, error) {
	pool := &v1alpha1.ProxyPool{}
	if err := r.Client.Get(ctx, key, pool); err != nil {
		if apierrors.IsNotFound(err) {
			r.memories.forget(key)
			r.forgetDemand(key)
			r.reports.forget(key)
			return 0, nil
		}
		return 0, fmt.Errorf("get pool %s: %w", key, err)
	}
	return r.sync(ctx, pool)
}

func (r *Reconciler) sync(ctx context.Context, pool *v1alpha1.ProxyPool) (time.Duration, error) {
	mem := r.memories.of(pool)
	cached, err := r.cachedMembers(ctx, pool)
	if err != nil {
		return 0, err
	}
	key := client.ObjectKeyFromObject(pool)
	in := Input{Pool: pool, Now: r.Clock.Now(), Reports: func(uid types.UID) []Report { return r.reports.of(key, uid) }}
	leasesKnown := r.countLeases(mem, &in)
	plan := r.plan(mem, cached, &in)
	r.reports.keep(key, in.Members)
	if mem.doubtful(in.Now) && (plan.acts() || mem.pending()) {
		live, err := r.liveMembers(ctx, pool)
		if err != nil {
			return 0, err
		}
		mem.verify(cached, live, in.Now)
		plan = r.plan(mem, cached, &in)
	}
	waiting := len(plan.Deletes)+len(plan.Drains) > 0 && !leasesKnown
	if waiting {
		plan.Deletes, plan.Drains = nil, nil
	}
	collisions, actErr := r.act(ctx, mem, pool, plan)
	if errors.Is(actErr, errStopped) {
		// The cached pool is outdated; its event is on the way.
		return 0, nil
	}
	if errors.Is(actErr, errOutdated) {
		return 0, actErr
	}
	in.Collisions = collisions
	final := r.plan(mem, cached, &in)
	next := r.requeue(mem, final, in.Now, waiting, collisions > 0)
	if err := statusapply.Whole(ctx, r.Client, v1alpha1.ManagerCore, pool, &pool.Status, &final.Status); err != nil {
		if apierrors.IsNotFound(err) {
			// The pool went meanwhile; its event is on the way.
			return 0, actErr
		}
		return next, errors.Join(actErr, err)
	}
	return next, actErr
}

func (p *Plan) acts() bool {
	return len(p.Creates)+len(p.Deletes)+len(p.Drains)+len(p.Undrains)+len(p.Updates) > 0
}

func (r *Reconciler) plan(mem *memory, cached []*v1alpha1.Proxy, in *Input) Plan {
	in.Members = mem.view(cached, in.Now)
	in.Deleted = mem.deleted
	in.Blocked, in.Refused = mem.blockedNames(), cmp.Or(mem.refused, mem.unchanged)
	return MakePlan(*in)
}

// requeue is when to look again without an event; 0 for not at all.
func (r *Reconciler) requeue(mem *memory, plan Plan, now time.Time, waiting, collided bool) time.Duration {
	next := plan.Recheck
	in := func(d time.Duration) {
		if d = max(d, time.Millisecond); next == 0 || d < next {
			next = d
		}
	}
	if r.Leases != nil {
		due := mem.countedTime.Add(countInterval).Sub(now)
		if due <= 0 {
			// It was due and could not be told, as while leases are being recovered.
			due = unknownLeasesRequeue
		}
		in(due)
	}
	if !mem.overdue.IsZero() {
		in(mem.overdue.Sub(now))
	}
	if waiting {
		in(unknownLeasesRequeue)
	}
	if collided {
		in(firstRetry)
	}
	return next
}

// countLeases fills in what leasing knows. It returns false while leasing does not know who holds what.
func (r *Reconciler) countLeases(mem *memory, in *Input) bool {
	in.Leased, in.Pending = in.Pool.Status.Leased, in.Pool.Status.Pending
	if r.Leases == nil {
		return true
	}
	in.Leases = func(uid types.UID) int {
		n, _ := r.Leases.CountLeases(uid)
		return n
	}
	in.Emptied = func(px *v1alpha1.Proxy) bool { return r.Leases.Emptied(client.ObjectKeyFromObject(px), px.UID) }
	leased, pending, known := r.Leases.PoolCounts(in.Pool.Namespace, in.Pool.Name)
	if known {
		r.setDemand(client.ObjectKeyFromObject(in.Pool), leased, pending)
	}
	if known && !in.Now.Before(mem.countedTime.Add(countInterval)) {
		in.Leased, in.Pending = leased, pending
		mem.countedTime = in.Now
	}
	return known
}

func (r *Reconciler) cachedMembers(ctx context.Context, pool *v1alpha1.ProxyPool) ([]*v1alpha1.Proxy, error) {
	list := &v1alpha1.ProxyList{}
	// A plan changes no member, so the cache's own objects will do.
	err := r.Client.List(ctx, list, client.InNamespace(pool.Namespace), client.MatchingFields{indexOwner: string(pool.UID)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list members of pool %s/%s: %w", pool.Namespace, pool.Name, err)
	}
	return owned(nil, list, pool), nil
}

// liveMembers asks the API server. It does not select by label, since anybody may have taken a label away.
func (r *Reconciler) liveMembers(ctx context.Context, pool *v1alpha1.ProxyPool) (liveView, error) {
	var out liveView
	for next := ""; ; {
		list := &v1alpha1.ProxyList{}
		err := r.APIReader.List(ctx, list, client.InNamespace(pool.Namespace), client.Limit(listPage), client.Continue(next))
		if err != nil {
			return liveView{}, fmt.Errorf("list members of pool %s/%s at the API server: %w", pool.Namespace, pool.Name, err)
		}
		// All pages are of one version.
		out.members, out.version = owned(out.members, list, pool), list.ResourceVersion
		if next = list.Continue; next == "" {
			return out, nil
		}
	}
}

// owned appends the Proxies of list whose controller is the pool itself, not a namesake.
func owned(out []*v1alpha1.Proxy, list *v1alpha1.ProxyList, pool *v1alpha1.ProxyPool) []*v1alpha1.Proxy {
	for i := range list.Items {
		if owner := metav1.GetControllerOfNoCopy(&list.Items[i]); owner != nil && owner.UID == pool.UID {
			out = append(out, &list.Items[i])
		}
	}
	return out
}

// act does what the plan says. It returns how many names were found to be held by something else.
func (r *Reconciler) act(ctx context.Context, mem *memory, pool *v1alpha1.ProxyPool, plan Plan) (collisions int32, err error) {
	if len(plan.Deletes)+len(plan.Drains) > 0 {
		// A leader that was held up must not judge by an old number what its successor has made. While two leaders work,
		// each write of the other's makes the plan old.
		fresh, err := r.checkPool(ctx, pool)
		if err != nil {
			return 0, err
		}
		if fresh.ResourceVersion != pool.ResourceVersion {
			return 0, errOutdated
		}
	}
	if len(plan.Creates) == 0 {
		mem.refused = ""
	}
	var mu sync.Mutex
	deleteErr := inBatches(plan.Deletes, maxBatch, func(d Delete) error {
		// The UID keeps a re-created namesake safe. The object of the plan belongs to the cache.
		victim := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: d.Proxy.Namespace, Name: d.Proxy.Name, UID: d.Proxy.UID}}
		err := r.Client.Delete(ctx, victim, client.Preconditions{UID: &victim.UID})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return fmt.Errorf("delete member %s: %w", d.Proxy.Name, err)
		}
		mu.Lock()
		mem.noteDeleted(d.Proxy.UID, r.Clock.Now())
		mu.Unlock()
		r.Recorder.Eventf(pool, d.Proxy, corev1.EventTypeNormal, eventDeleted, actionScale, "Deleted proxy %s: %s", d.Proxy.Name, d.Reason)
		return nil
	})
	mem.unchanged = ""
	update := func(u Update) (done bool, err error) {
		// The patch answers into its object, and that of the plan belongs to the cache.
		px := u.Proxy.DeepCopy()
		if err := objpatch.Apply(ctx, r.Client, px, u.Ops...); err != nil {
			if apierrors.IsNotFound(err) {
				return false, nil
			}
			return false, fmt.Errorf("update member %s: %w", u.Proxy.Name, err)
		}
		mu.Lock()
		defer mu.Unlock()
		mem.notePatched(u.Proxy.ResourceVersion, px)
		return true, nil
	}
	updateErr := errors.Join(
		inBatches(plan.Undrains, maxBatch, func(u Update) error {
			done, err := update(u)
			if done {
				r.Recorder.Eventf(pool, u.Proxy, corev1.EventTypeNormal, eventKept, actionScale, "Kept proxy %s, which was being drained", u.Proxy.Name)
			}
			return err
		}),
		inBatches(plan.Drains, maxBatch, func(u Update) error {
			done, err := update(u)
			if done {
				why := "which is leased"
				if u.Patient {
					why = "which goes without leases"
				}
				r.Recorder.Eventf(pool, u.Proxy, corev1.EventTypeNormal, eventDraining, actionScale, "Draining proxy %s, %s: %s", u.Proxy.Name, why, u.Reason)
			}
			return err
		}),
		inBatches(plan.Updates, maxBatch, func(u Update) error {
			_, err := update(u)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && !apierrors.IsConflict(err) {
				mem.unchanged = err.Error()
			}
			return err
		}),
	)
	collisions, createErr := r.create(ctx, mem, pool, plan)
	return collisions, errors.Join(createErr, deleteErr, updateErr)
}

// checkPool reads the pool from the API server: it must still ask for what the plan was made from.
func (r *Reconciler) checkPool(ctx context.Context, pool *v1alpha1.ProxyPool) (*v1alpha1.ProxyPool, error) {
	fresh := &v1alpha1.ProxyPool{}
	err := r.APIReader.Get(ctx, client.ObjectKeyFromObject(pool), fresh)
	switch {
	case apierrors.IsNotFound(err), err == nil && (fresh.UID != pool.UID || !fresh.DeletionTimestamp.IsZero()):
		return nil, errStopped
	case err != nil:
		return nil, fmt.Errorf("get pool %s/%s at the API server: %w", pool.Namespace, pool.Name, err)
	case fresh.Generation != pool.Generation:
		return nil, errOutdated
	}
	return fresh, nil
}
