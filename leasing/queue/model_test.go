package queue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model says in the simplest way in which order items are offered: it looks through everything for every single decision.
type model struct {
	items []*Item[int]
	turns map[string]int
	// turn of who was served last.
	turn int
}

func (m *model) add(id, holder, shape string) {
	if _, waits := m.turns[holder]; !waits {
		m.turns[holder] = m.turn
	}
	m.items = append(m.items, &Item[int]{ID: id, Holder: holder, Shape: shape})
}

func (m *model) remove(id string) bool {
	i := slices.IndexFunc(m.items, func(item *Item[int]) bool { return item.ID == id })
	if i < 0 {
		return false
	}
	holder := m.items[i].Holder
	m.items = slices.Delete(m.items, i, i+1)
	if !slices.ContainsFunc(m.items, func(item *Item[int]) bool { return item.Holder == holder }) {
		delete(m.turns, holder)
	}
	return true
}

// pass gives the items that are offered, in their order, when so many of each shape can be served.
func (m *model) pass(capacity map[string]int) (offered []string) {
	refused := map[string]bool{}
	for {
		first := func(holder string, all bool) (int, *Item[int]) {
			for i, item := range m.items {
				if item.Holder == holder && (all || !refused[item.Shape]) {
					return i, item
				}
			}
			return 0, nil
		}
		holders := slices.DeleteFunc(slices.Collect(maps.Keys(m.turns)), func(holder string) bool {
			_, item := first(holder, false)
			return item == nil
		})
		if len(holders) == 0 {
			return offered
		}
		next := slices.MinFunc(holders, func(a, b string) int {
			oldestA, _ := first(a, true)
			oldestB, _ := first(b, true)
			return cmp.Or(cmp.Compare(m.turns[a], m.turns[b]), cmp.Compare(oldestA, oldestB))
		})
		_, item := first(next, false)
		offered = append(offered, item.ID)
		if capacity[item.Shape] == 0 {
			refused[item.Shape] = true
			continue
		}
		capacity[item.Shape]--
		m.turn = max(m.turn, m.turns[next])
		m.turns[next] = m.turn + 1
		m.remove(item.ID)
	}
}

func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, m := New[int](), &model{turns: map[string]int{}}
		next := 0
		shapes := []string{"x", "y", "z"}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				next++
				id, holder, shape := fmt.Sprint(next), rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "holder"), rapid.SampledFrom(shapes).Draw(t, "shape")
				m.add(id, holder, shape)
				add(q, id, holder, shape)
			},
			"remove": func(t *rapid.T) {
				id := fmt.Sprint(rapid.IntRange(1, max(1, next)).Draw(t, "id"))
				if got, want := q.Remove(id) != nil, m.remove(id); got != want {
					t.Fatalf("removed %s: %v, want %v", id, got, want)
				}
			},
			"pass": func(t *rapid.T) {
				capacity, left := map[string]int{}, map[string]int{}
				free := 0
				for _, shape := range shapes {
					capacity[shape] = rapid.IntRange(0, 3).Draw(t, shape)
					free += capacity[shape]
				}
				maps.Copy(left, capacity)
				var offered []string
				served := q.Pass(func(item *Item[int]) bool {
					offered = append(offered, item.ID)
					left[item.Shape]--
					return left[item.Shape] >= 0
				})
				if want := m.pass(capacity); !slices.Equal(offered, want) {
					t.Fatalf("offered %v, want %v", offered, want)
				}
				// As many are woken as can be served, and one of each shape to find out that no more can.
				if len(offered) > served+len(shapes) || served > free {
					t.Fatalf("%d were offered and %d served of %d places", len(offered), served, free)
				}
			},
			"": func(t *rapid.T) {
				if q.Len() != len(m.items) || len(q.holders) != len(m.turns) {
					t.Fatalf("%d items of %d holders, want %d of %d", q.Len(), len(q.holders), len(m.items), len(m.turns))
				}
			},
		})
	})
}

// A lease that nothing serves for days must not earn its holder the right to a thousand others in a row.
func TestL12_WaitingInVainGathersNoCredit(t *testing.T) {
	q := New[int]()
	add(q, "in-vain", "b", "moon")
	onEarth := func(n int) (got []string) {
		q.Pass(func(i *Item[int]) bool {
			if i.Shape == "moon" || len(got) == n {
				return false
			}
			got = append(got, i.Holder)
			return true
		})
		return got
	}
	for i := range 1000 {
		add(q, fmt.Sprint("a", i), "a", "earth")
	}
	if got := onEarth(500); len(got) != 500 {
		t.Fatalf("served %d", len(got))
	}
	for i := range 500 {
		add(q, fmt.Sprint("b", i), "b", "earth")
		add(q, fmt.Sprint("c", i), "c", "earth")
	}
	counts := map[string]int{}
	for _, holder := range onEarth(30) {
		counts[holder]++
	}
	if counts["a"] < 9 || counts["b"] < 9 || counts["c"] < 9 {
		t.Fatalf("of 30 places the holders got %v", counts)
	}
}
