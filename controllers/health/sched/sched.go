// Package sched runs something for each of many keys, each at its own time: one heap, one timer, a bounded number of
// slots. A timer or goroutine per proxy costs ten times the memory, and a work queue with a fixed pool of workers
// falls behind without limit as soon as a part of the fleet hangs.
package sched

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// DefaultSlots is how many runs are in flight at most. By Little's law 10 000 proxies with a period of 30 s of
	// which 30 % hang for 3 s need 305; with 64 slots such a fleet was probed minutes late.
	DefaultSlots = 512
	// BusySlots is how many runs are in flight at most while the process does not get the CPU time it needs. More would
	// wait for each other until all of them time out.
	BusySlots = 16
	// BackgroundPercent is the share of the slots that background keys may take, so that what is known to be dead
	// cannot delay what lives.
	BackgroundPercent = 75
)

// Options configures a Scheduler.
type Options struct {
	// Clock defaults to the real one.
	Clock clock.Clock
	// Slots defaults to DefaultSlots.
	Slots int
	// Late, if set, is told how late each run started.
	Late func(time.Duration)
}

// Run does the work for a key and returns when it is due next and whether that run is background. It is never called
// twice at the same time for one key, unless the key was removed and added again meanwhile.
type Run[K comparable] func(ctx context.Context, key K, due time.Time) (next time.Time, background bool)

// Scheduler holds keys and their due times. It is safe for concurrent use.
type Scheduler[K comparable] struct {
	clock clock.Clock
	slots int
	late  func(time.Duration)

	mu       sync.Mutex
	items    map[K]*item[K]
	normal   dueHeap[K]
	back     dueHeap[K]
	inFlight int
	inBack   int
	busy     bool
	wake     chan struct{}
	running  sync.WaitGroup
}

type item[K comparable] struct {
	key         K
	due         time.Time
	background  bool
	index       int  // in its heap; -1 while it runs
	rescheduled bool // Set was called while it ran
}

// New returns an empty scheduler.
func New[K comparable](o Options) *Scheduler[K] {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Slots <= 0 {
		o.Slots = DefaultSlots
	}
	if o.Late == nil {
		o.Late = func(time.Duration) {}
	}
	return &Scheduler[K]{clock: o.Clock, slots: o.Slots, late: o.Late, items: map[K]*item[K]{}, wake: make(chan struct{}, 1)}
}

// Set adds a key or moves it to another due time. If the key is running, due applies to the run after it.
func (s *Scheduler[K]) Set(key K, due time.Time, background bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.items[key]
	switch {
	case !ok:
		it = &item[K]{key: key}
		s.items[key] = it
	case it.index < 0:
		it.due, it.background, it.rescheduled = due, background, true
		return
	default:
		heap.Remove(s.heapOf(it), it.index)
	}
	it.due, it.background = due, background
	heap.Push(s.heapOf(it), it)
	s.poke()
}

// Remove forgets a key. A run of it that is under way ends in its own time and is not followed by another one.
func (s *Scheduler[K]) Remove(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.items[key]
	if !ok {
		return
	}
	delete(s.items, key)
	if it.index >= 0 {
		heap.Remove(s.heapOf(it), it.index)
	}
}

// SetBusy says whether the process is short of CPU time: then at most BusySlots runs are in flight. What is more by
// then goes on.
func (s *Scheduler[K]) SetBusy(busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = busy
	s.poke()
}

// limit is how many runs may be in flight now.
func (s *Scheduler[K]) limit() int {
	if s.busy {
		return min(s.slots, BusySlots)
	}
	return s.slots
}

// Load returns how many runs are in flight, and how many may be.
func (s *Scheduler[K]) Load() (inFlight, slots int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inFlight, s.limit()
}

// Start runs what is due until ctx ends, and returns when the last run has ended.
func (s *Scheduler[K]) Start(ctx context.Context, run Run[K]) {
	timer := s.clock.NewTimer(time.Hour)
	defer timer.Stop()
	defer s.running.Wait()
	for ctx.Err() == nil {
		wait, wanted := s.dispatch(ctx, run)
		var tick <-chan time.Time
		if wanted {
			timer.Reset(wait)
			tick = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-tick:
		case <-s.wake:
		}
	}
}

// dispatch starts everything that is due and has a slot. It returns how long until the next start, and whether one is
// waiting for its time at all (and not for a slot or a new key, which wake the loop).
func (s *Scheduler[K]) dispatch(ctx context.Context, run Run[K]) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	for {
		next := s.head()
		if next == nil {
			return 0, false
		}
		if wait := next.due.Sub(now); wait > 0 {
			return wait, true
		}
		heap.Remove(s.heapOf(next), next.index)
		s.inFlight++
		if next.background {
			s.inBack++
		}
		s.late(now.Sub(next.due))
		s.running.Add(1)
		go s.run(ctx, run, next, next.due, next.background)
	}
}

// head returns the item to start next, oldest due time first, or nil when there is none with a free slot.
func (s *Scheduler[K]) head() *item[K] {
	limit := s.limit()
	if s.inFlight >= limit {
		return nil
	}
	var first *item[K]
	if len(s.normal) > 0 {
		first = s.normal[0]
	}
	if len(s.back) > 0 && s.inBack < max(1, limit*BackgroundPercent/100) && (first == nil || s.back[0].due.Before(first.due)) {
		first = s.back[0]
	}
	return first
}

func (s *Scheduler[K]) run(ctx context.Context, run Run[K], it *item[K], due time.Time, background bool) {
	defer s.running.Done()
	next, nextBackground := run(ctx, it.key, due)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inFlight--
	if background {
		s.inBack--
	}
	if s.items[it.key] == it {
		if !it.rescheduled {
			it.due, it.background = next, nextBackground
		}
		it.rescheduled = false
		heap.Push(s.heapOf(it), it)
	}
	s.poke()
}

func (s *Scheduler[K]) heapOf(it *item[K]) *dueHeap[K] {
	if it.background {
		return &s.back
	}
	return &s.normal
}

func (s *Scheduler[K]) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// dueHeap is a heap.Interface ordered by due time.
type dueHeap[K comparable] []*item[K]

func (h dueHeap[K]) Len() int           { return len(h) }
func (h dueHeap[K]) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h dueHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *dueHeap[K]) Push(x any) {
	it := x.(*item[K])
	it.index = len(*h)
	*h = append(*h, it)
}

// Pop implements heap.Interface.
func (h *dueHeap[K]) Pop() any {
	old := *h
	it := old[len(old)-1]
	old[len(old)-1] = nil
	it.index = -1
	*h = old[:len(old)-1]
	return it
}
