package record_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

func TestL18_TTLIsClamped(t *testing.T) {
	bounds := func(standard, longest int32) *v1alpha1.PoolLeases {
		b := &v1alpha1.PoolLeases{}
		if standard > 0 {
			b.DefaultTTLSeconds = &standard
		}
		if longest > 0 {
			b.MaxTTLSeconds = &longest
		}
		return b
	}
	for _, c := range []struct {
		wish   int32
		bounds *v1alpha1.PoolLeases
		want   int32
	}{
		{0, nil, 300}, {60, nil, 60}, {1, nil, 10}, {1_000_000, nil, 86400}, {-5, nil, 300},
		{0, bounds(120, 0), 120}, {0, bounds(120, 600), 120}, {0, bounds(0, 60), 60}, {900, bounds(120, 600), 600}, {60, bounds(120, 600), 60},
	} {
		if got := record.ClampTTL(c.wish, c.bounds); got != c.want {
			t.Errorf("wish %d within %+v gives %d, want %d", c.wish, c.bounds, got, c.want)
		}
	}
}

// A lease granted by HTTP means the same before and after it has a status of its own.
func TestMirroredStatusSaysTheSame(t *testing.T) {
	px := fixture.Proxy("team", "p")
	l := fixture.Lease("team", "l", func(l *v1alpha1.ProxyLease) {
		l.Spec.TTLSeconds = 60
		l.Spec.Grant = &v1alpha1.LeaseGrant{
			ProxyName: "p", ProxyUID: px.UID, InstanceID: "i-p", Epoch: 3, Seq: 9, ExpireTime: metav1.NewMicroTime(fixture.Start.Add(time.Minute)),
		}
	})
	before, _ := record.BindingOf(l)
	expiry, ttl := record.Expiry(l), record.TTL(l)
	l.Status = *record.Mirrored(l, px, fixture.Start.Add(time.Second))
	after, ok := record.BindingOf(l)
	if !ok || before != after || !record.Expiry(l).Equal(expiry) || record.TTL(l) != ttl || !record.Holds(l) || l.Status.ProxyRef.URL != "http://192.0.2.1:3128" {
		t.Fatalf("before %+v, after %+v", before, l.Status)
	}
	if !l.Status.BoundTime.Equal(new(metav1.NewMicroTime(fixture.Start))) {
		t.Fatalf("bound at %v", l.Status.BoundTime)
	}
}

func TestReportsCountByGrowth(t *testing.T) {
	l := fixture.Lease("team", "l")
	report := func(target string, result v1alpha1.ReportResult, count int32) {
		l.Spec.Reports = []v1alpha1.LeaseReport{{Target: target, Result: result, Count: count}}
	}
	take := func() (int, bool) {
		reports, first := record.NewReports(l)
		for _, r := range reports {
			record.Observe(l, &l.Status, r)
		}
		return len(reports), len(first) > 0 && first[0]
	}
	report("a", v1alpha1.ReportRateLimited, 1)
	if n, first := take(); n != 1 || !first {
		t.Fatal("the first report")
	}
	if n, _ := take(); n != 0 {
		t.Fatal("the same report counted twice")
	}
	report("a", v1alpha1.ReportRateLimited, 3)
	if n, first := take(); n != 1 || first {
		t.Fatal("a report that grew is a repetition")
	}
	report("a", v1alpha1.ReportRateLimited, 2)
	if n, _ := take(); n != 0 {
		t.Fatal("a report that shrank counted")
	}
	report("a", v1alpha1.ReportBanned, 3)
	if n, first := take(); n != 1 || first {
		t.Fatal("another result is news, but not a first report")
	}
	for i := range 40 {
		record.Observe(l, &l.Status, v1alpha1.LeaseReport{Target: string(rune('b' + i)), Result: v1alpha1.ReportOK})
	}
	if n := len(l.Status.ObservedReports); n != 16 {
		t.Fatalf("%d reports are remembered", n)
	}
	if !record.Reported(l, "a") {
		t.Fatal("a report that the spec has is forgotten for others")
	}
}

// A spec with as many reports as the status can remember, whatever else is reported meanwhile: each report is taken in once, and
// then there is nothing to do any more.
func TestFullListOfReportsIsTakenInOnce(t *testing.T) {
	const most = 16 // of the spec, and of the status; the schema's bounds
	byHTTP := func(l *v1alpha1.ProxyLease, target string) {
		record.Observe(l, &l.Status, v1alpha1.LeaseReport{Target: target, Result: v1alpha1.ReportBanned, Count: 1})
	}
	for name, test := range map[string]struct {
		change func(l *v1alpha1.ProxyLease)
		// taken are the reports that the change brings.
		taken []string
	}{
		"nothing":                   {change: func(*v1alpha1.ProxyLease) {}},
		"the last one is replaced":  {func(l *v1alpha1.ProxyLease) { l.Spec.Reports[most-1].Target = "new.example" }, []string{"new.example"}},
		"the first one is replaced": {func(l *v1alpha1.ProxyLease) { l.Spec.Reports[0].Target = "new.example" }, []string{"new.example"}},
		"one grows":                 {func(l *v1alpha1.ProxyLease) { l.Spec.Reports[7].Count++ }, []string{"t7.example"}},
		"one by HTTP":               {change: func(l *v1alpha1.ProxyLease) { byHTTP(l, "http.example") }},
		"more by HTTP than there is room": {change: func(l *v1alpha1.ProxyLease) {
			for i := range 2 * most {
				byHTTP(l, fmt.Sprintf("http%d.example", i))
			}
		}},
		"one by HTTP before the last one is replaced": {func(l *v1alpha1.ProxyLease) {
			byHTTP(l, "http.example")
			l.Spec.Reports[most-1].Target = "new.example"
		}, []string{"new.example"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := fixture.Lease("team", "l")
			for i := range most {
				l.Spec.Reports = append(l.Spec.Reports, v1alpha1.LeaseReport{Target: fmt.Sprintf("t%d.example", i), Result: v1alpha1.ReportBanned, Count: 1})
			}
			take := func() (targets []string) {
				reports, _ := record.NewReports(l)
				for _, r := range reports {
					targets = append(targets, r.Target)
					record.Observe(l, &l.Status, r)
				}
				return targets
			}
			if n := len(take()); n != most {
				t.Fatalf("%d reports were taken in", n)
			}
			test.change(l)
			if got := take(); !slices.Equal(got, test.taken) {
				t.Errorf("taken in: %q, want %q", got, test.taken)
			}
			if got := take(); len(got) > 0 {
				t.Errorf("taken in once more: %q", got)
			}
			if n := len(l.Status.ObservedReports); n != most {
				t.Errorf("%d reports are remembered", n)
			}
		})
	}
}

func TestURLOfAnIPv6Proxy(t *testing.T) {
	px := fixture.Proxy("team", "p", func(px *v1alpha1.Proxy) { px.Status.Instance.Addresses = []string{"2001:db8::1"} })
	if got := record.URL(px); got != "http://[2001:db8::1]:3128" {
		t.Fatal(got)
	}
}

func TestDrainDeadlineIsTheEarliest(t *testing.T) {
	px := fixture.Proxy("team", "p", func(px *v1alpha1.Proxy) {
		px.Spec.DrainRequests = []v1alpha1.DrainRequest{
			{Requester: "a"}, {Requester: "b", DeadlineTime: &metav1.Time{Time: fixture.Start.Add(time.Hour)}},
			{Requester: "c", DeadlineTime: &metav1.Time{Time: fixture.Start.Add(time.Minute)}},
		}
	})
	if got := record.DrainDeadline(px); !got.Equal(fixture.Start.Add(time.Minute)) {
		t.Fatal(got)
	}
}

// Of a deadline that was set and the one of a deletion the earlier one counts, in whichever order they came.
func TestEmptyByIsTheEarlierDeadline(t *testing.T) {
	at := func(minutes time.Duration) *metav1.Time {
		return new(metav1.NewTime(fixture.Start.Add(minutes * time.Minute)))
	}
	for name, c := range map[string]struct {
		drain, deletion *metav1.Time
		want            *metav1.Time
	}{
		"neither":            {},
		"drained":            {drain: at(5), want: at(5)},
		"deleted":            {deletion: at(0), want: at(10)},
		"drained, deleted":   {drain: at(5), deletion: at(4), want: at(5)},
		"deleted, drained":   {drain: at(30), deletion: at(4), want: at(14)},
		"both, a past drain": {drain: at(-5), deletion: at(0), want: at(-5)},
	} {
		px := fixture.Proxy("team", "p", func(px *v1alpha1.Proxy) {
			px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(600))}
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "a", DeadlineTime: c.drain}}
			px.DeletionTimestamp = c.deletion
		})
		got := record.EmptyBy(px)
		if c.want == nil != got.IsZero() || c.want != nil && !got.Equal(c.want.Time) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
