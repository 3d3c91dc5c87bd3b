package providers_test

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
)

// owners are many UIDs, the same ones in each run.
func owners() (all []types.UID) {
	for n := range 1000 {
		all = append(all, types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)))
	}
	return all
}

func TestSpread_IsEven(t *testing.T) {
	places := []string{"a", "b", "c", "d"}
	count := map[string]int{}
	for _, owner := range owners() {
		count[providers.Spread(owner, places, nil)]++
	}
	// 250 each; five standard deviations are 68.
	for _, place := range places {
		if count[place] < 180 || count[place] > 320 {
			t.Errorf("%d of 1000 owners in %s, want about 250: %v", count[place], place, count)
		}
	}
}

// TestSpread_EvenWhenAPlaceIsFull: those who leave one place do not all go to the same one.
func TestSpread_EvenWhenAPlaceIsFull(t *testing.T) {
	count := map[string]int{}
	for _, owner := range owners() {
		count[providers.Spread(owner, []string{"a", "b", "c"}, []string{"a"})]++
	}
	if count["a"] != 0 || count["b"] < 400 || count["c"] < 400 {
		t.Errorf("got %v, want about 500 each in b and c", count)
	}
}

func TestSpread_FewMoveWhenAPlaceIsAdded(t *testing.T) {
	before, after := []string{"a", "b", "c"}, []string{"d", "c", "b", "a"}
	moved := 0
	for _, owner := range owners() {
		was, is := providers.Spread(owner, before, nil), providers.Spread(owner, after, nil)
		if was == is {
			continue
		}
		if moved++; is != "d" {
			t.Fatalf("%s moved from %s to %s, which is not the new place", owner, was, is)
		}
	}
	if moved < 180 || moved > 320 {
		t.Errorf("%d of 1000 moved, want about 250", moved)
	}
}

func TestSpread_LeavesOutTried(t *testing.T) {
	places := []string{"a", "b", "c", "d"}
	for _, owner := range owners()[:100] {
		var tried []string
		for range places {
			next := providers.Spread(owner, places, tried)
			if slices.Contains(tried, next) {
				t.Fatalf("%s: %s after %q", owner, next, tried)
			}
			tried = append(tried, next)
		}
		if again := providers.Spread(owner, places, tried); again != tried[0] {
			t.Errorf("%s: when all of %q were tried, %s; want the first again", owner, tried, again)
		}
	}
}

// TestSpread_RemembersOnePlace: the controllers hand in the last place only. With two places full, the third is found.
func TestSpread_RemembersOnePlace(t *testing.T) {
	places := []string{"a", "b", "c", "d"}
	for _, owner := range owners()[:100] {
		seen := map[string]bool{}
		last := providers.Spread(owner, places, nil)
		for range places {
			seen[last] = true
			last = providers.Spread(owner, places, []string{last})
		}
		if len(seen) != len(places) {
			t.Errorf("%s goes round %d of %d places", owner, len(seen), len(places))
		}
	}
}

func TestSpread_Edges(t *testing.T) {
	given := []string{"b", "a", "b"}
	for name, c := range map[string]struct {
		places, tried []string
		want          string
	}{
		"no place":                       {nil, []string{"a"}, ""},
		"one place":                      {[]string{"a"}, []string{"a"}, "a"},
		"one that is not there any more": {[]string{"a"}, []string{"z"}, "a"},
		"a place named twice":            {given, []string{"a"}, "b"},
	} {
		if got := providers.Spread("uid", c.places, c.tried); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	if !slices.Equal(given, []string{"b", "a", "b"}) {
		t.Errorf("the places were changed to %q", given)
	}
}
