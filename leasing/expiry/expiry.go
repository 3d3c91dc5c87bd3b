// Package expiry keeps the moments at which something ends for a lease, and computes those moments.
//
// All of them are by the clock of the process that is leader, from what that process observed. No timestamp of a client
// is ever compared with it.
package expiry

import (
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// RestartGrace is how long after a start no lease expires: its holder may have renewed it while nobody listened.
const RestartGrace = 60 * time.Second

// AtStart is the deadline of a lease that is found at the start of a leader. A renewal that was asked for while nobody
// listened counts as of now. A stored end is honoured, but never beyond one TTL from now (it may be by a clock that was
// wrong) and never before the grace has passed.
func AtStart(l *v1alpha1.ProxyLease, now time.Time, grace time.Duration) time.Time {
	ttl := record.TTL(l)
	if record.RenewalPending(l) {
		return now.Add(ttl)
	}
	at := record.Expiry(l)
	if earliest := now.Add(min(ttl, grace)); at.Before(earliest) {
		at = earliest
	}
	if latest := now.Add(ttl); at.After(latest) {
		at = latest
	}
	return at
}

// Worth tells whether a renewal is worth a write: while more than half of the TTL is left by what is stored, the stored
// end is simply repeated to the holder.
func Worth(stored time.Time, ttl time.Duration, now time.Time) bool {
	return !WorthAt(stored, ttl).After(now)
}

// WorthAt is from when on a renewal is worth a write.
func WorthAt(stored time.Time, ttl time.Duration) time.Time { return stored.Add(-ttl / 2) }

// What says what a deadline is for.
type What int

const (
	// TTL is over: the lease expires.
	TTL What = iota
	// Wait is over: the lease has waited for a proxy long enough.
	Wait
)

// Deadline is the moment at which something ends for a lease.
type Deadline struct {
	Lease types.NamespacedName
	UID   types.UID
	What  What
	At    time.Time
	// Renew and Stored are the lease's spec.renewTime and its stored end when the deadline was set: that one of them
	// changes is a renewal.
	Renew, Stored time.Time

	index int
}

// Of is the deadline of a bound lease that is known by d so far; ok is false when it is not known yet. A change of
// spec.renewTime gives it another TTL from now; a stored end that moved was promised to the holder by whoever wrote it.
func Of(l *v1alpha1.ProxyLease, d Deadline, ok bool, now time.Time) Deadline {
	ttl := record.TTL(l)
	next := Deadline{
		Lease: types.NamespacedName{Namespace: l.Namespace, Name: l.Name}, UID: l.UID, What: TTL,
		At: d.At, Stored: record.Expiry(l),
	}
	if l.Spec.RenewTime != nil {
		next.Renew = l.Spec.RenewTime.Time
	}
	latest := now.Add(ttl)
	switch known := ok && d.What == TTL; {
	case known && !next.Renew.Equal(d.Renew), !known && record.RenewalPending(l):
		next.At = latest
	case !known, next.Stored.After(d.Stored):
		next.At = next.Stored
	}
	if next.At.After(latest) {
		next.At = latest
	}
	return next
}

// Deadlines is a set of deadlines, one per lease. It is safe for concurrent use.
type Deadlines struct {
	mu    sync.Mutex
	byUID map[types.UID]*Deadline
	heap  deadlineHeap
}

// New makes an empty set.
func New() *Deadlines { return &Deadlines{byUID: map[types.UID]*Deadline{}} }

// Set sets the deadline of a lease and replaces the one it had. earliest tells whether it is now the next one of all.
func (d *Deadlines) Set(deadline Deadline) (earliest bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	entry, ok := d.byUID[deadline.UID]
	if !ok {
		entry = &deadline
		d.byUID[deadline.UID] = entry
		heap.Push(&d.heap, entry)
	} else {
		deadline.index = entry.index
		*entry = deadline
		heap.Fix(&d.heap, entry.index)
	}
	return d.heap[0] == entry
}

// Get is the deadline of a lease.
func (d *Deadlines) Get(uid types.UID) (Deadline, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry, ok := d.byUID[uid]; ok {
		return *entry, true
	}
	return Deadline{}, false
}

// Delete forgets a lease.
func (d *Deadlines) Delete(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if entry, ok := d.byUID[uid]; ok {
		heap.Remove(&d.heap, entry.index)
		delete(d.byUID, uid)
	}
}

// Due takes out everything whose moment has come, earliest first.
func (d *Deadlines) Due(now time.Time) []Deadline {
	d.mu.Lock()
	defer d.mu.Unlock()
	var due []Deadline
	for len(d.heap) > 0 && !d.heap[0].At.After(now) {
		entry := heap.Pop(&d.heap).(*Deadline)
		delete(d.byUID, entry.UID)
		due = append(due, *entry)
	}
	return due
}

// Next is the earliest moment; false when there is none.
func (d *Deadlines) Next() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.heap) == 0 {
		return time.Time{}, false
	}
	return d.heap[0].At, true
}

// Len is how many deadlines there are.
func (d *Deadlines) Len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.heap)
}

type deadlineHeap []*Deadline

func (h deadlineHeap) Len() int           { return len(h) }
func (h deadlineHeap) Less(i, j int) bool { return h[i].At.Before(h[j].At) }
func (h deadlineHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *deadlineHeap) Push(x any) {
	entry := x.(*Deadline)
	entry.index = len(*h)
	*h = append(*h, entry)
}
func (h *deadlineHeap) Pop() any {
	old := *h
	entry := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return entry
}
