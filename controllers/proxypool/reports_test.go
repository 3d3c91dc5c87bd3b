package proxypool

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

func TestMembersReportedByEnoughHoldersAreReplaced(t *testing.T) {
	by := func(ago time.Duration, holders ...string) (out []Report) {
		for _, holder := range holders {
			out = append(out, Report{Holder: holder, Time: start.Add(-ago)})
		}
		return out
	}
	for name, tt := range map[string]struct {
		rule    v1alpha1.RecycleReports
		reports []Report
		due     bool
	}{
		"enough":                 {v1alpha1.RecycleReports{Count: 3}, by(time.Minute, "a", "b", "a"), true},
		"too few":                {v1alpha1.RecycleReports{Count: 3}, by(time.Minute, "a", "b"), false},
		"by one holder":          {v1alpha1.RecycleReports{Count: 3}, by(time.Minute, "a", "a", "a", "a"), false},
		"one holder will do":     {v1alpha1.RecycleReports{Count: 3, DistinctHolders: new(int32(1))}, by(time.Minute, "a", "a", "a"), true},
		"three are asked for":    {v1alpha1.RecycleReports{Count: 3, DistinctHolders: new(int32(3))}, by(time.Minute, "a", "b", "a"), false},
		"too long ago":           {v1alpha1.RecycleReports{Count: 2}, by(DefaultReportWindow, "a", "b"), false},
		"partly too long ago":    {v1alpha1.RecycleReports{Count: 3}, append(by(2*time.Hour, "a"), by(time.Minute, "a", "b")...), false},
		"within a longer window": {v1alpha1.RecycleReports{Count: 3, WindowSeconds: new(int32(10800))}, append(by(2*time.Hour, "a"), by(time.Minute, "a", "b")...), true},
		"none":                   {v1alpha1.RecycleReports{Count: 1}, nil, false},
	} {
		pool := newPool(4)
		list := members(pool, 4, ready)
		in := Input{Pool: pool, Members: list, Now: start, Reports: func(uid types.UID) []Report {
			if uid == list[2].UID {
				return tt.reports
			}
			return nil
		}}
		if plan := MakePlan(in); plan.acts() {
			t.Errorf("%s: a pool that does not ask for it acts: %s", name, describe(plan))
		}
		pool.Spec.Recycle = &v1alpha1.PoolRecycle{AfterReports: &tt.rule}
		plan := MakePlan(in)
		if got := deletedNames(plan); tt.due != (len(got) == 1) || tt.due && (got[0] != list[2].Name || plan.Deletes[0].Reason != reasonReported) {
			t.Errorf("%s: %s", name, describe(plan))
		}
		for _, px := range list[:3] {
			sick(time.Hour)(px)
		}
		if plan := MakePlan(in); plan.acts() {
			t.Errorf("%s: while most are unhealthy: %s", name, describe(plan))
		}
	}
}

func TestReportsAreRememberedOnceAndWithinBounds(t *testing.T) {
	pool := types.NamespacedName{Namespace: "crawl", Name: "eu"}
	rs := &reports{}
	said := reported{lease: "l", target: "a.example", Report: Report{Holder: "h", Time: start}}
	if !rs.note(pool, "a", said) || rs.note(pool, "a", said) {
		t.Error("a report is new once")
	}
	for i := range 2 * maxReports {
		rs.note(pool, "b", reported{lease: types.UID(fmt.Sprint(i)), Report: Report{Holder: fmt.Sprint(i)}})
	}
	if got := rs.of(pool, "b"); len(got) != maxReports || got[maxReports-1].Holder != fmt.Sprint(2*maxReports-1) {
		t.Errorf("%d are remembered", len(got))
	}
	a := at("a", "1")
	a.UID = "a"
	rs.keep(pool, []*v1alpha1.Proxy{a})
	if len(rs.of(pool, "a")) != 1 || len(rs.of(pool, "b")) != 0 {
		t.Error("what is not a member is remembered, or a member is not")
	}
	rs.forget(pool)
	if len(rs.of(pool, "a")) != 0 {
		t.Error("a pool that is gone is remembered")
	}
}

// Holders that were refused by targets report it, by HTTP and by object, and give their leases back.
func TestReportedMembersAreReplacedThroughTheWholeOperator(t *testing.T) {
	f := startFleet(t)
	pool := f.pool("eu", 2, 0, func(pool *v1alpha1.ProxyPool) {
		pool.Spec.Recycle = &v1alpha1.PoolRecycle{AfterReports: &v1alpha1.RecycleReports{Count: 3}}
	})
	f.settled(pool, 2)
	bad := f.members(pool)[0]
	api := leasing.Backend{Allocator: f.allocator}
	report := func(holder, target string) {
		t.Helper()
		lease, _, err := api.Lease(t.Context(), httpapi.LeaseRequest{Namespace: f.namespace, Holder: holder, Proxy: bad.Name, TTLSeconds: 300})
		f.must(err)
		f.must(api.Report(t.Context(), lease.Ref, httpapi.Report{Target: target, Result: v1alpha1.ReportBanned}))
		f.must(api.Report(t.Context(), lease.Ref, httpapi.Report{Target: target, Result: v1alpha1.ReportBanned}))
		f.must(api.Release(t.Context(), lease.Ref))
	}
	report("a", "one.example")
	report("a", "two.example")
	byObject := f.lease("by-object", "eu")
	if byObject.Status.ProxyRef.UID != bad.UID {
		// Any of the two is granted; the third report has to be about the same.
		f.must(f.env.Client.Delete(t.Context(), byObject))
		report("b", "three.example")
	} else {
		byObject.Spec.Reports = []v1alpha1.LeaseReport{{Target: "three.example", Result: v1alpha1.ReportRateLimited}}
		f.must(f.env.Client.Update(t.Context(), byObject))
	}
	waitFor(t, "the reported proxy to go", func() bool {
		for _, px := range f.members(pool) {
			if px.UID == bad.UID {
				return false
			}
		}
		return true
	})
	f.settled(pool, 2)
	waitFor(t, "the event", func() bool { return f.told()["Deleted proxy "+bad.Name+": "+reasonReported] > 0 })
}
