package retention

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func lease(namespace string, n int, finished time.Time, keep time.Duration) Lease {
	name := fmt.Sprint("l", n)
	return Lease{Key: types.NamespacedName{Namespace: namespace, Name: name}, UID: types.UID(namespace + "/" + name), Finished: finished, Due: finished.Add(keep)}
}

func TestL26_FiftyThousandFinishedLeasesAreBounded(t *testing.T) {
	s := New(0)
	now := start
	deleted := 0
	for i := range 50_000 {
		now = now.Add(2 * time.Millisecond)
		s.Add(lease("team", i, now, 120*time.Second))
		out := s.Take(now, 0)
		deleted += len(out)
		for _, l := range out {
			if l.Cause != Crowded || l.Key.Name != fmt.Sprint("l", i-MaxFinishedPerNamespace) {
				t.Fatalf("after %d: %+v goes", i, l)
			}
		}
		if s.Len() > MaxFinishedPerNamespace {
			t.Fatalf("%d are kept", s.Len())
		}
	}
	if deleted != 49_000 {
		t.Fatalf("%d were deleted", deleted)
	}
	if out := s.Take(now.Add(2*time.Minute), 0); len(out) != 1000 || s.Len() != 0 || len(s.spaces) != 0 || out[0].Cause != Aged {
		t.Fatalf("%d left, %d go", s.Len(), len(out))
	}
}

func TestL26_TheBrakeOpensAndCloses(t *testing.T) {
	b := &Brake{Max: 100}
	for _, c := range []struct {
		objects int
		on      bool
		excess  int
	}{{0, false, 0}, {99, false, 0}, {100, true, 10}, {120, true, 30}, {91, true, 1}, {90, false, 0}, {99, false, 0}, {101, true, 11}, {0, false, 0}} {
		if on, excess := b.On(c.objects), b.Excess(c.objects); on != c.on || excess != c.excess {
			t.Fatalf("%d objects: on %v, %d too many; want %v, %d", c.objects, on, excess, c.on, c.excess)
		}
	}
}

// TestSetAgainstModel compares the set with a sorted list.
func TestSetAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 3
		s := New(limit)
		model := map[types.UID]Lease{}
		now := start
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				l := lease(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), rapid.IntRange(0, 20).Draw(t, "n"),
					now.Add(-time.Duration(rapid.IntRange(0, 50).Draw(t, "ago"))*time.Second), time.Duration(rapid.IntRange(0, 200).Draw(t, "keep"))*time.Second)
				next, some := s.Next()
				sooner := s.Add(l)
				model[l.UID] = l
				if (!some || l.Due.Before(next)) && !sooner {
					t.Fatal("a lease that goes first is not told")
				}
			},
			"remove": func(t *rapid.T) {
				l := lease(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "namespace"), rapid.IntRange(0, 20).Draw(t, "n"), now, 0)
				s.Remove(l.UID)
				delete(model, l.UID)
			},
			"take": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 60).Draw(t, "seconds")) * time.Second)
				excess := rapid.IntRange(0, 4).Draw(t, "excess")
				want := map[types.UID]Cause{}
				kept := map[string]int{}
				inOrder := slices.SortedFunc(maps.Values(model), func(a, b Lease) int {
					return cmp.Or(a.Finished.Compare(b.Finished), cmp.Compare(a.UID, b.UID))
				})
				for _, l := range inOrder {
					if !l.Due.After(now) {
						want[l.UID] = Aged
					} else {
						kept[l.Key.Namespace]++
					}
				}
				for _, l := range inOrder {
					if want[l.UID] == "" && kept[l.Key.Namespace] > limit {
						want[l.UID] = Crowded
						kept[l.Key.Namespace]--
					}
				}
				for _, l := range inOrder {
					if want[l.UID] == "" && len(want) < excess {
						want[l.UID] = Braked
					}
				}
				got := map[types.UID]Cause{}
				for _, l := range s.Take(now, excess) {
					got[l.UID] = l.Cause
					delete(model, l.UID)
				}
				if !maps.Equal(got, want) {
					t.Fatalf("took %v, want %v", got, want)
				}
			},
			"": func(t *rapid.T) {
				if s.Len() != len(model) {
					t.Fatalf("%d are kept, want %d", s.Len(), len(model))
				}
				next, some := s.Next()
				var want time.Time
				for _, l := range model {
					if want.IsZero() || l.Due.Before(want) {
						want = l.Due
					}
				}
				if some != (len(model) > 0) || some && !next.Equal(want) {
					t.Fatalf("next at %v, want %v", next, want)
				}
			},
		})
	})
}
