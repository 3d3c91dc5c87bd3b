package leasing

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/retention"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// collectors is how many finished leases are deleted at once: enough to keep up with grants, few enough to leave them room.
	collectors = 8
	// brakeRetry is when a call is worth repeating that came while there were too many leases.
	brakeRetry = 5 * time.Second
)

// keep lets a finished lease stay until its time is over.
func (a *Allocator) keep(lease *v1alpha1.ProxyLease) {
	if !record.Finished(lease) || !lease.DeletionTimestamp.IsZero() {
		return
	}
	at := a.Clock.Now()
	if finish := lease.Status.FinishTime; finish != nil {
		at = finish.Time
	}
	if a.finished.Add(retention.Lease{
		Key: client.ObjectKeyFromObject(lease), UID: lease.UID, Finished: at, Due: at.Add(record.KeepAfterFinish(lease)),
	}) {
		a.kickCollection()
	}
}

func (a *Allocator) kickCollection() {
	select {
	case a.collectNow <- struct{}{}:
	default:
	}
}

// collect deletes finished leases whose time is over, or that are too many.
func (a *Allocator) collect(ctx context.Context) {
	slots := make(chan struct{}, collectors)
	for {
		now := a.Clock.Now()
		for _, l := range a.finished.Take(now, a.brake.Excess(a.objects())-int(a.collecting.Load())) {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			a.collecting.Add(1)
			a.pipeline.Go(func() {
				defer func() { <-slots }()
				defer a.collecting.Add(-1)
				a.collectOne(l)
			})
		}
		var due <-chan time.Time
		stop := func() bool { return true }
		if next, ok := a.finished.Next(); ok {
			timer := a.Clock.NewTimer(next.Sub(now))
			due, stop = timer.C(), timer.Stop
		}
		select {
		case <-due:
		case <-a.collectNow:
		case <-ctx.Done():
			stop()
			return
		}
		stop()
	}
}

// collectOne deletes a finished lease, after what its holder has reported was taken in. One that cannot be deleted is tried
// again a little later.
func (a *Allocator) collectOne(l retention.Lease) {
	ctx, cancel := context.WithTimeout(a.pipeline.Base, endTimeout)
	defer cancel()
	err := a.collectLease(ctx, l)
	if err == nil {
		a.metrics.collected.WithLabelValues(string(l.Cause)).Inc()
		return
	}
	if ctx.Err() == nil {
		a.Log.Error(err, "Delete a finished lease", "lease", l.Key)
	}
	l.Due = a.Clock.Now().Add(endRetry)
	if a.finished.Add(l) {
		a.kickCollection()
	}
}

func (a *Allocator) collectLease(ctx context.Context, l retention.Lease) error {
	lease := &v1alpha1.ProxyLease{}
	err := a.Client.Get(ctx, l.Key, lease)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read lease: %w", err)
	}
	if err != nil || lease.UID != l.UID {
		// The cache may not have it yet, if it lived that shortly.
		lease = &v1alpha1.ProxyLease{}
		lease.Namespace, lease.Name, lease.UID = l.Key.Namespace, l.Key.Name, l.UID
	}
	reports, first := record.NewReports(lease)
	for i, report := range reports {
		if err := a.TakeReport(ctx, lease, report, 0, first[i]); err != nil {
			return err
		}
	}
	_, err = a.Release(ctx, lease)
	return err
}

// objects is how many leases exist, live and finished ones: by the ledger of the leader, and by what the others have seen.
func (a *Allocator) objects() int {
	if a.Recovered() {
		return a.ledger.Len() + a.waiting.lenObjects()
	}
	return a.followed.len()
}

// braked tells whether there are too many leases to make more. It is asked whenever there are fewer, too: the brake is let go
// when there were few enough at any moment, and not only if somebody calls just then.
func (a *Allocator) braked() bool {
	on := a.brake.On(a.objects())
	if on {
		a.kickCollection()
	}
	return on
}

// room refuses calls while there are too many leases, but for those whose lease exists.
func (b Backend) room(ctx context.Context, key types.NamespacedName) error {
	if !b.braked() {
		return nil
	}
	if b.Recovered() && b.ledger.Knows(key) || b.Client.Get(ctx, key, &v1alpha1.ProxyLease{}) == nil {
		return nil
	}
	return &httpapi.Error{
		Status: http.StatusServiceUnavailable, Code: wire.CodeTooManyLeases, RetryAfter: brakeRetry,
		Detail: "There are too many leases, live and finished ones; release what is not needed",
	}
}
