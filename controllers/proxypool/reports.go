package proxypool

import (
	"context"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/cooldown"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What holders report of members is read off their leases, which have it in their status whichever way it came. A lease
// that was given back is gone, so what it said is remembered here. A manager that starts knows of the leases that are still
// there only, and takes their reports to be as old as the lease.

const (
	// DefaultReportWindow is the API's default of spec.recycle.afterReports.windowSeconds.
	DefaultReportWindow = time.Hour
	// DefaultDistinctHolders is the API's default of spec.recycle.afterReports.distinctHolders.
	DefaultDistinctHolders = 2
	// maxReports bounds what is remembered of one proxy; it is the greatest number that a pool can ask for.
	maxReports = 1000
)

// Report is that a holder was refused by a target at which it used a proxy.
type Report struct {
	Holder string
	Time   time.Time
}

// reported is one report: a lease says the same of a target only once.
type reported struct {
	lease  types.UID
	target string
	Report
}

// reports are those on the proxies of each pool.
type reports struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]map[types.UID][]reported
}

// note remembers a report and tells whether it is new.
func (rs *reports) note(pool types.NamespacedName, proxy types.UID, r reported) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	known := rs.pools[pool][proxy]
	if slices.ContainsFunc(known, func(k reported) bool { return k.lease == r.lease && k.target == r.target }) {
		return false
	}
	if rs.pools == nil {
		rs.pools = map[types.NamespacedName]map[types.UID][]reported{}
	}
	if rs.pools[pool] == nil {
		rs.pools[pool] = map[types.UID][]reported{}
	}
	known = append(known, r)
	rs.pools[pool][proxy] = known[max(0, len(known)-maxReports):]
	return true
}

// of a proxy.
func (rs *reports) of(pool types.NamespacedName, proxy types.UID) []Report {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	var out []Report
	for _, r := range rs.pools[pool][proxy] {
		out = append(out, r.Report)
	}
	return out
}

// keep forgets proxies of a pool that are not among its members.
func (rs *reports) keep(pool types.NamespacedName, members []*v1alpha1.Proxy) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	of := rs.pools[pool]
	if len(of) == 0 {
		return
	}
	left := make(map[types.UID][]reported, len(of))
	for _, px := range members {
		if known, ok := of[px.UID]; ok {
			left[px.UID] = known
		}
	}
	rs.pools[pool] = left
}

func (rs *reports) forget(pool types.NamespacedName) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.pools, pool)
}

// leaseReported tells whether a lease says something new about its proxy.
func leaseReported(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.ProxyLease)
	after, ok2 := e.ObjectNew.(*v1alpha1.ProxyLease)
	return ok && ok2 && len(after.Status.ObservedReports) > 0 && !slices.Equal(before.Status.ObservedReports, after.Status.ObservedReports)
}

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// leaseHandler takes in what leases report. What a lease says when it is first seen may be as old as the lease.
func (r *Reconciler) leaseHandler() handler.EventHandler {
	take := func(ctx context.Context, object client.Object, at func(*v1alpha1.ProxyLease) time.Time, q queue) {
		if lease, ok := object.(*v1alpha1.ProxyLease); ok {
			for _, pool := range r.takeReports(ctx, lease, at(lease)) {
				q.Add(reconcile.Request{NamespacedName: pool})
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			take(ctx, e.Object, func(lease *v1alpha1.ProxyLease) time.Time {
				if bound := lease.Status.BoundTime; bound != nil {
					return bound.Time
				}
				return lease.CreationTimestamp.Time
			}, q)
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			take(ctx, e.ObjectNew, func(*v1alpha1.ProxyLease) time.Time { return r.Clock.Now() }, q)
		},
	}
}

// takeReports remembers what a lease reports and names the pool that has to know.
func (r *Reconciler) takeReports(ctx context.Context, lease *v1alpha1.ProxyLease, at time.Time) []types.NamespacedName {
	binding, bound := record.BindingOf(lease)
	if !bound || len(lease.Status.ObservedReports) == 0 {
		return nil
	}
	px := &v1alpha1.Proxy{}
	if err := r.Client.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: binding.ProxyName}, px); err != nil {
		if !apierrors.IsNotFound(err) {
			log.FromContext(ctx).Error(err, "Read the proxy of a lease that has reports", "lease", client.ObjectKeyFromObject(lease))
		}
		return nil
	}
	owner := metav1.GetControllerOfNoCopy(px)
	if px.UID != binding.ProxyUID || owner == nil || owner.Kind != "ProxyPool" {
		return nil
	}
	pool := types.NamespacedName{Namespace: lease.Namespace, Name: owner.Name}
	fresh := false
	for _, observed := range lease.Status.ObservedReports {
		if cooldown.Cools(v1alpha1.ReportResult(observed.Result)) {
			said := reported{lease: lease.UID, target: observed.Target, Report: Report{Holder: lease.Spec.Holder, Time: at}}
			fresh = r.reports.note(pool, px.UID, said) || fresh
		}
	}
	if !fresh {
		return nil
	}
	return []types.NamespacedName{pool}
}

// badlyReported tells whether enough holders have reported a member often enough.
func (m *member) badlyReported(recycle *v1alpha1.PoolRecycle, now time.Time) bool {
	if recycle == nil || recycle.AfterReports == nil || recycle.AfterReports.Count < 1 {
		return false
	}
	rule := recycle.AfterReports
	window, holders := seconds(rule.WindowSeconds, DefaultReportWindow), DefaultDistinctHolders
	if rule.DistinctHolders != nil {
		holders = int(*rule.DistinctHolders)
	}
	count, distinct := 0, map[string]bool{}
	for _, r := range m.reports {
		if r.Time.After(now.Add(-window)) {
			count++
			distinct[r.Holder] = true
		}
	}
	return count >= int(rule.Count) && len(distinct) >= holders
}
