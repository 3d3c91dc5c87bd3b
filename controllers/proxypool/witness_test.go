package proxypool

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// witnessed is one change at the API server.
type witnessed struct {
	version int64
	object  client.Object
	gone    bool
	at      time.Time
}

// witness records every change of pools, proxies and leases in a namespace. Versions put them in order across kinds.
type witness struct {
	mu     sync.Mutex
	events []witnessed
	// byHand are proxies that a person deleted.
	byHand map[types.UID]bool
}

func (f *fleet) watch() *witness {
	f.t.Helper()
	c, err := client.NewWithWatch(f.env.Config, client.Options{Scheme: f.env.Client.Scheme()})
	f.must(err)
	w := &witness{byHand: map[types.UID]bool{}}
	var done sync.WaitGroup
	var stops []func()
	for _, list := range []client.ObjectList{&v1alpha1.ProxyPoolList{}, &v1alpha1.ProxyList{}, &v1alpha1.ProxyLeaseList{}} {
		watcher, err := c.Watch(context.Background(), list, client.InNamespace(f.namespace))
		f.must(err)
		stops = append(stops, watcher.Stop)
		done.Go(func() {
			for e := range watcher.ResultChan() {
				object, ok := e.Object.(client.Object)
				if !ok {
					continue
				}
				version, _ := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
				w.mu.Lock()
				w.events = append(w.events, witnessed{version, object, e.Type == watch.Deleted, time.Now()})
				w.mu.Unlock()
			}
		})
	}
	f.t.Cleanup(func() {
		for _, stop := range stops {
			stop()
		}
		done.Wait()
	})
	return w
}

// drains are the deadlines that pools set on proxies, by name, and the leases that were told of one while they ran.
func (w *witness) drains() (deadlines map[string]time.Time, told map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	deadlines, told = map[string]time.Time{}, map[string]bool{}
	for _, e := range w.events {
		switch object := e.object.(type) {
		case *v1alpha1.Proxy:
			if request := (&member{Proxy: object}).drainedByPool(); request != nil {
				deadlines[object.Name] = request.DeadlineTime.Time
			}
		case *v1alpha1.ProxyLease:
			if record.Holds(object) && meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionDraining) {
				told[object.Name] = true
			}
		}
	}
	return deadlines, told
}

// testimony is what the rules are checked on, change by change.
type testimony struct {
	t     *testing.T
	drain time.Duration
	// pools has one version of a pool for each generation that it may still act on: it acts before it writes that it has
	// observed a generation, and never on an older one after that.
	pools map[types.UID][]*v1alpha1.ProxyPool
	// proxies that exist; all are those that ever did, as they were last.
	proxies, all map[types.UID]*v1alpha1.Proxy
	// deadlines are the latest that a drain request ever gave.
	deadlines map[types.UID]time.Time
	leases    map[types.UID]*v1alpha1.ProxyLease
	byHand    map[types.UID]bool
	// taken is when a person took a proxy away.
	taken []time.Time

	granted, revoked, drained, undrained, deleted int
}

// hindsight is how long a pool may not know that somebody else took a proxy away.
const hindsight = 10 * time.Second

// check goes through everything that was seen and complains of what broke a rule.
func (w *witness) check(t *testing.T, drain time.Duration) *testimony {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.events, func(a, b witnessed) int { return cmp.Compare(a.version, b.version) })
	s := &testimony{
		t: t, drain: drain, pools: map[types.UID][]*v1alpha1.ProxyPool{}, proxies: map[types.UID]*v1alpha1.Proxy{}, all: map[types.UID]*v1alpha1.Proxy{},
		deadlines: map[types.UID]time.Time{}, leases: map[types.UID]*v1alpha1.ProxyLease{},
		byHand: w.byHand,
	}
	for _, e := range w.events {
		switch object := e.object.(type) {
		case *v1alpha1.ProxyPool:
			s.pools[object.UID] = append(slices.DeleteFunc(s.pools[object.UID], func(v *v1alpha1.ProxyPool) bool {
				return v.Generation == object.Generation || v.Generation < object.Status.ObservedGeneration
			}), object)
		case *v1alpha1.Proxy:
			s.proxy(object, e)
		case *v1alpha1.ProxyLease:
			s.lease(object, e)
		}
	}
	return s
}

func staying(px *v1alpha1.Proxy) bool {
	return px != nil && px.DeletionTimestamp.IsZero() && len(px.Spec.DrainRequests) == 0
}

func (s *testimony) proxy(px *v1alpha1.Proxy, e witnessed) {
	before := s.proxies[px.UID]
	s.proxies[px.UID], s.all[px.UID] = px, px
	if e.gone {
		delete(s.proxies, px.UID)
	}
	for _, request := range px.Spec.DrainRequests {
		if request.DeadlineTime != nil && request.DeadlineTime.After(s.deadlines[px.UID]) {
			s.deadlines[px.UID] = request.DeadlineTime.Time
		}
	}
	owner := metav1.GetControllerOf(px)
	if owner == nil {
		s.t.Errorf("%s has no owner", px.Name)
		return
	}
	switch {
	case before == nil && !e.gone:
		s.existing(owner.UID, e)
	case staying(before) && (e.gone || !staying(px)):
		s.left(owner.UID, before, px, e)
	case before != nil && !staying(before) && staying(px) && !e.gone:
		s.undrained++
	}
	if len(px.Spec.DrainRequests) > 0 && before != nil && len(before.Spec.DrainRequests) == 0 {
		s.drained++
	}
	// From here on its instance goes.
	letGo := func(px *v1alpha1.Proxy) bool {
		return px != nil && !px.DeletionTimestamp.IsZero() && !slices.Contains(px.Finalizers, v1alpha1.FinalizerLeaseDrain)
	}
	if (letGo(px) || e.gone) && !letGo(before) {
		s.deleted++
		s.mayGo(px, e)
	}
}

// existing checks, when a proxy is made, how many there are.
func (s *testimony) existing(pool types.UID, e witnessed) {
	n, most := 0, 0
	for _, px := range s.proxies {
		if metav1.GetControllerOf(px).UID == pool {
			n++
		}
	}
	for _, version := range s.pools[pool] {
		replicas := int(*version.Spec.Replicas)
		most = max(most, replicas+int(version.Spec.Strategy.MaxSurge.IntVal)+max(1, (replicas+3)/4))
	}
	if n > most {
		s.t.Errorf("version %d: %d proxies of a pool exist, at most %d may", e.version, n, most)
	}
}

// left checks, when a pool gives up a proxy that works, how many are left that work.
func (s *testimony) left(pool types.UID, before, px *v1alpha1.Proxy, e witnessed) {
	if !meta.IsStatusConditionTrue(before.Status.Conditions, v1alpha1.ConditionReady) {
		return
	}
	if s.byHand[px.UID] && (e.gone || !px.DeletionTimestamp.IsZero()) {
		s.taken = append(s.taken, e.at)
		return
	}
	working, least := 0, 1<<30
	for _, other := range s.proxies {
		if metav1.GetControllerOf(other).UID == pool && staying(other) && meta.IsStatusConditionTrue(other.Status.Conditions, v1alpha1.ConditionReady) {
			working++
		}
	}
	for _, version := range s.pools[pool] {
		least = min(least, int(*version.Spec.Replicas)-int(version.Spec.Strategy.MaxUnavailable.IntVal))
	}
	for _, at := range s.taken {
		// The pool may not have known.
		if at.After(e.at.Add(-hindsight)) {
			least--
		}
	}
	if working < least {
		s.t.Errorf("version %d: giving up %s (%v) left %d that work, want at least %d", e.version, px.Name, px.Spec.DrainRequests, working, least)
	}
}

// deadline is when the leases of a proxy that goes end at the latest.
func (s *testimony) deadline(px *v1alpha1.Proxy) time.Time {
	at := s.deadlines[px.UID]
	if d := px.DeletionTimestamp; !d.IsZero() && (at.IsZero() || d.Add(s.drain).Before(at)) {
		at = d.Add(s.drain)
	}
	return at
}

// mayGo checks, when the instance of a proxy may go, that nobody holds it who may still.
func (s *testimony) mayGo(px *v1alpha1.Proxy, e witnessed) {
	for _, lease := range s.leases {
		if b, ok := record.BindingOf(lease); ok && b.ProxyUID == px.UID && record.Holds(lease) && e.at.Before(s.deadline(px)) {
			s.t.Errorf("version %d: %s goes while %s holds it, %s before the deadline", e.version, px.Name, lease.Name, s.deadline(px).Sub(e.at))
		}
	}
}

func (s *testimony) lease(lease *v1alpha1.ProxyLease, e witnessed) {
	before := s.leases[lease.UID]
	s.leases[lease.UID] = lease
	if e.gone {
		delete(s.leases, lease.UID)
		return
	}
	b, bound := record.BindingOf(lease)
	if bound && (before == nil || !record.Holds(before)) && record.Holds(lease) {
		s.granted++
	}
	if lease.Status.Phase != v1alpha1.LeaseRevoked || before != nil && before.Status.Phase == v1alpha1.LeaseRevoked {
		return
	}
	s.revoked++
	px := s.all[b.ProxyUID]
	if px == nil {
		s.t.Errorf("version %d: %s held %s, which nobody saw", e.version, lease.Name, b.ProxyName)
		return
	}
	reason := meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionBound)
	if at := s.deadline(px); lease.Status.FinishTime == nil || at.IsZero() || lease.Status.FinishTime.Time.Before(at) {
		s.t.Errorf("version %d: %s on %s was revoked at %v, before the deadline %v: %+v", e.version, lease.Name, b.ProxyName, lease.Status.FinishTime, at, reason)
	}
}
