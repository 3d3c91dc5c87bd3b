package queue

import "container/heap"

// member of a heap: it knows its order and where it is.
type member[E any] interface {
	comparable
	// before tells whether it is in front of the other one.
	before(E) bool
	// index is its place in the heap; -1: it is in none.
	index() *int
}

// ordered is a heap in which everything is found, moved and taken out in logarithmic time.
type ordered[E member[E]] struct{ members members[E] }

// first is the one in front; there must be one.
func (o *ordered[E]) first() E { return o.members[0] }

func (o *ordered[E]) empty() bool { return len(o.members) == 0 }

// keep puts a member where it belongs, whether it was in the heap or not, or takes it out.
func (o *ordered[E]) keep(e E, in bool) {
	switch i := *e.index(); {
	case in && i < 0:
		heap.Push(&o.members, e)
	case in:
		heap.Fix(&o.members, i)
	case i >= 0:
		heap.Remove(&o.members, i)
	}
}

// members implement heap.Interface.
type members[E member[E]] []E

func (m members[E]) Len() int           { return len(m) }
func (m members[E]) Less(i, j int) bool { return m[i].before(m[j]) }
func (m members[E]) Swap(i, j int) {
	m[i], m[j] = m[j], m[i]
	*m[i].index(), *m[j].index() = i, j
}

func (m *members[E]) Push(x any) {
	e := x.(E)
	*e.index() = len(*m)
	*m = append(*m, e)
}

func (m *members[E]) Pop() any {
	old := *m
	last := old[len(old)-1]
	*last.index() = -1
	var none E
	old[len(old)-1] = none
	*m = old[:len(old)-1]
	return last
}
