// Package retention decides which leases that have ended are deleted, and when.
//
// A finished lease is kept for a while, so that its holder learns why it ended and can still report what it saw. But it is
// kept at the expense of everybody's API server, so the number of kept ones is bounded: in each namespace, and over all of
// them when there are too many leases altogether. Those that ended first go first.
//
// There is no I/O here and no clock: callers pass the time.
package retention

import (
	"cmp"
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// MaxFinishedPerNamespace is the most finished leases that a namespace keeps; what is more is deleted before its time.
const MaxFinishedPerNamespace = 1000

// Cause says why a lease is to be deleted.
type Cause string

const (
	// Aged leases were kept as long as they asked for.
	Aged Cause = "age"
	// Crowded leases are too many for their namespace.
	Crowded Cause = "namespace"
	// Braked leases make room, because there are too many leases altogether.
	Braked Cause = "brake"
)

// Lease is a finished lease.
type Lease struct {
	Key types.NamespacedName
	UID types.UID
	// Finished is when it ended, Due until when it wants to be kept.
	Finished, Due time.Time
	// Cause is set by Take.
	Cause Cause
}

// Set is the finished leases that are kept. It is safe for concurrent use.
type Set struct {
	// limit per namespace.
	limit int

	mu     sync.Mutex
	byUID  map[types.UID]*entry
	due    line
	spaces map[string]*line
}

// New makes an empty set that keeps at most that many leases of a namespace; 0: MaxFinishedPerNamespace.
func New(perNamespace int) *Set {
	return &Set{
		limit: cmp.Or(perNamespace, MaxFinishedPerNamespace), byUID: map[types.UID]*entry{}, spaces: map[string]*line{},
		due: line{slot: byDue, at: func(l *Lease) time.Time { return l.Due }},
	}
}

// Add keeps a lease, or takes in what changed of it. It tells whether something is to be taken out earlier than was known
// before.
func (s *Set) Add(l Lease) (sooner bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(l.UID)
	e := &entry{Lease: l}
	s.byUID[l.UID] = e
	space := s.spaces[l.Key.Namespace]
	if space == nil {
		space = &line{slot: byEnd, at: func(l *Lease) time.Time { return l.Finished }}
		s.spaces[l.Key.Namespace] = space
	}
	heap.Push(space, e)
	heap.Push(&s.due, e)
	return s.due.entries[0] == e || space.Len() > s.limit
}

// Remove forgets a lease.
func (s *Set) Remove(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(uid)
}

// Take takes out what is to be deleted now: what was kept long enough, what its namespace has too much, and, of what is left,
// the excess that ended first. Who cannot delete a lease adds it again.
func (s *Set) Take(now time.Time, excess int) []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []Lease
	take := func(e *entry, cause Cause) {
		s.remove(e.UID)
		e.Cause = cause
		out = append(out, e.Lease)
	}
	for s.due.Len() > 0 && !s.due.entries[0].Due.After(now) {
		take(s.due.entries[0], Aged)
	}
	for _, space := range s.spaces {
		for space.Len() > s.limit {
			take(space.entries[0], Crowded)
		}
	}
	for excess -= len(out); excess > 0 && len(s.byUID) > 0; excess-- {
		var first *entry
		for _, space := range s.spaces {
			if e := space.entries[0]; first == nil || before(&e.Lease, &first.Lease, space.at) {
				first = e
			}
		}
		take(first, Braked)
	}
	return out
}

// Next is when the next lease was kept long enough; false when there is none.
func (s *Set) Next() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.due.Len() == 0 {
		return time.Time{}, false
	}
	return s.due.entries[0].Due, true
}

// Len is how many leases are kept.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.byUID)
}

func (s *Set) remove(uid types.UID) {
	e := s.byUID[uid]
	if e == nil {
		return
	}
	delete(s.byUID, uid)
	heap.Remove(&s.due, e.index[byDue])
	space := s.spaces[e.Key.Namespace]
	heap.Remove(space, e.index[byEnd])
	if space.Len() == 0 {
		delete(s.spaces, e.Key.Namespace)
	}
}

// The lines an entry stands in.
const (
	byDue = iota
	byEnd
	lines
)

type entry struct {
	Lease
	index [lines]int
}

// line is a heap of leases by a moment.
type line struct {
	slot    int
	at      func(*Lease) time.Time
	entries []*entry
}

func before(a, b *Lease, at func(*Lease) time.Time) bool {
	return cmp.Or(at(a).Compare(at(b)), cmp.Compare(a.UID, b.UID)) < 0
}

func (l *line) Len() int { return len(l.entries) }
func (l *line) Less(i, j int) bool {
	return before(&l.entries[i].Lease, &l.entries[j].Lease, l.at)
}
func (l *line) Swap(i, j int) {
	l.entries[i], l.entries[j] = l.entries[j], l.entries[i]
	l.entries[i].index[l.slot], l.entries[j].index[l.slot] = i, j
}
func (l *line) Push(x any) {
	e := x.(*entry)
	e.index[l.slot] = len(l.entries)
	l.entries = append(l.entries, e)
}
func (l *line) Pop() any {
	last := len(l.entries) - 1
	e := l.entries[last]
	l.entries[last] = nil
	l.entries = l.entries[:last]
	return e
}
