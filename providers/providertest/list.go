package providertest

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
)

// partialTries is how often a list is tried that lacks something, until the provider was shown the rest.
const partialTries = 10

// fleet makes so many instances that a listing takes three pages, in all zones there are.
func (b bench) fleet(t testing.TB) []providers.CreateRequest {
	t.Helper()
	var reqs []providers.CreateRequest
	for n := range max(2*b.PageSize+1, 2*len(b.Zones), 3) {
		zone := ""
		if len(b.Zones) > 0 {
			zone = b.Zones[n%len(b.Zones)]
		}
		req := b.requestIn(t, fmt.Sprintf("px-%d", n), zone)
		b.create(t, req)
		reqs = append(reqs, req)
	}
	for _, req := range reqs {
		b.runs(t, refOf(req))
	}
	return reqs
}

func listIsComplete(t testing.TB, h Harness) {
	b := h.open(t, "a")
	reqs := b.fleet(t)
	all := map[types.UID][]providers.Instance{}
	for _, i := range b.list(t) {
		all[i.Owner.UID] = append(all[i.Owner.UID], i)
	}
	for _, req := range reqs {
		listed := all[req.Owner.UID]
		if len(listed) != 1 {
			t.Errorf("%s is listed %d times, want once", req.Name, len(listed))
			continue
		}
		got := b.runs(t, refOf(req))
		if wrong := differences(identityOf(got), identityOf(listed[0])); wrong != "" || got.Namespace != listed[0].Namespace {
			t.Errorf("what Get says and what List does: %s; namespace %q and %q", wrong, got.Namespace, listed[0].Namespace)
		}
	}
}

func listHasNothingElse(t testing.TB, h Harness) {
	b, other, abroad := h.open(t, "a"), h.open(t, "b"), h.abroad().open(t, "a")
	mine, theirs, far := b.request(t, "px"), other.request(t, "px"), abroad.request(t, "px")
	b.create(t, mine)
	other.create(t, theirs)
	abroad.create(t, far)
	b.runs(t, refOf(mine))
	other.runs(t, refOf(theirs))
	abroad.runs(t, refOf(far))
	for name, c := range map[string]struct {
		bench
		mine providers.CreateRequest
	}{"the class": {b, mine}, "another class": {other, theirs}, "another cluster": {abroad, far}} {
		listed := c.listed(t)
		for _, req := range []providers.CreateRequest{mine, theirs, far} {
			want := 0
			if req.Owner.UID == c.mine.Owner.UID {
				want = 1
			}
			if listed[req.Owner.UID] != want {
				t.Errorf("%s lists %s of cluster %s %d times, want %d", name, req.Name, req.Owner.ClusterID, listed[req.Owner.UID], want)
			}
		}
	}
}

// listHasWhatIsBeingDeleted: a class is released when its list is empty.
func listHasWhatIsBeingDeleted(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	b.delete(t, first.Ref)
	b.eventually(t, req.Name+" is gone", func() bool {
		listed := false
		for _, i := range b.list(t) {
			listed = listed || i.ID == first.ID
		}
		// The list was taken first, so what Get still finds was in it.
		_, err := b.Get(t.Context(), refOf(req))
		if err == nil && !listed {
			t.Fatal("Get finds what List lacks")
		}
		return providers.IsNotFound(err)
	})
}

// listedReferenceIsEnough: the garbage collection deletes by what List returned.
func listedReferenceIsEnough(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	b.runs(t, refOf(req))
	for _, i := range b.list(t) {
		if i.Owner.UID == req.Owner.UID {
			if got, err := b.Get(t.Context(), i.Ref); err != nil || got.ID != i.ID {
				t.Errorf("get: got %s; want %s", outcome(got, err), describe(i))
			}
			if err := b.Delete(t.Context(), i.Ref); err != nil {
				t.Errorf("delete: %v", err)
			}
		}
	}
	b.goes(t, refOf(req))
}

func partialListIsAnError(t testing.TB, h Harness) {
	if len(h.Partial) == 0 {
		t.Skip("the harness has no Partial")
	}
	b := h.open(t, "a")
	reqs := b.fleet(t)
	for _, lacks := range slices.Sorted(maps.Keys(h.Partial)) {
		b.partial(t, lacks, h.Partial[lacks], len(reqs))
		listed := b.listed(t)
		for _, req := range reqs {
			if listed[req.Owner.UID] != 1 {
				t.Errorf("%s: %s is listed %d times when all is well again, want once", lacks, req.Name, listed[req.Owner.UID])
			}
		}
	}
}

// partial lists while something is out of reach.
func (b bench) partial(t testing.TB, lacks string, p Partial, all int) {
	t.Helper()
	restore := p.Hide()
	defer restore()
	// Where places are asked at the same time, the one that fails may be first; then the others are not waited for.
	for range partialTries {
		got, err := b.List(t.Context())
		wants(t, fmt.Sprintf("%s: list of %d of %d instances", lacks, len(got), all), err, providers.Unavailable, providers.RateLimited, providers.Auth)
		if p.Shown() > 0 {
			return
		}
	}
	t.Errorf("%s: the harness hides all %d instances; then nobody can tell that some would be passed on", lacks, all)
}
