// Package recovery builds the ledger of a new leader from one live, paged list.
//
// It lists proxies first and leases second: a proxy can only name an exclusive lease that existed before, so one that is
// not in the later list of leases is gone.
package recovery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// pageSize bounds one answer of the API server.
const pageSize = 500

// Result is what was found.
type Result struct {
	// Epoch of the new leader: higher than any that is recorded, and another one than that of any other leader.
	Epoch int64
	// Bound, Pending and Finished leases; Pending in the order in which they came.
	Bound, Pending, Finished []*v1alpha1.ProxyLease
	// Proxies that were found.
	Proxies []*v1alpha1.Proxy
}

// Epoch is the first epoch that a leader may have that starts now. What is stored is no floor by itself: a leader may come and
// go without storing anything, and what it has sent may still be carried out. Nor is the election's record: it may be deleted,
// and it does not change when a process starts again in place. Time is one for all, and two leaders do not start in the same
// millisecond; a clock that was set back is made up for by what is stored.
func Epoch(now time.Time) int64 { return now.UnixMilli() }

// Fill lists everything in the namespaces (none: all), puts it into the ledger and starts its epoch, which is at least floor.
func Fill(ctx context.Context, live client.Reader, l *ledger.Ledger, namespaces []string, floor int64) (Result, error) {
	var r Result
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		if _, err := pages(ctx, live, namespace, &v1alpha1.ProxyList{}, func(list *v1alpha1.ProxyList) {
			for i := range list.Items {
				r.Proxies = append(r.Proxies, &list.Items[i])
			}
		}); err != nil {
			return Result{}, fmt.Errorf("list proxies: %w", err)
		}
	}
	// With several namespaces the oldest list is the barrier: what is newer than it is decided per object.
	barrier := ""
	for _, namespace := range namespaces {
		rv, err := pages(ctx, live, namespace, &v1alpha1.ProxyLeaseList{}, func(list *v1alpha1.ProxyLeaseList) {
			for i := range list.Items {
				r.add(&list.Items[i])
			}
		})
		if err != nil {
			return Result{}, fmt.Errorf("list leases: %w", err)
		}
		barrier = cmp.Or(barrier, rv)
	}
	l.Open()
	for _, px := range r.Proxies {
		if x := px.Status.Exclusive; x != nil {
			r.Epoch = max(r.Epoch, x.Epoch)
		}
		l.ObserveProxy(px)
	}
	for _, leases := range [][]*v1alpha1.ProxyLease{r.Bound, r.Finished} {
		for _, lease := range leases {
			l.ObserveLease(lease)
		}
	}
	slices.SortFunc(r.Pending, func(a, b *v1alpha1.ProxyLease) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	for _, lease := range r.Pending {
		l.Expect(lease)
	}
	r.Epoch = max(r.Epoch+1, floor)
	l.Start(r.Epoch, barrier)
	return r, nil
}

func (r *Result) add(lease *v1alpha1.ProxyLease) {
	r.Epoch = max(r.Epoch, lease.Status.GrantEpoch) // a lease that waits may have one too
	if b, ok := record.BindingOf(lease); ok {
		r.Epoch = max(r.Epoch, b.Epoch)
	}
	switch {
	case record.Finished(lease):
		r.Finished = append(r.Finished, lease)
	case record.Holds(lease):
		r.Bound = append(r.Bound, lease)
	case record.Pending(lease):
		r.Pending = append(r.Pending, lease)
	}
}

// pages reads a list page by page and returns the resourceVersion that all of them show.
func pages[L client.ObjectList](ctx context.Context, live client.Reader, namespace string, list L, each func(L)) (string, error) {
	token := ""
	for {
		page := list.DeepCopyObject().(L)
		if err := live.List(ctx, page, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(token)); err != nil {
			return "", err
		}
		each(page)
		if token = page.GetContinue(); token == "" {
			return page.GetResourceVersion(), nil
		}
	}
}
