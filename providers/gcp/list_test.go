package gcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

const (
	manyVMs   = 1200
	manyZones = 30
)

// newCrowd is a rig whose server has many zones and many VMs of the class, and some of others.
func newCrowd(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	var zones []string
	for n := range manyZones {
		zones = append(zones, fmt.Sprintf("region%d-%c", n/3, 'a'+n%3))
	}
	r.Server = computetest.New(t, computetest.Options{Clock: r.clock, Token: testToken, Zones: zones})
	r.Provider = openProvider(t, r.URL, r.clock, newClass("a", func(s *v1alpha1.ProviderClassSpec) { s.GCP.Zones = zones }))
	for n := range manyVMs {
		req := newRequest(fmt.Sprint("px-", n), zones[n%manyZones])
		r.Seed(computetest.Seed{Project: testProject, Zone: req.Zone, Name: req.Name, Labels: markOf("a", req).labels(nil)})
	}
	for n, zone := range zones {
		theirs := newRequest(fmt.Sprint("theirs-", n), zone)
		theirs.Owner.ClusterID = "cluster-of-others"
		r.Seed(computetest.Seed{Project: testProject, Zone: zone, Name: theirs.Name, Labels: markOf("a", theirs).labels(nil)})
		r.Seed(computetest.Seed{Project: testProject, Zone: zone, Name: fmt.Sprint("person-", n), Labels: map[string]string{"owner": "me"}})
		r.Seed(computetest.Seed{Project: testProject, Zone: zone, Name: fmt.Sprint("b-", n), Labels: markOf("b", newRequest(fmt.Sprint("b-", n), zone)).labels(nil)})
	}
	return r
}

// TestT30_GT9_Lists with many pages and zones: all of it, or an error without anything.
func TestT30_GT9_Lists(t *testing.T) {
	r := newCrowd(t)
	all, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owners := map[providers.Owner]bool{}
	for _, i := range all {
		owners[i.Owner] = true
	}
	if len(all) != manyVMs || len(owners) != manyVMs {
		t.Errorf("%d instances of %d owners, want %d", len(all), len(owners), manyVMs)
	}
	const pages = manyVMs / listPage
	if n := r.Count(computetest.AggregatedList); n != pages {
		t.Errorf("%d calls for %d pages", n, pages)
	}
	// A part that fails, at whichever page.
	for skip := range pages {
		restore := r.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: skip, Answer: computetest.BackendError(http.StatusServiceUnavailable)})
		if got, err := r.List(t.Context()); providers.ReasonOf(err) != providers.Unavailable || got != nil {
			t.Errorf("page %d fails: %d instances, %v", skip, len(got), err)
		}
		restore()
	}
}

// TestT30_GT9_ZoneGoesDown while the list is read: whether its machines were already shown, or are on a later page, and
// whether that page is the last, the list is not complete.
func TestT30_GT9_ZoneGoesDown(t *testing.T) {
	r := newCrowd(t)
	const pages, zonesOfAPage = manyVMs / listPage, manyZones * listPage / manyVMs
	zone := func(n int) string { return fmt.Sprintf("region%d-%c", n/3, 'a'+n%3) }
	for _, page := range []int{0, pages / 2, pages - 1} {
		// A zone of the pages before this one, or else of this one; and one of the last page.
		for _, down := range []string{zone(max(0, (page-1)*zonesOfAPage)), zone(manyZones - 1)} {
			restore := r.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: page, Down: down})
			before := r.Count(computetest.AggregatedList)
			if got, err := r.List(t.Context()); providers.ReasonOf(err) != providers.Unavailable || got != nil {
				t.Errorf("%s goes down at page %d: %d instances, %v", down, page, len(got), err)
			}
			if n := r.Count(computetest.AggregatedList) - before; n <= page {
				t.Errorf("%d pages were read, so that %s was never down", n, down)
			}
			restore()
			r.SetUnreachable(down, false)
		}
	}
	if all, err := r.List(t.Context()); err != nil || len(all) != manyVMs {
		t.Errorf("%d, %v", len(all), err)
	}
}

// TestG45_AnyWordOfAZone that does not answer counts, wherever an answer has it. Two warnings mean no more than an empty page.
func TestG45_AnyWordOfAZone(t *testing.T) {
	warned := func(code string) []compute.InstancesScopedListPair {
		return []compute.InstancesScopedListPair{
			{Key: "zones/a-a", Value: &computepb.InstancesScopedList{Instances: []*computepb.Instance{{}}}},
			{Key: "zones/a-b", Value: &computepb.InstancesScopedList{Warning: &computepb.Warning{Code: &code}}},
		}
	}
	code := func(code string) *computepb.InstanceAggregatedList {
		return &computepb.InstanceAggregatedList{Warning: &computepb.Warning{Code: &code}}
	}
	for name, test := range map[string]struct {
		answer   *computepb.InstanceAggregatedList
		zones    []compute.InstancesScopedListPair
		complete bool
	}{
		"nothing":                 {&computepb.InstanceAggregatedList{}, nil, true},
		"an empty zone":           {&computepb.InstanceAggregatedList{}, warned("NO_RESULTS_ON_PAGE"), true},
		"an empty page":           {code("NO_RESULTS_ON_PAGE"), nil, true},
		"a list of what is down":  {&computepb.InstanceAggregatedList{Unreachables: []string{"zones/a-b"}}, warned("NO_RESULTS_ON_PAGE"), false},
		"a warning of the zone":   {&computepb.InstanceAggregatedList{}, warned("UNREACHABLE"), false},
		"a warning of the answer": {code("UNREACHABLE"), nil, false},
		"a part":                  {code("PARTIAL_SUCCESS"), nil, false},
		"too much":                {&computepb.InstanceAggregatedList{}, warned("LIST_OVERHEAD_QUOTA_EXCEED"), false},
		"a warning nobody knows":  {&computepb.InstanceAggregatedList{}, warned("NEW"), false},
		"one nobody knows above":  {code("NEW"), warned("NO_RESULTS_ON_PAGE"), false},
	} {
		if err := incomplete(test.answer, test.zones); (err == nil) != test.complete {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestT29_ClassesOfOneProject: operators list what is of the class that they ask for, and of no other one of the same project
// and cluster, also where the label of one class begins like that of another one.
func TestT29_ClassesOfOneProject(t *testing.T) {
	r := newRig(t)
	// With each dot as _2e the first is as long as a label can be, and the others go on in a second one.
	long := "aaa" + strings.Repeat(".a", 15)
	names := []string{"gcp", "gcp-2", "gcp.eu", "gcp-eu", long, long + ".a", long + ".b"}
	classes := map[string]*Provider{}
	for n, name := range names {
		p := openProvider(t, r.URL, r.clock, newClass(name))
		classes[name] = p
		for k := range n + 1 {
			// The Proxies of all classes have the same names.
			req := newRequest(fmt.Sprint("px-", k), []string{zoneA, zoneB, zoneC}[k%3])
			req.Owner.UID = types.UID(fmt.Sprint(name, "-", k))
			req.Name = providers.InstanceName(req.Owner.ClusterID, req.Owner.Name, req.Owner.UID)
			if _, err := p.Create(t.Context(), req); err != nil {
				t.Fatal(providers.RawText(err))
			}
		}
	}
	r.clock.Step(time.Minute)
	for n, name := range names {
		all, err := classes[name].List(t.Context())
		if err != nil || len(all) != n+1 {
			t.Errorf("%s: %d instances, %v; want %d", name, len(all), err, n+1)
		}
		for _, i := range all {
			if !strings.HasPrefix(string(i.Owner.UID), name+"-") || strings.Contains(string(i.Owner.UID)[len(name)+1:], "-") {
				t.Errorf("%s lists the machine of %s", name, i.Owner.UID)
			}
		}
	}
}

// TestG45_ZoneThatIsDown does not pass for an empty one, and what it does not show is not gone.
func TestG45_ZoneThatIsDown(t *testing.T) {
	r := newCrowd(t)
	down := "region4-b"
	r.SetUnreachable(down, true)
	if got, err := r.List(t.Context()); providers.ReasonOf(err) != providers.Unavailable || got != nil {
		t.Errorf("%d instances, %v", len(got), err)
	}
	there, here := newRequest("px-13", down), newRequest("px-0", "region0-a")
	for _, test := range []struct {
		ref     providers.Ref
		want    providers.Reason
		partial bool
	}{
		{refOf(there), providers.Unavailable, false},
		{refOf(here), "", false},
		{providers.Ref{Name: there.Name}, providers.Unavailable, true},
		{providers.Ref{Name: here.Name}, "", false},
		{providers.Ref{Name: "px-nobody"}, providers.Unavailable, true},
	} {
		if _, err := r.look(test.ref); providers.ReasonOf(err) != test.want || providers.IsPartial(err) != test.partial {
			t.Errorf("%s in %q: %v, want %q, partial %t", test.ref.Name, test.ref.Zone, err, test.want, test.partial)
		}
	}
	restore := r.Fail(computetest.Fault{Call: computetest.AggregatedList, Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := r.Get(ctx, providers.Ref{Name: "px-nobody"}); providers.ReasonOf(err) != providers.Unavailable || providers.IsPartial(err) {
		t.Errorf("a list that does not come is taken for one of some zones: %v", err)
	}
	restore()
	if err := r.Check(t.Context()); err != nil {
		t.Errorf("one zone makes the class unusable: %v", err)
	}
	r.SetUnreachable(down, false)
	if all, err := r.List(t.Context()); err != nil || len(all) != manyVMs {
		t.Errorf("%d, %v", len(all), err)
	}
}

// TestGT9_HangingList: the library's AggregatedList does not look at its context; the provider's List does, at any page.
func TestGT9_HangingList(t *testing.T) {
	r := newCrowd(t)
	for skip := range manyVMs / listPage {
		restore := sync.OnceFunc(r.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: skip, Hang: true}))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		begun := time.Now()
		got, err := r.List(ctx)
		if providers.ReasonOf(err) != providers.Unavailable || got != nil || time.Since(begun) > 10*time.Second {
			t.Errorf("page %d hangs: %d instances, %v after %v", skip, len(got), err, time.Since(begun))
		}
		cancel()
		restore()
	}
}

// TestG6_G36_OtherClustersAreNotSeen, nor touched: two operators share a project.
func TestG6_G36_OtherClustersAreNotSeen(t *testing.T) {
	r := newRig(t)
	ref := r.create(newRequest("px", zoneA))
	mine := r.runs(ref)
	theirs, err := (&Factory{Endpoint: r.URL}).Open(t.Context(), newClass("a"), providers.Runtime{ClusterID: "another", Clock: r.clock})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = theirs.Close() }()
	if all, err := theirs.List(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("the other operator lists %+v, %v", all, err)
	}
	if err := theirs.Delete(t.Context(), mine.Ref); providers.ReasonOf(err) != providers.Conflict {
		t.Errorf("the other operator's deletion: %v", err)
	}
	if n := r.Count(computetest.Delete); n != 0 {
		t.Errorf("%d deletions were sent", n)
	}
	// Without an id of the cluster nothing is opened, so nothing is collected either.
	for _, id := range []string{"", "no label value"} {
		if _, err := (&Factory{Endpoint: r.URL}).Open(t.Context(), newClass("a"), providers.Runtime{ClusterID: id, Clock: r.clock}); err == nil {
			t.Errorf("opened with the cluster id %q", id)
		}
	}
}

// TestG46_ClientsPerClass: classes of one manager share nothing but credentials.
func TestG46_ClientsPerClass(t *testing.T) {
	r := newRig(t)
	other := openProvider(t, r.URL, r.clock, newClass("b", func(s *v1alpha1.ProviderClassSpec) { s.GCP.Project = "other-project" }))
	if err := other.Check(t.Context()); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("a project that is not there: %v", err)
	}
	if err := r.Check(t.Context()); err != nil {
		t.Errorf("the other class: %v", err)
	}
	for _, request := range r.Requests() {
		if request.Project != testProject && request.Project != "other-project" {
			t.Errorf("a call for %q", request.Project)
		}
	}
}
