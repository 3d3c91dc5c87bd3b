// Package queue orders the leases that wait for a proxy.
//
// Groups take turns, and within a group its holders do, however many leases each has waiting; within one holder the first
// come is the first served. A lease that nothing can serve stands in nobody's way: leases that ask for the same thing have
// the same shape, and once one shape could not be served it is not tried again until Retry. So a freed slot costs one try per
// shape and not one per waiting lease, and a lease that comes while nothing has changed costs one try at most.
package queue

import (
	"cmp"
	"container/list"
	"slices"
)

// Item is one lease that waits.
type Item[T any] struct {
	// ID is unique in the queue.
	ID string
	// Group and Holder say whose turn it takes. Holders of one name in two groups have nothing in common.
	Group, Holder string
	// Shape is equal for leases that the same proxies can serve.
	Shape string
	Value T

	arrival uint64
	line    *line[T]
	element *list.Element
}

// Queue is not safe for concurrent use: its owner's lock makes a pass and a removal exclude each other.
//
// What may be offered is in three levels of heaps: open groups, their open holders, their open lines. A line is open unless its
// shape is refused, a holder is while it has an open line, and a group while it has an open holder.
type Queue[T any] struct {
	items    map[string]*Item[T]
	groups   map[string]*group[T]
	shapes   map[string]*shape[T]
	open     ordered[*group[T]]
	arrivals uint64
	// turn is the number of turns the group that was served last has had; newcomers start with it.
	turn uint64
}

// group is the holders that share turns.
type group[T any] struct {
	name    string
	turns   uint64
	holders map[string]*holder[T]
	open    ordered[*holder[T]]
	at      int
	// turn is the number of turns the holder that was served last has had; newcomers start with it.
	turn uint64
}

// holder is what one holder has waiting.
type holder[T any] struct {
	name  string
	group *group[T]
	turns uint64
	lines map[string]*line[T] // by shape
	open  ordered[*line[T]]
	at    int
}

// line is what one holder has waiting of one shape, first come first. It is never empty.
type line[T any] struct {
	holder *holder[T]
	shape  *shape[T]
	items  list.List // of *Item[T]
	at     int
	// slot is its place in the shape's lines.
	slot int
}

// shape is all lines of one shape. There is at least one.
type shape[T any] struct {
	name    string
	refused bool
	lines   []*line[T]
}

// New makes an empty queue.
func New[T any]() *Queue[T] {
	return &Queue[T]{items: map[string]*Item[T]{}, groups: map[string]*group[T]{}, shapes: map[string]*shape[T]{}}
}

// Add puts an item at the end. It tells whether the item is new; one whose ID waits already keeps its place.
func (q *Queue[T]) Add(item *Item[T]) bool {
	if q.items[item.ID] != nil {
		return false
	}
	g := q.groups[item.Group]
	if g == nil {
		g = &group[T]{name: item.Group, turns: q.turn, holders: map[string]*holder[T]{}, at: -1}
		q.groups[item.Group] = g
	}
	h := g.holders[item.Holder]
	if h == nil {
		h = &holder[T]{name: item.Holder, group: g, turns: g.turn, lines: map[string]*line[T]{}, at: -1}
		g.holders[item.Holder] = h
	}
	l := h.lines[item.Shape]
	if l == nil {
		s := q.shapes[item.Shape]
		if s == nil {
			s = &shape[T]{name: item.Shape}
			q.shapes[item.Shape] = s
		}
		l = &line[T]{holder: h, shape: s, at: -1, slot: len(s.lines)}
		s.lines = append(s.lines, l)
		h.lines[item.Shape] = l
	}
	q.arrivals++
	item.arrival, item.line = q.arrivals, l
	item.element = l.items.PushBack(item)
	q.items[item.ID] = item
	q.place(l)
	return true
}

// Remove takes an item out. It is nil when the item does not wait (any more).
func (q *Queue[T]) Remove(id string) *Item[T] {
	item := q.items[id]
	if item == nil {
		return nil
	}
	delete(q.items, id)
	l := item.line
	l.items.Remove(item.element)
	q.place(l)
	if l.items.Len() > 0 {
		return item
	}
	s, h := l.shape, l.holder
	last := s.lines[len(s.lines)-1]
	s.lines[l.slot], last.slot = last, l.slot
	s.lines = slices.Delete(s.lines, len(s.lines)-1, len(s.lines))
	if len(s.lines) == 0 {
		delete(q.shapes, s.name)
	}
	if delete(h.lines, s.name); len(h.lines) == 0 {
		delete(h.group.holders, h.name)
	}
	if len(h.group.holders) == 0 {
		delete(q.groups, h.group.name)
	}
	return item
}

// Get finds an item that waits; nil when there is none.
func (q *Queue[T]) Get(id string) *Item[T] { return q.items[id] }

// Len is how many items wait.
func (q *Queue[T]) Len() int { return len(q.items) }

// Retry lets everything be offered again. It is to be called when something that was refused might be accepted.
func (q *Queue[T]) Retry() {
	for _, s := range q.shapes {
		if s.refused {
			q.refuse(s, false)
		}
	}
}

// Pass offers the items to serve, in their order. An item that serve accepts has left the queue; when it refuses, no other
// item of that shape is offered until Retry, nor any that comes meanwhile. It returns how many were accepted. serve must not
// touch the queue, and an item it accepts must not make others acceptable that it has refused.
func (q *Queue[T]) Pass(serve func(*Item[T]) bool) (served int) {
	for !q.open.empty() {
		g := q.open.first()
		h := g.open.first()
		l := h.open.first()
		item := l.first()
		if !serve(item) {
			q.refuse(l.shape, true)
			continue
		}
		served++
		q.Remove(item.ID)
		// Whoever had no turn for long, because nothing served it, gets the next one and not all it has missed.
		g.turn = max(g.turn, h.turns)
		h.turns = g.turn + 1
		q.turn = max(q.turn, g.turns)
		g.turns = q.turn + 1
		q.reorder(h)
	}
	return served
}

// refuse closes or opens all lines of a shape.
func (q *Queue[T]) refuse(s *shape[T], refused bool) {
	s.refused = refused
	for _, l := range s.lines {
		q.place(l)
	}
}

// place puts a line where it belongs after it has changed.
func (q *Queue[T]) place(l *line[T]) {
	l.holder.open.keep(l, !l.shape.refused && l.items.Len() > 0)
	q.reorder(l.holder)
}

// reorder puts a holder and its group where they belong after their turns, or what is theirs, have changed.
func (q *Queue[T]) reorder(h *holder[T]) {
	h.group.open.keep(h, !h.open.empty())
	q.open.keep(h.group, !h.group.open.empty())
}

func (l *line[T]) first() *Item[T] { return l.items.Front().Value.(*Item[T]) }

// Lines are ordered by whose first item came first; holders and groups by how many turns they have had, then by whose next
// item came first. What is refused does not count: waiting in vain gathers no right to be earlier elsewhere.

func (l *line[T]) index() *int                { return &l.at }
func (l *line[T]) before(other *line[T]) bool { return l.first().arrival < other.first().arrival }

func (h *holder[T]) index() *int { return &h.at }
func (h *holder[T]) before(other *holder[T]) bool {
	return cmp.Or(cmp.Compare(h.turns, other.turns), cmp.Compare(h.next(), other.next())) < 0
}

// next is the arrival of the item that would be offered; there must be one.
func (h *holder[T]) next() uint64 { return h.open.first().first().arrival }

func (g *group[T]) index() *int { return &g.at }
func (g *group[T]) before(other *group[T]) bool {
	return cmp.Or(cmp.Compare(g.turns, other.turns), cmp.Compare(g.open.first().next(), other.open.first().next())) < 0
}
