package proxylease

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	lease := &v1alpha1.ProxyLease{}
	if err := r.Client.Get(ctx, req.NamespacedName, lease); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !r.Allocator.Recovered() {
		return ctrl.Result{RequeueAfter: recoveryPoll}, nil
	}
	switch {
	case !lease.DeletionTimestamp.IsZero():
		return ctrl.Result{}, nil
	case record.Finished(lease):
		return r.finished(ctx, lease)
	case record.Pending(lease):
		return r.pending(ctx, lease)
	default:
		return r.bound(ctx, lease)
	}
}

// finished takes in what the holder still had to report. The allocator deletes the lease when its time is over.
func (r *Reconciler) finished(ctx context.Context, lease *v1alpha1.ProxyLease) (ctrl.Result, error) {
	_, err := r.takeReports(ctx, lease, nil)
	return ctrl.Result{}, err
}

// pending says on a lease that it waits, and why.
func (r *Reconciler) pending(ctx context.Context, lease *v1alpha1.ProxyLease) (ctrl.Result, error) {
	since, waits := r.Allocator.Enqueue(lease)
	if !waits {
		// It is being granted; should that fail it is not forgotten.
		return ctrl.Result{RequeueAfter: waitingRefresh}, nil
	}
	if early := waitingNotice - r.Clock.Since(since); early > 0 {
		return ctrl.Result{RequeueAfter: early}, nil
	}
	reason, message := r.Allocator.WhyWaiting(ctx, lease)
	err := r.Allocator.WriteStatus(ctx, lease, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		if !record.Pending(l) {
			return nil
		}
		return record.Waiting(l, reason, message, r.Clock.Now())
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("say why a lease waits: %w", err)
	}
	return ctrl.Result{RequeueAfter: waitingRefresh}, nil
}

// bound follows a lease's proxy and its holder.
func (r *Reconciler) bound(ctx context.Context, lease *v1alpha1.ProxyLease) (ctrl.Result, error) {
	px, err := r.proxyOf(ctx, r.Client, lease)
	if err != nil {
		return ctrl.Result{}, err
	}
	now := r.Clock.Now()
	verdict := judge(lease, px, now)
	if verdict.Reason != "" {
		// The cache may be older than the grant; nobody loses a lease because of that.
		if px, err = r.proxyOf(ctx, r.Live, lease); err != nil {
			return ctrl.Result{}, err
		}
		verdict = judge(lease, px, now)
	}
	if verdict.Reason == "" && lease.Spec.Mode == v1alpha1.LeaseExclusive {
		taken, err := r.Allocator.EnsureExclusive(ctx, lease)
		if err != nil {
			return ctrl.Result{}, fmt.Errorf("claim a proxy: %w", err)
		}
		if taken {
			verdict.Reason, verdict.Message = v1alpha1.ReasonConflict, "Another exclusive lease holds the proxy"
		}
	}
	// Before the lease may end: what was seen through the proxy stays true.
	reported, err := r.takeReports(ctx, lease, px)
	if err != nil {
		return ctrl.Result{}, err
	}
	if verdict.Reason != "" {
		if err := r.Allocator.Revoke(ctx, lease, verdict.Reason, verdict.Message); err != nil {
			return ctrl.Result{}, err
		}
		return ctrl.Result{}, nil
	}
	// A lease granted by HTTP has no status for a while: it costs a write that most of them do not live to need.
	if lease.Status.ProxyRef == nil && !reported && !record.RenewalPending(lease) {
		if early := mirrorDelay - now.Sub(lease.CreationTimestamp.Time); early > 0 {
			return again(now, verdict.Again, now.Add(early)), nil
		}
		if !r.mirrors.Allow() {
			return again(now, verdict.Again, now.Add(mirrorDelay)), nil
		}
	}
	mirrorRenewalAt := r.renewalDue(lease)
	overcommitted := r.Allocator.Overcommitted(lease)
	err = r.Allocator.WriteStatus(ctx, lease, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		if !record.Holds(l) {
			return nil
		}
		status := record.Followed(l, px, overcommitted, now)
		if record.RenewalPending(l) && !mirrorRenewalAt.After(now) {
			if at, ok := r.Allocator.Deadline(l); ok {
				record.ExtendTo(status, l, at)
			}
		}
		return status
	})
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("write the status of a lease: %w", err)
	}
	var look time.Time
	if overcommitted {
		look = now.Add(overcommitRefresh)
	}
	if mirrorRenewalAt.After(now) {
		return again(now, verdict.Again, look, mirrorRenewalAt), nil
	}
	return again(now, verdict.Again, look), nil
}

// renewalDue is when a renewal by spec.renewTime is worth a write; zero when there is nothing to write. Until then it is
// only known to the leader, and another one would count it anew.
func (r *Reconciler) renewalDue(lease *v1alpha1.ProxyLease) time.Time {
	if !record.RenewalPending(lease) {
		return time.Time{}
	}
	return expiry.WorthAt(record.Expiry(lease), record.TTL(lease))
}

// takeReports takes in the reports of a lease's spec, each once: what was taken in is stored with the lease. It tells
// whether there were any.
func (r *Reconciler) takeReports(ctx context.Context, lease *v1alpha1.ProxyLease, px *v1alpha1.Proxy) (bool, error) {
	reports, first := record.NewReports(lease)
	if len(reports) == 0 {
		return false, nil
	}
	for i, report := range reports {
		if err := r.Allocator.TakeReport(ctx, lease, report, 0, first[i]); err != nil {
			return false, fmt.Errorf("take a report in: %w", err)
		}
	}
	err := r.Allocator.WriteStatus(ctx, lease, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		status := record.Mirrored(l, px, r.Clock.Now())
		for _, report := range reports {
			record.Observe(l, status, report)
		}
		return status
	})
	if err != nil {
		return false, fmt.Errorf("remember the reports of a lease: %w", err)
	}
	return true, nil
}

// proxyOf is the Proxy that a lease names; nil when there is none.
func (r *Reconciler) proxyOf(ctx context.Context, reader client.Reader, lease *v1alpha1.ProxyLease) (*v1alpha1.Proxy, error) {
	b, _ := record.BindingOf(lease)
	px := &v1alpha1.Proxy{}
	err := reader.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}, px)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the proxy of a lease: %w", err)
	}
	if err != nil {
		return nil, nil
	}
	return px, nil
}

// again looks again at the earliest of the moments; zero ones do not count.
func again(now time.Time, moments ...time.Time) ctrl.Result {
	var earliest time.Time
	for _, m := range moments {
		if !m.IsZero() && (earliest.IsZero() || m.Before(earliest)) {
			earliest = m
		}
	}
	if earliest.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(earliest.Sub(now), time.Millisecond)}
}
