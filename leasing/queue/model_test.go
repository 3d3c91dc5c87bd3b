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
	// turns that a group, or a holder of it, has had.
	turns map[party]int
	// turn of who was served last: of the groups, and of the holders of each.
	turn map[string]int
	// refused shapes.
	refused map[string]bool
}

// party is a group, or a holder of it.
type party struct{ group, holder string }

// groups is the key of model.turn for those of the groups.
const groups = ""

func newModel() *model {
	return &model{turns: map[party]int{}, turn: map[string]int{}, refused: map[string]bool{}}
}

func (m *model) add(id, group, holder, shape string) {
	if _, waits := m.turns[party{group, ""}]; !waits {
		m.turns[party{group, ""}] = m.turn[groups]
	}
	if _, waits := m.turns[party{group, holder}]; !waits {
		m.turns[party{group, holder}] = m.turn[group]
	}
	m.items = append(m.items, &Item[int]{ID: id, Group: group, Holder: holder, Shape: shape})
}

// waits tells whether there is an item of that kind.
func (m *model) waits(is func(*Item[int]) bool) bool { return slices.ContainsFunc(m.items, is) }

func (m *model) remove(id string) bool {
	i := slices.IndexFunc(m.items, func(item *Item[int]) bool { return item.ID == id })
	if i < 0 {
		return false
	}
	gone := m.items[i]
	m.items = slices.Delete(m.items, i, i+1)
	if !m.waits(func(item *Item[int]) bool { return item.Group == gone.Group && item.Holder == gone.Holder }) {
		delete(m.turns, party{gone.Group, gone.Holder})
	}
	if !m.waits(func(item *Item[int]) bool { return item.Group == gone.Group }) {
		delete(m.turns, party{gone.Group, ""})
		delete(m.turn, gone.Group)
	}
	// Nobody has to remember what nobody waits for.
	if !m.waits(func(item *Item[int]) bool { return item.Shape == gone.Shape }) {
		delete(m.refused, gone.Shape)
	}
	return true
}

// next is the item to offer; nil when there is none.
func (m *model) next() *Item[int] {
	type candidate struct {
		place int
		item  *Item[int]
	}
	// Of each holder the first that is not refused, then of each group, then of all.
	best := map[party]candidate{}
	choose := func(up func(*Item[int]) party, less func(a, b candidate) int, from map[party]candidate) map[party]candidate {
		to := map[party]candidate{}
		for _, c := range from {
			key := up(c.item)
			if known, ok := to[key]; !ok || less(c, known) < 0 {
				to[key] = c
			}
		}
		return to
	}
	for place, item := range m.items {
		key := party{item.Group, item.Holder}
		if _, known := best[key]; !known && !m.refused[item.Shape] {
			best[key] = candidate{place, item}
		}
	}
	best = choose(func(i *Item[int]) party { return party{i.Group, ""} }, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(m.turns[party{a.item.Group, a.item.Holder}], m.turns[party{b.item.Group, b.item.Holder}]), cmp.Compare(a.place, b.place))
	}, best)
	best = choose(func(*Item[int]) party { return party{} }, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(m.turns[party{a.item.Group, ""}], m.turns[party{b.item.Group, ""}]), cmp.Compare(a.place, b.place))
	}, best)
	return best[party{}].item
}

// pass gives the items that are offered, in their order, when so many of each shape can be served.
func (m *model) pass(capacity map[string]int) (offered []string) {
	for {
		item := m.next()
		if item == nil {
			return offered
		}
		offered = append(offered, item.ID)
		if capacity[item.Shape] == 0 {
			m.refused[item.Shape] = true
			continue
		}
		capacity[item.Shape]--
		serve := func(level string, who party) {
			m.turn[level] = max(m.turn[level], m.turns[who])
			m.turns[who] = m.turn[level] + 1
		}
		serve(item.Group, party{item.Group, item.Holder})
		serve(groups, party{item.Group, ""})
		m.remove(item.ID)
	}
}

func TestQueueAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, m := New[int](), newModel()
		next := 0
		shapes := []string{"x", "y", "z"}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				next++
				item := &Item[int]{
					ID: fmt.Sprint(next), Group: rapid.SampledFrom([]string{"one", "two", "three"}).Draw(t, "group"),
					Holder: rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(t, "holder"), Shape: rapid.SampledFrom(shapes).Draw(t, "shape"),
				}
				m.add(item.ID, item.Group, item.Holder, item.Shape)
				if !q.Add(item) || q.Add(&Item[int]{ID: item.ID, Group: "four"}) {
					t.Fatal("an ID waits once")
				}
			},
			"remove": func(t *rapid.T) {
				id := fmt.Sprint(rapid.IntRange(1, max(1, next)).Draw(t, "id"))
				if got, want := q.Remove(id) != nil, m.remove(id); got != want {
					t.Fatalf("removed %s: %v, want %v", id, got, want)
				}
			},
			"retry": func(*rapid.T) {
				q.Retry()
				clear(m.refused)
			},
			"pass": func(t *rapid.T) {
				capacity, left := map[string]int{}, map[string]int{}
				free := 0
				for _, shape := range shapes {
					// What was refused can be served by no more than before: nobody has said so.
					if !m.refused[shape] {
						capacity[shape] = rapid.IntRange(0, 3).Draw(t, shape)
					}
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
				parties := len(q.groups)
				for _, g := range q.groups {
					parties += len(g.holders)
				}
				if q.Len() != len(m.items) || parties != len(m.turns) {
					t.Fatalf("%d items of %d parties, want %d of %d", q.Len(), parties, len(m.items), len(m.turns))
				}
				consistent(t, q, m.refused)
			},
		})
	})
}

// consistent checks what the queue says about itself: everything is where it says it is, and open is what is not refused.
func consistent(t *rapid.T, q *Queue[int], refused map[string]bool) {
	lines, openGroups := 0, 0
	for _, g := range q.groups {
		openHolders := 0
		for _, h := range g.holders {
			openLines := 0
			for name, l := range h.lines {
				lines++
				if l.items.Len() == 0 || q.shapes[name] != l.shape || l.shape.lines[l.slot] != l {
					t.Fatalf("the line of %s/%s for %s is lost", g.name, h.name, name)
				}
				if l.shape.refused != refused[name] || (l.at < 0) != refused[name] {
					t.Fatalf("shape %s: refused %v, index %d, want refused %v", name, l.shape.refused, l.at, refused[name])
				}
				if l.at >= 0 {
					openLines++
				}
			}
			if len(h.open.members) != openLines || (h.at >= 0) != (openLines > 0) {
				t.Fatalf("%s/%s has %d of %d open lines and is at %d", g.name, h.name, len(h.open.members), openLines, h.at)
			}
			if openLines > 0 {
				openHolders++
			}
		}
		if len(g.open.members) != openHolders || (g.at >= 0) != (openHolders > 0) {
			t.Fatalf("%s has %d of %d open holders and is at %d", g.name, len(g.open.members), openHolders, g.at)
		}
		if openHolders > 0 {
			openGroups++
		}
	}
	ofShapes := 0
	for _, s := range q.shapes {
		ofShapes += len(s.lines)
	}
	if len(q.open.members) != openGroups || ofShapes != lines {
		t.Fatalf("%d of %d open groups, %d of %d lines", len(q.open.members), openGroups, ofShapes, lines)
	}
}

// A lease that nothing serves for days must not earn its holder the right to a thousand others in a row.
func TestL12_WaitingInVainGathersNoCredit(t *testing.T) {
	q := New[int]()
	add(q, "in-vain", "b", "moon")
	onEarth := func(n int) (got []string) {
		q.Retry()
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
