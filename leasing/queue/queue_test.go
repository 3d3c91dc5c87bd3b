package queue

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func add(q *Queue[int], id, holder, shape string) {
	q.Add(&Item[int]{ID: id, Holder: holder, Shape: shape})
}

// grants runs one pass that can serve n items and gives their IDs in order.
func grants(q *Queue[int], n int) []string {
	var ids []string
	q.Pass(func(i *Item[int]) bool {
		if len(ids) == n {
			return false
		}
		ids = append(ids, i.ID)
		return true
	})
	return ids
}

func TestL12_HolderWithManyDoesNotStarveHolderWithOne(t *testing.T) {
	q := New[int]()
	for i := range 1000 {
		add(q, fmt.Sprintf("a%d", i), "a", "any")
	}
	if got := grants(q, 3); !slices.Equal(got, []string{"a0", "a1", "a2"}) {
		t.Fatalf("first pass served %v", got)
	}
	add(q, "b0", "b", "any")
	if got := grants(q, 2); !slices.Contains(got, "b0") {
		t.Fatalf("b was not served within one round: %v", got)
	}
}

func TestL10_UnservableShapeBlocksNobody(t *testing.T) {
	q := New[int]()
	add(q, "impossible", "a", "moon")
	add(q, "possible", "a", "earth")
	var served []string
	q.Pass(func(i *Item[int]) bool {
		if i.Shape == "moon" {
			return false
		}
		served = append(served, i.ID)
		return true
	})
	if !slices.Equal(served, []string{"possible"}) || q.Len() != 1 {
		t.Fatalf("served %v, %d left", served, q.Len())
	}
}

func TestL11_OneFreedSlotIsOneTryPerShape(t *testing.T) {
	q := New[int]()
	for i := range 500 {
		add(q, fmt.Sprint(i), fmt.Sprint("holder", i%7), "any")
	}
	tries, free := 0, 1
	served := q.Pass(func(*Item[int]) bool {
		tries++
		free--
		return free >= 0
	})
	if served != 1 || tries != 2 {
		t.Fatalf("served %d with %d tries, want 1 with 2 (one accepted, one refused)", served, tries)
	}
}

func TestFirstComeFirstServedWithinAHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := New[int]()
		waiting := map[string][]string{} // holder/shape -> ids in order
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				holder := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "holder")
				shape := rapid.SampledFrom([]string{"x", "y"}).Draw(t, "shape")
				next++
				id := fmt.Sprint(next)
				add(q, id, holder, shape)
				waiting[holder+shape] = append(waiting[holder+shape], id)
			},
			"remove": func(t *rapid.T) {
				id := fmt.Sprint(rapid.IntRange(1, 50).Draw(t, "id"))
				item := q.Remove(id)
				known := false
				for k, ids := range waiting {
					if i := slices.Index(ids, id); i >= 0 {
						waiting[k] = slices.Delete(ids, i, i+1)
						known = true
					}
				}
				if known != (item != nil) {
					t.Fatalf("removed %v, known %v", item, known)
				}
			},
			"pass": func(t *rapid.T) {
				capacity := map[string]int{
					"x": rapid.IntRange(0, 4).Draw(t, "x"),
					"y": rapid.IntRange(0, 4).Draw(t, "y"),
				}
				perHolder := map[string]int{}
				q.Pass(func(i *Item[int]) bool {
					if capacity[i.Shape] == 0 {
						return false
					}
					line := waiting[i.Holder+i.Shape]
					if len(line) == 0 || line[0] != i.ID {
						t.Fatalf("%s of %s/%s served out of order %v", i.ID, i.Holder, i.Shape, line)
					}
					waiting[i.Holder+i.Shape] = line[1:]
					capacity[i.Shape]--
					perHolder[i.Holder]++
					return true
				})
				for shape, left := range capacity {
					for _, holder := range []string{"a", "b", "c"} {
						if left > 0 && len(waiting[holder+shape]) > 0 {
							t.Fatalf("capacity for %s left over while %s waits", shape, holder)
						}
					}
				}
			},
			"": func(t *rapid.T) {
				n := 0
				for _, ids := range waiting {
					n += len(ids)
				}
				if n != q.Len() {
					t.Fatalf("%d wait, want %d", q.Len(), n)
				}
			},
		})
	})
}
