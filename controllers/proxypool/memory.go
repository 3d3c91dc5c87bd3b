package proxypool

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// visibilityTimeout is how long the cache may lag behind one's own writes before the API server is asked. A lost event
	// must not wedge a pool.
	visibilityTimeout = 10 * time.Second
	// blockedTimeout is how long a name that something else holds is left alone.
	blockedTimeout = time.Minute
)

// memory is what this process did to a pool and its cache does not show yet. It makes an outdated view whole; losing it
// costs one list of the API server.
type memory struct {
	uid types.UID
	// verified: the cache was compared with the API server since this process began with the pool.
	verified bool
	// created are members that the cache does not have.
	created map[types.UID]*v1alpha1.Proxy
	// deleted are members that the cache has without a deletion timestamp.
	deleted map[types.UID]bool
	// gone are members that the cache still has and the API server does not.
	gone map[types.UID]bool
	// patched are members as our patches left them.
	patched map[types.UID]patched
	// looked is what the API server had when it was asked last; empty once the cache is as far.
	looked liveView
	// overdue is when the oldest of them should have become visible; zero when there are none.
	overdue time.Time
	// refused is why the last create was not taken, and unchanged why the last update of a member was not; "" once they were,
	// or when there is nothing of the kind to do.
	refused, unchanged string
	// blocked are names held by something else, and until when that is believed.
	blocked map[string]time.Time
	// countedTime is when leases were last counted for the status.
	countedTime time.Time
}

type patched struct {
	// from are the resourceVersions that are older: the one that the first of the patches was made on, and those between
	// them.
	from []string
	px   *v1alpha1.Proxy
}

// liveView is the members that the API server had at one of its versions.
type liveView struct {
	members []*v1alpha1.Proxy
	version string

	byUID map[types.UID]*v1alpha1.Proxy
}

// correct is a cached member as far as the view knows better; nil when it was gone by then.
func (v *liveView) correct(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	if v.version == "" || !older(px.ResourceVersion, v.version) && px.ResourceVersion != v.version {
		return px
	}
	if live := v.byUID[px.UID]; live == nil || older(px.ResourceVersion, live.ResourceVersion) {
		return live
	}
	return px
}

// passed tells whether the cache, which takes in one version after the other, is beyond the view.
func (v *liveView) passed(cached []*v1alpha1.Proxy) bool {
	return slices.ContainsFunc(cached, func(px *v1alpha1.Proxy) bool { return older(v.version, px.ResourceVersion) })
}

// older compares versions of the API server; what are none are not older.
func older(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// memories holds the memory of each pool. A pool is reconciled by one worker at a time, so only the map is locked.
type memories struct {
	mu    sync.Mutex
	pools map[types.NamespacedName]*memory
}

// of a pool; that of a former namesake is dropped.
func (ms *memories) of(pool *v1alpha1.ProxyPool) *memory {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	key := client.ObjectKeyFromObject(pool)
	if m, ok := ms.pools[key]; ok && m.uid == pool.UID {
		return m
	}
	m := &memory{
		uid: pool.UID, created: map[types.UID]*v1alpha1.Proxy{}, deleted: map[types.UID]bool{}, gone: map[types.UID]bool{},
		patched: map[types.UID]patched{}, blocked: map[string]time.Time{},
	}
	if ms.pools == nil {
		ms.pools = map[types.NamespacedName]*memory{}
	}
	ms.pools[key] = m
	return m
}

func (ms *memories) forget(key types.NamespacedName) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	delete(ms.pools, key)
}

// view is the cached members corrected by what is remembered, which is forgotten where the cache has caught up.
func (m *memory) view(cached []*v1alpha1.Proxy, now time.Time) []*v1alpha1.Proxy {
	if m.looked.passed(cached) {
		m.looked = liveView{}
	}
	seen := make([]*v1alpha1.Proxy, 0, len(cached))
	byUID := make(map[types.UID]*v1alpha1.Proxy, len(cached))
	for _, px := range cached {
		if px = m.looked.correct(px); px != nil {
			seen = append(seen, px)
			byUID[px.UID] = px
		}
	}
	maps.DeleteFunc(m.created, func(uid types.UID, _ *v1alpha1.Proxy) bool { return byUID[uid] != nil })
	maps.DeleteFunc(m.deleted, func(uid types.UID, _ bool) bool {
		px := byUID[uid]
		return (px == nil || !px.DeletionTimestamp.IsZero()) && m.created[uid] == nil
	})
	maps.DeleteFunc(m.patched, func(uid types.UID, p patched) bool {
		// The patches were on those versions and no others, so any other that the cache shows is a later one.
		if px := byUID[uid]; px != nil {
			return !slices.Contains(p.from, px.ResourceVersion)
		}
		return m.created[uid] == nil
	})
	maps.DeleteFunc(m.gone, func(uid types.UID, _ bool) bool { return byUID[uid] == nil })
	maps.DeleteFunc(m.blocked, func(_ string, until time.Time) bool { return !until.After(now) })
	if !m.pending() {
		m.overdue = time.Time{}
	}
	out := make([]*v1alpha1.Proxy, 0, len(seen)+len(m.created))
	add := func(px *v1alpha1.Proxy) {
		if p, ok := m.patched[px.UID]; ok {
			px = p.px
		}
		out = append(out, px)
	}
	for _, px := range seen {
		if !m.gone[px.UID] {
			add(px)
		}
	}
	for _, px := range m.created {
		add(px)
	}
	return out
}

func (m *memory) pending() bool { return len(m.created)+len(m.deleted)+len(m.gone) > 0 }

func (m *memory) noteCreated(px *v1alpha1.Proxy, now time.Time) {
	m.created[px.UID] = px
	if m.looked.byUID != nil {
		m.looked.byUID[px.UID] = px
	}
	m.expect(now)
}

func (m *memory) noteDeleted(uid types.UID, now time.Time) {
	m.deleted[uid] = true
	m.expect(now)
}

func (m *memory) notePatched(from string, px *v1alpha1.Proxy) {
	before := m.patched[px.UID].from
	if last := m.patched[px.UID].px; last != nil && last.ResourceVersion != from {
		before = nil
	}
	m.patched[px.UID] = patched{append(before, from), px}
}

func (m *memory) expect(now time.Time) {
	if m.overdue.IsZero() {
		m.overdue = now.Add(visibilityTimeout)
	}
}

// doubtful tells whether the API server must be asked before anything is done.
func (m *memory) doubtful(now time.Time) bool {
	return !m.verified || !m.overdue.IsZero() && !now.Before(m.overdue)
}

// verify corrects the memory by the members that the API server has.
func (m *memory) verify(cached []*v1alpha1.Proxy, live liveView, now time.Time) {
	m.verified = true
	m.overdue = time.Time{}
	clear(m.created)
	clear(m.deleted)
	clear(m.gone)
	live.byUID = make(map[types.UID]*v1alpha1.Proxy, len(live.members))
	for _, px := range live.members {
		live.byUID[px.UID] = px
		m.created[px.UID] = px
	}
	m.looked = live
	for _, px := range cached {
		delete(m.created, px.UID)
		switch fresh := live.byUID[px.UID]; {
		case fresh == nil:
			m.gone[px.UID] = true
		case !fresh.DeletionTimestamp.IsZero() && px.DeletionTimestamp.IsZero():
			m.deleted[px.UID] = true
		}
	}
	if m.pending() {
		m.expect(now)
	}
}

func (m *memory) blockedNames() map[string]bool {
	out := make(map[string]bool, len(m.blocked))
	for name := range m.blocked {
		out[name] = true
	}
	return out
}
