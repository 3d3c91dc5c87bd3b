package providertest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// poolSize is how many owners are placed: by chance they go to one of two places once in 2^63 times.
const poolSize = 64

// placeOwner is an owner for whom a place is asked.
const placeOwner types.UID = "6b1d2f1e-60a5-4b0a-9c0e-3d5a7d1f0c11"

func placeIsStable(t testing.TB, h Harness) {
	b, other := h.open(t, "a"), h.open(t, "a")
	spec := h.Spec()
	before := *spec.DeepCopy()
	first, err := b.Place(&spec, placeOwner, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range poolSize {
		owner := types.UID(fmt.Sprint("owner-", n))
		one, err := b.Place(&spec, owner, nil)
		if another, again := other.Place(&spec, owner, nil); err != nil || again != nil || another != one {
			t.Fatalf("one Provider chose %q (%v), another one %q (%v)", one, err, another, again)
		}
	}
	tried := []string{first}
	// It answers however many were tried: when all were, it begins again.
	for range max(5, 2*len(h.Zones)) {
		asked := slices.Clone(tried)
		next, err := b.Place(&spec, placeOwner, tried)
		if err != nil {
			t.Fatalf("no place after %q: %v", tried, err)
		}
		if again, err := b.Place(&spec, placeOwner, tried); err != nil || again != next {
			t.Errorf("after %q it chose %q, then %q (%v)", tried, next, again, err)
		}
		if !slices.Equal(tried, asked) {
			t.Fatalf("the list of what was tried changed from %q to %q", asked, tried)
		}
		tried = append(tried, next)
	}
	if !reflect.DeepEqual(spec, before) {
		t.Error("the specification was changed")
	}
	for _, zone := range h.Zones {
		spec := pinned(h.Spec(), zone)
		for _, tried := range [][]string{nil, {zone}} {
			if got, err := b.Place(&spec, placeOwner, tried); err != nil || got != zone {
				t.Errorf("the specification names %q; after %q it chose %q, %v", zone, tried, got, err)
			}
		}
	}
}

func placeLeavesOutTried(t testing.TB, h Harness) {
	if len(h.Zones) < 2 {
		t.Skip("the harness has no two Zones to choose from")
	}
	b := h.open(t, "a")
	spec := h.Spec()
	spec.Placement = withoutZone(spec.Placement)
	for _, only := range h.Zones {
		tried := slices.DeleteFunc(slices.Clone(h.Zones), func(zone string) bool { return zone == only })
		if got, err := b.Place(&spec, placeOwner, tried); err != nil || got != only {
			t.Errorf("of %q, %q were tried; got %q, %v", h.Zones, tried, got, err)
		}
	}
}

// placeSpreads: members of a pool have one specification, and one place would be full, or down, for all of them. A round by
// the last place alone, as the controllers ask, comes to all.
func placeSpreads(t testing.TB, h Harness) {
	if len(h.Zones) < 2 {
		t.Skip("the harness has no two Zones to choose from")
	}
	b := h.open(t, "a")
	spec := h.Spec()
	spec.Placement = withoutZone(spec.Placement)
	chosen, round := map[string]bool{}, map[string]bool{}
	last := ""
	for n := range poolSize {
		place, err := b.Place(&spec, types.UID(fmt.Sprintf("6b1d2f1e-60a5-4b0a-9c0e-%012d", n)), nil)
		if err != nil {
			t.Fatal(err)
		}
		chosen[place], last = true, place
	}
	if len(chosen) < 2 {
		t.Errorf("%d owners with one specification all go to %q, of %q", poolSize, last, h.Zones)
	}
	var tried []string
	for range 2 * len(h.Zones) {
		place, err := b.Place(&spec, placeOwner, tried)
		if err != nil {
			t.Fatal(err)
		}
		round[place], tried = true, []string{place}
	}
	if len(round) < len(h.Zones) {
		t.Errorf("from one place that is full to the next it comes to %d of %q", len(round), h.Zones)
	}
}

func withoutZone(p *v1alpha1.Placement) *v1alpha1.Placement {
	if p == nil {
		return nil
	}
	out := *p
	out.Zone = ""
	return &out
}

// lostPlacesAreAsked: what was made in a place that the class has lost is still its own. Were it not listed, a class that is
// being deleted would look empty; were it not found, its Proxy would stay for ever.
func lostPlacesAreAsked(t testing.TB, h Harness) {
	if h.Shrink == nil || len(h.Zones) < 2 {
		t.Skip("the harness has no Shrink, or no two Zones")
	}
	lost := h.Zones[len(h.Zones)-1]
	before := h.open(t, "a")
	req := before.requestIn(t, "px", lost)
	before.create(t, req)
	first := before.runs(t, refOf(req))
	restore := h.Shrink()
	defer restore()
	b := h.open(t, "a")
	spec := h.Spec()
	spec.Placement = withoutZone(spec.Placement)
	for n := range poolSize {
		if place, err := b.Place(&spec, types.UID(fmt.Sprint("owner-", n)), nil); err != nil || place == lost {
			t.Fatalf("place: got %q, %v; want none that the class does not name any more", place, err)
		}
	}
	if wrong := differences(identityOf(first), identityOf(b.runs(t, refOf(req)))); wrong != "" {
		t.Errorf("what is said of an instance when the class names its place and when not: %s", wrong)
	}
	b.listsOnce(t, req.Owner)
	wants(t, "delete in a place that the class does not name any more", b.Delete(t.Context(), first.Ref), accepted)
	b.goes(t, refOf(req))
}
