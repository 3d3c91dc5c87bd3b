// Package ledger is the memory of the allocator: which proxies there are, which leases hold them, and which proxy the next
// lease should get.
//
// Everything is under one lock, because reserved, written and observed bindings are one fact seen at three moments, and
// separate locks for them are where double allocations come from. There is no I/O here and no clock: callers pass the
// time. A slot is taken by Reserve, before anything is written, and becomes free only by an authoritative answer: Cancel
// (it was certainly not written), Free (its end was written), or the event of its deletion.
//
// Events of informers are late by nature. One that is older than what the ledger has (by resourceVersion) is ignored, so
// that a late event never undoes one's own newer write.
package ledger

import (
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// Verdict is the newest verdict on an incarnation of a proxy; known is false when there is none. It is called under the
// ledger's lock and must neither block nor call back.
type Verdict func(proxy types.UID, instanceID string) (healthy, known bool)

// tombstoneTTL is how long a deleted lease is remembered when its deletion never shows up as an event.
const tombstoneTTL = 10 * time.Minute

// tombstoneSweep is from how many on they are looked through, and then whenever there are twice as many as were left, so that
// a release costs the same however many there are.
const tombstoneSweep = 1024

// Ledger is safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	verdict Verdict
	// onOvercommit is called under the lock; may be nil.
	onOvercommit func(proxy types.NamespacedName)
	// open: what is observed is taken in. Before that this replica does not lead, and its ledger stays empty.
	open bool

	// barrier is the resourceVersion of the list the ledger was built from: leases it does not know and that are older
	// than it are gone.
	barrier string
	epoch   int64
	grants  int64
	uses    uint64

	proxies map[types.NamespacedName]*proxy
	spaces  map[string]*space
	exits   map[string]*exit
	usage   map[types.UID]*usage
	// leases are those whose binding is written. What is being written is apart from them: while the answer to a write is
	// awaited, a namesake of the lease may still be seen that was there before, or that another leader has made.
	leases  map[types.NamespacedName]*entry
	writing map[types.NamespacedName]*entry
	// named are the leases by the name of their proxy, whichever proxy of that name it is.
	named map[types.NamespacedName]map[*entry]struct{}
	// claims by the key of exclusive requests that wait.
	claims map[string]*claim
	// unfenced are leases that were found waiting and that a former leader may still bind, by namespace.
	unfenced map[string]map[types.NamespacedName]unfenced
	// outcasts that nobody has taken yet.
	outcasts []*entry
	// tombs are leases whose deletion was acknowledged but not seen as an event yet.
	tombs   map[types.UID]time.Time
	sweepAt int
}

// New makes a ledger that is closed: it takes nothing in. verdict may be nil.
func New(verdict Verdict) *Ledger {
	if verdict == nil {
		verdict = func(types.UID, string) (bool, bool) { return false, false }
	}
	l := &Ledger{verdict: verdict}
	l.reset()
	return l
}

// OnOvercommit sets what is called when a proxy begins or ceases to carry more leases than its capacity, before anything is
// taken in. It is called under the ledger's lock and must neither block nor call back.
func (l *Ledger) OnOvercommit(f func(proxy types.NamespacedName)) { l.onOvercommit = f }

// Open empties the ledger and lets it take in what is observed from now on.
func (l *Ledger) Open() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reset()
	l.open = true
}

func (l *Ledger) reset() {
	l.barrier, l.epoch, l.grants, l.uses = "", 0, 0, 0
	l.proxies = map[types.NamespacedName]*proxy{}
	l.spaces = map[string]*space{}
	l.exits = map[string]*exit{}
	l.usage = map[types.UID]*usage{}
	l.leases = map[types.NamespacedName]*entry{}
	l.writing = map[types.NamespacedName]*entry{}
	l.named = map[types.NamespacedName]map[*entry]struct{}{}
	l.claims = map[string]*claim{}
	l.unfenced = map[string]map[types.NamespacedName]unfenced{}
	l.outcasts = nil
	l.tombs, l.sweepAt = map[types.UID]time.Time{}, tombstoneSweep
}

type state int

const (
	reserved state = iota // a slot is taken, the write is under way or its outcome is unknown
	bound                 // the binding is written
	finished              // the end is written; the entry stays until the object is gone, so that late events find it
)

// entry is one lease that has, or had, a slot, or one that is being written.
type entry struct {
	key     types.NamespacedName
	uid     types.UID // empty while an HTTP lease is not created
	rv      string
	state   state
	binding record.Binding
	mode    v1alpha1.LeaseMode
	holder  string
	// gone, of one that is being written, is its incarnation that was written and deleted before the answer came.
	gone types.UID
	// outcast: it clashes with another one on its proxy and has to go.
	outcast bool
}

// usage is what a proxy, by UID, carries.
type usage struct {
	leases     map[*entry]struct{}
	exclusives int
	lastUse    uint64
	// byTarget is the last use for each target, bounded.
	byTarget map[string]uint64
}

// Lease is what the ledger knows of a lease.
type Lease struct {
	Key     types.NamespacedName
	UID     types.UID
	Binding record.Binding
	Mode    v1alpha1.LeaseMode
	Holder  string
	// Written is false while the binding's write is under way.
	Written bool
	// Finished is true when the lease has ended and its object still exists.
	Finished bool
	// Outcast is true when it may not be on its proxy, because of another lease, and has to be revoked.
	Outcast bool
}

// Start sets the epoch of all grants from now on and the resourceVersion of the list of leases the ledger was built from.
// Leases that were found where they must not be together become outcasts.
func (l *Ledger) Start(epoch int64, barrier string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.epoch, l.barrier = epoch, barrier
	for _, u := range l.usage {
		l.judge(u, nil, nil)
	}
}

// Epoch of the grants of this leader; 0 before it has recovered.
func (l *Ledger) Epoch() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epoch
}

// Lookup finds a lease that has a slot.
func (l *Ledger) Lookup(key types.NamespacedName) (Lease, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.writing[key]; w != nil {
		return w.export(), true
	}
	e, ok := l.leases[key]
	if !ok || e.state == finished {
		return Lease{}, false
	}
	return e.export(), true
}

// Len is how many leases the ledger knows: those that hold a proxy, those being granted and finished ones whose object exists.
func (l *Ledger) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.leases)
}

// Knows tells whether a lease of that name holds a proxy, is being granted or has ended and exists.
func (l *Ledger) Knows(key types.NamespacedName) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leases[key] != nil
}

// LeasesNamed are the leases that hold the proxy of that name, or one that had the name before.
func (l *Ledger) LeasesNamed(proxy types.NamespacedName) []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]Lease, 0, len(l.named[proxy]))
	for e := range l.named[proxy] {
		out = append(out, e.export())
	}
	return out
}

// Load is how many leases hold a proxy.
func (l *Ledger) Load(proxy types.UID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.usage[proxy]; u != nil {
		return len(u.leases)
	}
	return 0
}

// Overcommitted tells whether a proxy carries more leases than its capacity, which may have been lowered.
func (l *Ledger) Overcommitted(key types.NamespacedName, uid types.UID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.proxies[key]
	return p != nil && p.uid == uid && p.over()
}

// CountOvercommitted is how many proxies carry more leases than their capacity.
func (l *Ledger) CountOvercommitted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range l.proxies {
		if p.over() {
			n++
		}
	}
	return n
}

// PoolLoad is how many leases the proxies of a pool carry.
func (l *Ledger) PoolLoad(namespace, pool string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.spaces[namespace]
	if s == nil {
		return 0
	}
	n := 0
	for p := range s.pools[pool] {
		n += p.load()
	}
	return n
}

// Counts are how many slots are taken by leases whose write is under way and by leases that are written.
func (l *Ledger) Counts() (reservedLeases, boundLeases int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.usage {
		for e := range u.leases {
			if e.state == reserved {
				reservedLeases++
			} else {
				boundLeases++
			}
		}
	}
	return reservedLeases, boundLeases
}

// Commit takes in the answer to the write of a binding. It tells whether the slot is (still) this grant's.
func (l *Ledger) Commit(lease *v1alpha1.ProxyLease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, ok := record.BindingOf(lease)
	if !ok {
		return false
	}
	key := keyOf(lease)
	if w := l.writing[key]; w.is(lease, b) {
		if l.written(w, lease) {
			return true
		}
		l.unwritten(w)
		return false
	}
	// Its event came before the answer.
	e := l.leases[key]
	if e == nil || e.state != bound || e.uid != lease.UID || !sameGrant(e.binding, b) {
		return false
	}
	if !older(lease.ResourceVersion, e.rv) {
		e.rv = lease.ResourceVersion
	}
	return true
}

// Cancel frees a reservation whose write certainly did not and will not happen. Of another grant it does nothing.
func (l *Ledger) Cancel(r Reservation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.writing[r.Lease]; w != nil && sameGrant(w.binding, r.Binding) {
		l.unwritten(w)
	}
}

// is tells whether the lease is what is being written; e may be nil.
func (e *entry) is(lease *v1alpha1.ProxyLease, b record.Binding) bool {
	return e != nil && (e.uid == "" || e.uid == lease.UID) && sameGrant(e.binding, b)
}

// written takes in that what was being written exists. It is false, and nothing is taken in, when it is known that this
// does not exist any more.
func (l *Ledger) written(w *entry, lease *v1alpha1.ProxyLease) bool {
	old := l.leases[w.key]
	_, dead := l.tombs[lease.UID]
	if dead || w.gone == lease.UID || old != nil && old.uid != lease.UID && older(lease.ResourceVersion, old.rv) {
		return false
	}
	if old != nil {
		l.drop(old)
	}
	delete(l.writing, w.key)
	w.uid, w.rv, w.state = lease.UID, lease.ResourceVersion, bound
	l.leases[w.key] = w
	l.fence(lease)
	return true
}

func (l *Ledger) unwritten(w *entry) {
	l.drop(w)
	delete(l.writing, w.key)
}

// Finish takes in the answer to a write of a lease's status; of one that ended the lease, the slot is free. An answer may
// come after the event of the lease's deletion: a lease that the ledger does not have gets no slot by it.
func (l *Ledger) Finish(lease *v1alpha1.ProxyLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.leases[keyOf(lease)]
	if e != nil && e.uid != lease.UID || e == nil && record.Holds(lease) {
		return
	}
	l.observe(lease)
}

// Released takes in an acknowledged deletion: the slot is free, and late events about the lease change nothing.
func (l *Ledger) Released(key types.NamespacedName, uid types.UID, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.tombs) >= l.sweepAt {
		maps.DeleteFunc(l.tombs, func(_ types.UID, at time.Time) bool { return now.Sub(at) > tombstoneTTL })
		l.sweepAt = max(tombstoneSweep, 2*len(l.tombs))
	}
	if uid != "" && l.open {
		l.tombs[uid] = now
	}
	l.fenced(key, uid)
	l.forget(key, uid)
}

func (e *entry) export() Lease {
	return Lease{Key: e.key, UID: e.uid, Binding: e.binding, Mode: e.mode, Holder: e.holder, Written: e.state != reserved, Finished: e.state == finished, Outcast: e.outcast}
}

func keyOf(lease *v1alpha1.ProxyLease) types.NamespacedName {
	return types.NamespacedName{Namespace: lease.Namespace, Name: lease.Name}
}

func sameGrant(a, b record.Binding) bool {
	return a.Epoch == b.Epoch && a.Seq == b.Seq && a.ProxyUID == b.ProxyUID
}

// Outdated tells whether an object is certainly older than what the ledger has of it; known may be nil.
func Outdated(px, known *v1alpha1.Proxy) bool {
	return known != nil && older(px.ResourceVersion, known.ResourceVersion)
}

// older tells whether resourceVersion a is certainly older than b.
func older(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
