package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// maxReports is how many targets a lease can report; the schema's bound.
const maxReports = 16

// reportKey tells reports apart that are no repetition of each other.
type reportKey struct {
	target string
	result client.Result
}

// Report implements client.Handle: the count of the target's report grows, and the status says when that was taken in. A
// deletion right after the report would otherwise take it away.
func (h *handle) Report(ctx context.Context, r client.Report) error {
	lease, count, err := h.write(ctx, r)
	if err == nil {
		err = h.taken(ctx, lease, r.Target, count)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	h.mu.Lock()
	delete(h.counts, reportKey{r.Target, r.Result})
	h.mu.Unlock()
	return nil
}

// write writes the report into the spec, and gives the object and the count that the report has.
func (h *handle) write(ctx context.Context, r client.Report) (*v1alpha1.ProxyLease, int32, error) {
	key := reportKey{r.Target, r.Result}
	h.mu.Lock()
	lease := h.last
	h.mu.Unlock()
	for {
		h.mu.Lock()
		reports, count := withReport(lease, key, h.counts[key])
		h.counts[key] = count
		h.mu.Unlock()
		switch {
		case reports == nil:
			return lease, count, nil // an earlier attempt, whose answer got lost
		case len(reports) > maxReports:
			return nil, 0, invalid("target", fmt.Sprintf("a lease can report %d targets at a time", maxReports))
		}
		// With the resourceVersion: the list is written as a whole.
		written, err := h.patch(ctx, map[string]any{
			"metadata": map[string]any{"uid": h.uid, "resourceVersion": lease.ResourceVersion},
			"spec":     map[string]any{"reports": reports},
		})
		if err == nil {
			h.observe(written)
			return written, count, nil
		}
		if e, ok := errors.AsType[*client.Error](err); !ok || e.Status != http.StatusConflict {
			return nil, 0, err
		}
		if lease, err = h.get(ctx); err != nil {
			return nil, 0, err
		}
		if lease == nil {
			return nil, 0, gone()
		}
	}
}

// withReport is the list of reports with one more in it, and its count: one more than what was counted of the target. tried is
// the count of an earlier attempt, 0 for none; nil instead of a list says that it is there. A full list loses a report that
// was taken in; the status remembers its count.
func withReport(lease *v1alpha1.ProxyLease, key reportKey, tried int32) (reports []v1alpha1.LeaseReport, count int32) {
	count = observed(lease, key.target)
	i := slices.IndexFunc(lease.Spec.Reports, func(r v1alpha1.LeaseReport) bool { return r.Target == key.target })
	if i >= 0 {
		known := lease.Spec.Reports[i]
		if tried > 0 && known.Count >= tried && string(known.Result) == string(key.result) {
			return nil, tried
		}
		count = max(count, known.Count, 1)
	}
	reports, count = slices.Clone(lease.Spec.Reports), count+1
	report := v1alpha1.LeaseReport{Target: key.target, Result: v1alpha1.ReportResult(key.result), Count: count}
	if i >= 0 {
		reports[i] = report
		return reports, count
	}
	if len(reports) >= maxReports {
		done := slices.IndexFunc(reports, func(r v1alpha1.LeaseReport) bool { return observed(lease, r.Target) >= max(r.Count, 1) })
		if done >= 0 {
			reports = slices.Delete(reports, done, done+1)
		}
	}
	return append(reports, report), count
}

// taken waits until a report was taken in.
func (h *handle) taken(ctx context.Context, lease *v1alpha1.ProxyLease, target string, count int32) error {
	f := follow(ctx, h.backend.client, lease)
	defer f.stop()
	for observed(lease, target) < count {
		var err error
		if lease, err = f.next(ctx); err != nil {
			return err
		}
		if lease == nil || lease.UID != h.uid {
			return gone()
		}
	}
	return nil
}

// observed is the count of a target that was taken in.
func observed(lease *v1alpha1.ProxyLease, target string) int32 {
	for _, o := range lease.Status.ObservedReports {
		if o.Target == target {
			return o.Count
		}
	}
	return 0
}

func gone() error {
	return &client.Error{Status: http.StatusGone, Code: wire.CodeLeaseEnded, Reason: client.ReasonGone, Detail: "the ProxyLease was deleted"}
}
