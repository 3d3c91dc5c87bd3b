// Package queue orders the leases that wait for a proxy.
//
// Holders take turns, however many leases each has waiting; within one holder the first come is the first served. A lease
// that nothing can serve stands in nobody's way: leases that ask for the same thing have the same shape, and once one
// shape could not be served it is not tried again in the same pass. So a freed slot costs one try per shape and not one
// per waiting lease.
package queue

import (
	"cmp"
	"container/heap"
	"container/list"
	"iter"
	"slices"
)

// Item is one lease that waits.
type Item[T any] struct {
	// ID is unique in the queue.
	ID string
	// Holder is whose turn it takes.
	Holder string
	// Shape is equal for leases that the same proxies can serve.
	Shape string
	Value T

	arrival uint64
	element *list.Element
}

// Queue is not safe for concurrent use: its owner's lock makes a pass and a removal exclude each other.
type Queue[T any] struct {
	items    map[string]*Item[T]
	holders  map[string]*holder[T]
	arrivals uint64
	// turn is the number of turns the holder that was served last has had; newcomers start with it.
	turn uint64
}

// holder is what one holder has waiting.
type holder[T any] struct {
	name   string
	turns  uint64
	size   int
	shapes map[string]*list.List // of *Item[T], first come first
}

// New makes an empty queue.
func New[T any]() *Queue[T] {
	return &Queue[T]{items: map[string]*Item[T]{}, holders: map[string]*holder[T]{}}
}

// Add puts an item at the end. It tells whether the item is new; one whose ID waits already keeps its place.
func (q *Queue[T]) Add(item *Item[T]) bool {
	if q.items[item.ID] != nil {
		return false
	}
	h := q.holders[item.Holder]
	if h == nil {
		h = &holder[T]{name: item.Holder, turns: q.turn, shapes: map[string]*list.List{}}
		q.holders[item.Holder] = h
	}
	line := h.shapes[item.Shape]
	if line == nil {
		line = list.New()
		h.shapes[item.Shape] = line
	}
	q.arrivals++
	item.arrival = q.arrivals
	item.element = line.PushBack(item)
	h.size++
	q.items[item.ID] = item
	return true
}

// Remove takes an item out. It is nil when the item does not wait (any more).
func (q *Queue[T]) Remove(id string) *Item[T] {
	item := q.items[id]
	if item == nil {
		return nil
	}
	delete(q.items, id)
	h := q.holders[item.Holder]
	line := h.shapes[item.Shape]
	line.Remove(item.element)
	if line.Len() == 0 {
		delete(h.shapes, item.Shape)
	}
	if h.size--; h.size == 0 {
		delete(q.holders, item.Holder)
	}
	return item
}

// Get finds an item that waits; nil when there is none.
func (q *Queue[T]) Get(id string) *Item[T] { return q.items[id] }

// Len is how many items wait.
func (q *Queue[T]) Len() int { return len(q.items) }

// All are the items that wait, in no order.
func (q *Queue[T]) All() iter.Seq[*Item[T]] {
	return func(yield func(*Item[T]) bool) {
		for _, item := range q.items {
			if !yield(item) {
				return
			}
		}
	}
}

// Pass offers the items to serve, in their order. An item that serve accepts has left the queue; when it refuses, no other
// item of that shape is offered in this pass. It returns how many were accepted. serve must not touch the queue.
func (q *Queue[T]) Pass(serve func(*Item[T]) bool) (served int) {
	turns := make(turnHeap[T], 0, len(q.holders))
	for _, h := range q.holders {
		turns = append(turns, h)
	}
	heap.Init(&turns)
	refused := map[string]bool{}
	for len(turns) > 0 {
		h := turns[0]
		item := h.first(refused)
		if item == nil {
			heap.Pop(&turns)
			continue
		}
		if !serve(item) {
			refused[item.Shape] = true
			continue
		}
		served++
		q.Remove(item.ID)
		// Whoever had no turn for long, because nothing served it, gets the next one and not all it has missed.
		q.turn = max(q.turn, h.turns)
		h.turns = q.turn + 1
		heap.Fix(&turns, 0)
	}
	return served
}

// first is the holder's first item whose shape was not refused; nil when there is none.
func (h *holder[T]) first(refused map[string]bool) *Item[T] {
	var best *Item[T]
	for shape, line := range h.shapes {
		if refused[shape] {
			continue
		}
		if item := line.Front().Value.(*Item[T]); best == nil || item.arrival < best.arrival {
			best = item
		}
	}
	return best
}

// turnHeap orders holders by how many turns they have had, then by whose first item came first.
type turnHeap[T any] []*holder[T]

func (t turnHeap[T]) Len() int { return len(t) }
func (t turnHeap[T]) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(t[i].turns, t[j].turns), cmp.Compare(t[i].oldest(), t[j].oldest())) < 0
}
func (t turnHeap[T]) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *turnHeap[T]) Push(x any)   { *t = append(*t, x.(*holder[T])) }
func (t *turnHeap[T]) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = slices.Delete(old, len(old)-1, len(old))
	return last
}

// oldest is the arrival of the holder's first item.
func (h *holder[T]) oldest() uint64 {
	if item := h.first(nil); item != nil {
		return item.arrival
	}
	return 0
}
