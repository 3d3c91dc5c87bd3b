package queue

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func add(q *Queue[int], id, holder, shape string) {
	q.Add(&Item[int]{ID: id, Holder: holder, Shape: shape})
}

// grants runs one pass that can serve n items and gives their IDs in order.
func grants(q *Queue[int], n int) []string {
	var ids []string
	q.Retry()
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

// Who makes up holders takes no more turns by it than anybody else.
func TestL12_MadeUpHoldersEarnNoTurns(t *testing.T) {
	q := New[int]()
	for i := range 1000 {
		q.Add(&Item[int]{ID: fmt.Sprint("a", i), Group: "a", Holder: fmt.Sprint("worker-", i), Shape: "any"})
	}
	for i := range 10 {
		q.Add(&Item[int]{ID: fmt.Sprint("b", i), Group: "b", Holder: "b", Shape: "any"})
	}
	got := grants(q, 20)
	if n := len(slices.DeleteFunc(slices.Clone(got), func(id string) bool { return id[0] == 'a' })); n != 10 {
		t.Fatalf("of 20 places b got %d: %v", n, got)
	}
}

// As long as nothing changes, a lease that comes costs one try, or none when its like wait already; and it may be served
// before those that came earlier, because nothing can serve them.
func TestL11_ALeaseThatComesIsTriedAlone(t *testing.T) {
	q := New[int]()
	for i := range 500 {
		add(q, fmt.Sprint(i), fmt.Sprint("holder", i%7), fmt.Sprint("shape", i%50))
	}
	var offered []string
	serves := ""
	pass := func() []string {
		offered = nil
		q.Pass(func(i *Item[int]) bool { offered = append(offered, i.ID); return i.Shape == serves })
		return offered
	}
	if got := pass(); len(got) != 50 {
		t.Fatalf("%d tries for 50 shapes", len(got))
	}
	for name, c := range map[string]struct {
		shape, serves string
		want          []string
	}{
		"its like wait":          {"shape7", "shape7", nil},
		"of a new kind":          {"new", "", []string{"of a new kind"}},
		"of a kind that is free": {"free", "free", []string{"of a kind that is free"}},
	} {
		add(q, name, "late", c.shape)
		serves = c.serves
		if got := pass(); !slices.Equal(got, c.want) {
			t.Errorf("%s: offered %v, want %v", name, got, c.want)
		}
	}
	serves = "shape7"
	q.Retry()
	// All of shape 7 are served, and each of the other 50 shapes is refused once.
	if got := pass(); len(got) != 11+50 {
		t.Errorf("%d tries after something has changed", len(got))
	}
}

// A pass costs as much for one holder's many wishes as for many holders' one.
func TestPassOfOneHolderIsNotDearerThanOfMany(t *testing.T) {
	const n = 8000
	passTime := func(holder func(i int) string) time.Duration {
		q := New[int]()
		for i := range n {
			add(q, fmt.Sprint(i), holder(i), fmt.Sprint("shape", i))
		}
		start := time.Now()
		q.Retry()
		if q.Pass(func(*Item[int]) bool { return false }) != 0 || len(q.shapes) != n {
			t.Fatal("something was served")
		}
		return time.Since(start)
	}
	// The least of several is what it costs without whatever else the machine does.
	one, many := time.Hour, time.Hour
	for range 7 {
		one = min(one, passTime(func(int) string { return "one" }))
		many = min(many, passTime(func(i int) string { return fmt.Sprint("holder", i) }))
	}
	t.Logf("%d shapes: of one holder %v, of as many %v", n, one, many)
	if one > 4*many {
		t.Errorf("a pass over %d shapes takes %v for one holder and %v for as many", n, one, many)
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
				q.Retry()
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
