package kube

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
)

func TestWantedIsWhatIsAskedFor(t *testing.T) {
	b := &backend{Options: Options{Namespace: "shop", Owner: PodOwner("crawler-1", "uid-1")}}
	for name, c := range map[string]struct {
		request client.Request
		want    v1alpha1.ProxyLeaseSpec
	}{
		"nothing": {client.Request{}, v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{}}}},
		"a pool":  {client.Request{Pool: "eu"}, v1alpha1.ProxyLeaseSpec{PoolRef: &v1alpha1.LocalRef{Name: "eu"}}},
		"both": {
			client.Request{Pool: "eu", Selector: map[string]string{"tier": "fast"}},
			v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "fast", v1alpha1.LabelPool: "eu"}}},
		},
		"one proxy": {client.Request{Proxy: "shop/a"}, v1alpha1.ProxyLeaseSpec{ProxyName: "a"}},
		"everything": {
			client.Request{
				Targets: []string{"b.example", "a.example", "b.example"}, Mode: client.Exclusive, Holder: "h", TTL: time.Minute + 1, Wait: time.Second + 1,
				Exclude: []string{"x", "shop/x", "other/y"},
			},
			v1alpha1.ProxyLeaseSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{}}, Targets: []string{"a.example", "b.example"}, Mode: v1alpha1.LeaseExclusive,
				Holder: "h", TTLSeconds: 61, WaitSeconds: new(int32(2)), ExcludedProxyNames: []string{"other/y", "x"},
			},
		},
	} {
		got, err := b.wanted(context.Background(), c.request, "key")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		c.want.OnProxyFailure = v1alpha1.OnFailureKeep
		if c.want.Mode == "" {
			c.want.Mode = v1alpha1.LeaseShared
		}
		if diff := cmp.Diff(c.want, got.Spec); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if got.Namespace != "shop" || got.Name != nameOf("key") || len(got.Name) > 63 || got.OwnerReferences[0].UID != "uid-1" {
			t.Errorf("%s: %+v", name, got.ObjectMeta)
		}
	}
	if nameOf("a") == nameOf("b") {
		t.Error("two keys, one name")
	}
	for field, r := range map[string]client.Request{
		"proxy": {Proxy: "a", Selector: map[string]string{"x": "y"}}, "pool": {Pool: "a", Selector: map[string]string{v1alpha1.LabelPool: "b"}},
	} {
		var e *client.Error
		if _, err := b.wanted(context.Background(), r, "key"); !errors.As(err, &e) || e.Field != field || !errors.Is(err, client.ErrInvalid) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := (&backend{}).wanted(context.Background(), client.Request{}, "key"); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("no namespace: %v", err)
	}
}

// A lease that a dead crawler leaves behind does not wait for ever, if it is known how long that crawler would have waited.
func TestWaitSecondsAreBoundedByTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			wait, deadline time.Duration
			want           string
		}{
			{0, 0, "unset"},
			{client.NoWait, 0, "0"},
			{client.NoWait, time.Minute, "0"},
			{30 * time.Second, 0, "30"},
			{30 * time.Second, time.Hour, "30"},
			{time.Hour, time.Minute, "62"},
			{0, time.Minute, "62"},
			{0, -time.Minute, "1"},
			{1000 * time.Hour, 0, "86400"},
			{math.MaxInt64, 0, "86400"},
			{0, math.MaxInt64, "86400"},
			{30 * time.Second, math.MaxInt64, "30"},
			{math.MaxInt64, math.MaxInt64, "86400"},
		} {
			ctx := context.Background()
			if c.deadline != 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.deadline)
				defer cancel()
			}
			got := "unset"
			if s := waitSeconds(ctx, c.wait); s != nil {
				got = fmt.Sprint(*s)
			}
			if got != c.want {
				t.Errorf("wait %v, deadline %v: %s, want %s", c.wait, c.deadline, got, c.want)
			}
		}
	})
}

func TestSameRequest(t *testing.T) {
	spec := func(change ...func(*v1alpha1.ProxyLeaseSpec)) *v1alpha1.ProxyLease {
		l := &v1alpha1.ProxyLease{Spec: v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{}, Targets: []string{"a"}, TTLSeconds: 60}}
		for _, c := range change {
			c(&l.Spec)
		}
		return l
	}
	if !sameRequest(spec(), spec(func(s *v1alpha1.ProxyLeaseSpec) {
		s.WaitSeconds, s.RenewTime = new(int32(3)), &metav1.MicroTime{Time: time.Now()}
		s.Reports = []v1alpha1.LeaseReport{{Target: "a"}}
		s.Selector.MatchLabels = map[string]string{}
	})) {
		t.Error("the wait, a renewal and reports make no other request")
	}
	if sameRequest(spec(), spec(func(s *v1alpha1.ProxyLeaseSpec) { s.TTLSeconds = 61 })) || sameRequest(spec(), spec(func(s *v1alpha1.ProxyLeaseSpec) { s.Targets = nil })) {
		t.Error("another TTL or target does")
	}
}

func TestReportsAreCountedOnce(t *testing.T) {
	report := func(target, result string, count int32) v1alpha1.LeaseReport {
		return v1alpha1.LeaseReport{Target: target, Result: v1alpha1.ReportResult(result), Count: count}
	}
	seen := func(target, result string, count int32) v1alpha1.ObservedReport {
		return v1alpha1.ObservedReport{Target: target, Result: result, Count: count}
	}
	full := func(observed int) (reports []v1alpha1.LeaseReport, taken []v1alpha1.ObservedReport) {
		for i := range maxReports {
			reports = append(reports, report(fmt.Sprint("t", i), "ok", 1))
			if i == observed {
				taken = append(taken, seen(fmt.Sprint("t", i), "ok", 1))
			}
		}
		return reports, taken
	}
	allPending, _ := full(-1)
	oneTaken, taken := full(3)
	for name, c := range map[string]struct {
		spec     []v1alpha1.LeaseReport
		observed []v1alpha1.ObservedReport
		tried    int32
		want     v1alpha1.LeaseReport
		length   int // of the list; 0: it is there already
	}{
		"the first":               {nil, nil, 0, report("x", "ok", 1), 1},
		"another one":             {[]v1alpha1.LeaseReport{report("x", "ok", 1)}, nil, 0, report("x", "ok", 2), 1},
		"of another result":       {[]v1alpha1.LeaseReport{report("x", "banned", 4)}, nil, 0, report("x", "ok", 5), 1},
		"of another target":       {[]v1alpha1.LeaseReport{report("y", "ok", 4)}, nil, 0, report("x", "ok", 1), 2},
		"without a count":         {[]v1alpha1.LeaseReport{report("x", "ok", 0)}, nil, 0, report("x", "ok", 2), 1},
		"known by the status":     {nil, []v1alpha1.ObservedReport{seen("x", "ok", 7)}, 0, report("x", "ok", 8), 1},
		"tried and lost":          {nil, nil, 1, report("x", "ok", 1), 1},
		"tried and written":       {[]v1alpha1.LeaseReport{report("x", "ok", 1)}, nil, 1, report("x", "ok", 1), 0},
		"tried, and then another": {[]v1alpha1.LeaseReport{report("x", "ok", 3)}, nil, 1, report("x", "ok", 1), 0},
		"tried, another's result": {[]v1alpha1.LeaseReport{report("x", "banned", 1)}, nil, 1, report("x", "ok", 2), 1},
		"a full list":             {oneTaken, taken, 0, report("x", "ok", 1), maxReports},
		"an untaken full list":    {allPending, nil, 0, report("x", "ok", 1), maxReports + 1},
	} {
		lease := &v1alpha1.ProxyLease{Spec: v1alpha1.ProxyLeaseSpec{Reports: c.spec}, Status: v1alpha1.ProxyLeaseStatus{ObservedReports: c.observed}}
		before := lease.DeepCopy()
		reports, count := withReport(lease, reportKey{"x", "ok"}, c.tried)
		if len(reports) != c.length || count != c.want.Count {
			t.Errorf("%s: count %d, %+v", name, count, reports)
		}
		for _, r := range reports {
			if r.Target == "x" && r != c.want {
				t.Errorf("%s: %+v, want %+v", name, r, c.want)
			}
		}
		if diff := cmp.Diff(before, lease); diff != "" {
			t.Errorf("%s changed the lease: %s", name, diff)
		}
	}
}
