package instance

import (
	"context"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// lateLife is that of one Proxy, from its creation over a replacement to its deletion, with the promises that are kept at
// every moment of it.
type lateLife struct {
	*bed
	px     *v1alpha1.Proxy
	intent *metav1.Time
}

func newLife(t *testing.T, b fake.Behaviour) (*lateLife, *mirror) {
	s := newBed(t, b)
	m := newMirror(s.client)
	// What the test reads is never late, and what it writes is an event for the caches.
	s.client = m.client()
	l := &lateLife{bed: s}
	s.cloud.Hook(fake.MethodCreate, func(call fake.Call) {
		now := &v1alpha1.Proxy{}
		s.must(m.server.Get(context.Background(), client.ObjectKeyFromObject(l.px), now))
		if !hasFinalizer(now, s.finalizer) || stored(now).IntentTime == nil {
			t.Errorf("Create is called without finalizer or intent: %v, %+v", now.Finalizers, stored(now))
		}
	})
	l.px = s.proxy("px")
	return l, m
}

// step lets a manager reconcile once, checks the promises and moves the clock by what it asks for.
func (l *lateLife) step(r *Reconciler) {
	l.t.Helper()
	result, err := r.Reconcile(l.t.Context(), requestFor(l.px))
	l.check()
	switch {
	case err != nil:
		l.clock.Step(retryMin)
	case result.RequeueAfter > 0:
		l.clock.Step(result.RequeueAfter)
	default:
		// Only an event would wake it; a late cache has it still to come.
		l.clock.Step(conflictRetry)
	}
}

// check asks: at most one instance, held by a stored finalizer and a stored intent; and no intent is forgotten.
func (l *lateLife) check() {
	l.t.Helper()
	instances, now := l.cloud.Instances(), l.get(l.px)
	if len(instances) > 1 {
		l.t.Fatalf("%d instances: %+v", len(instances), instances)
	}
	if now == nil {
		if len(instances) > 0 {
			l.t.Fatalf("the Proxy is gone and left %+v", instances)
		}
		return
	}
	record := stored(now)
	if len(instances) > 0 && (!hasFinalizer(now, l.finalizer) || record.IntentTime == nil) {
		l.t.Fatalf("an instance without finalizer or intent: %v, %+v", now.Finalizers, record)
	}
	if l.intent != nil && (record.IntentTime == nil || record.IntentTime.Before(l.intent)) {
		l.t.Fatalf("the intent of %v is forgotten: %+v", l.intent, record)
	}
	l.intent = record.IntentTime
}

// stages are what a user does, and what comes of it.
func (l *lateLife) stages() []lateStage {
	return []lateStage{
		{"create", func() {}, l.provisioned(l.px)},
		{"replace", func() {
			now := l.get(l.px)
			now.Spec.Port = 8080
			l.must(l.client.Update(l.t.Context(), now))
		}, func() bool { return l.provisioned(l.px)() && l.get(l.px).EndpointPort() == 8080 }},
		{"delete", func() { l.must(l.client.Delete(l.t.Context(), l.get(l.px))) }, l.gone(l.px)},
	}
}

type lateStage struct {
	name string
	do   func()
	done func() bool
}

// lateCases are how late a cache is, and how slow the provider.
var lateCases = []struct {
	name      string
	late      int
	behaviour fake.Behaviour
}{
	{"1, provider at once", 1, fake.Behaviour{}},
	{"1, slow provider", 1, slowProvider},
	{"3, provider at once", 3, fake.Behaviour{}},
	{"3, slow provider", 3, slowProvider},
	{"10, slow provider", 10, slowProvider},
}

// begun is a life that ends while its instance is being made.
func (l *lateLife) begun() []lateStage {
	return []lateStage{
		{"begin", func() {}, func() bool { return l.cloud.Count(fake.MethodCreate) > 0 }},
		l.stages()[2],
	}
}

var slowProvider = fake.Behaviour{Visible: 10 * time.Second, Start: 20 * time.Second, Stop: 10 * time.Second}

// TestA8_ThroughACacheThatIsAlwaysLate: the caches of all managers show every version, each one late, and the leader
// changes after every call that changes something at the provider; its predecessor goes on for a while.
func TestA8_ThroughACacheThatIsAlwaysLate(t *testing.T) {
	for _, c := range lateCases {
		t.Run(c.name, func(t *testing.T) {
			l, m := newLife(t, c.behaviour)
			if leaders := l.passes(l.stages(), m, c.late); leaders < 5 {
				t.Errorf("%d leaders, want one more after each of at least two Creates and two Deletes", leaders)
			}
		})
	}
}

// passes leads the Proxy through the stages, with late caches and a new leader after every call that changes something.
// It returns how many leaders there were.
func (l *lateLife) passes(stages []lateStage, m *mirror, late int) int {
	l.t.Helper()
	leader, leaders, mutations := l.newReconciler(m.late(late, false)), 1, 0
	var former *Reconciler
	for _, stage := range stages {
		stage.do()
		end := l.clock.Now().Add(6 * time.Hour)
		for n := 0; !stage.done(); n++ {
			if l.clock.Now().After(end) {
				l.t.Fatalf("%s: no end; cloud %+v, status %+v", stage.name, l.cloud.Instances(), l.get(l.px))
			}
			l.step(leader)
			if former != nil && n%2 == 0 {
				l.step(former)
			}
			if now := l.cloud.Mutations(); now != mutations {
				mutations, former = now, leader
				leader = l.newReconciler(m.late(late, false))
				leaders++
			}
		}
	}
	for range 20 {
		l.step(leader)
		l.step(former)
	}
	l.wantInstances(0)
	return leaders
}

func TestA8_DeletedMidCreateThroughALateCache(t *testing.T) {
	for _, late := range []int{1, 3, 10} {
		t.Run(strconv.Itoa(late), func(t *testing.T) {
			// Seen only after the second look that finds nothing.
			l, m := newLife(t, fake.Behaviour{Visible: 40 * time.Second, Stop: 10 * time.Second})
			l.passes(l.begun(), m, late)
		})
	}
}

// TestA8_BesideACacheThatNeverCatchesUp: a manager that never sees the newest versions can do no harm, neither alone nor
// beside the one that took over from it.
func TestA8_BesideACacheThatNeverCatchesUp(t *testing.T) {
	for _, c := range lateCases {
		t.Run(c.name, func(t *testing.T) {
			l, m := newLife(t, c.behaviour)
			stuck, leader := l.newReconciler(m.late(c.late, true)), l.newReconciler(m.client())
			for _, stage := range l.stages() {
				stage.do()
				for range 20 {
					l.step(stuck)
				}
				for n := 0; !stage.done(); n++ {
					if n == 500 {
						t.Fatalf("%s: no end; cloud %+v, status %+v", stage.name, l.cloud.Instances(), l.get(l.px))
					}
					l.step(leader)
					l.step(stuck)
				}
			}
			for range 20 {
				l.step(stuck)
			}
			l.wantInstances(0)
		})
	}
}
