package leasing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// newBackend is an allocator that was not started, over a fake API with the given objects and some namespaces.
func newBackend(t *testing.T, synced bool, objects ...client.Object) Backend {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"team", "other"} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.Proxy{}, &v1alpha1.ProxyLease{}).Build()
	a, err := New(Options{
		Client: c, Live: c, Cache: &informertest.FakeInformers{Scheme: scheme, Synced: new(synced)},
		Clock: clocktesting.NewFakeClock(fixture.Start), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return Backend{Allocator: a}
}

func TestH12_AnEmptyCacheIsNotAnEmptyFleet(t *testing.T) {
	b := newBackend(t, false)
	var problem *httpapi.Error
	if _, err := b.List(t.Context(), httpapi.ListQuery{Namespace: "team", Selector: labels.Everything()}); !errors.As(err, &problem) ||
		problem.Status != http.StatusServiceUnavailable || problem.Code != wire.CodeNotReady || problem.RetryAfter == 0 {
		t.Fatalf("answered %v", err)
	}
	if _, _, err := b.Lease(t.Context(), httpapi.LeaseRequest{Namespace: "team"}); !errors.As(err, &problem) || problem.Code != wire.CodeNotReady {
		t.Fatalf("answered %v", err)
	}
}

func TestListLeavesOutWhatCoolsForTheTarget(t *testing.T) {
	same := func(px *v1alpha1.Proxy) { px.Status.EgressIdentity = "ip:198.51.100.7" }
	cooling := fixture.Proxy("other", "reported", same, func(px *v1alpha1.Proxy) {
		px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "x.example", UntilTime: &metav1.Time{Time: fixture.Start.Add(time.Minute)}, InstanceID: "i-reported"}}
	})
	b := newBackend(t, true, cooling, fixture.Proxy("team", "same-exit", same), fixture.Proxy("team", "b"), fixture.Proxy("team", "a", fixture.Unready))
	list := func(q httpapi.ListQuery) (names []string) {
		t.Helper()
		q.Namespace = "team"
		if q.Selector == nil {
			q.Selector = labels.Everything()
		}
		proxies, err := b.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range proxies {
			names = append(names, p.Name)
		}
		return names
	}
	for want, q := range map[string]httpapi.ListQuery{
		"[a b same-exit]": {},
		"[a b]":           {Target: "x.example"},
		"[b]":             {Target: "x.example", Healthy: new(true)},
		"[a]":             {Healthy: new(false)},
		"[]":              {Selector: labels.SelectorFromSet(labels.Set{"geo": "us"})},
	} {
		if got := list(q); fmt.Sprint(got) != want {
			t.Errorf("%+v lists %v, want %s", q, got, want)
		}
	}
}

func TestNewNeedsItsParts(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Fatal("no error")
	}
}

// lock is an election's lock whose writes succeed or fail as the test wants it.
type lock struct {
	resourcelock.Interface
	err    error
	record *resourcelock.LeaderElectionRecord
}

func (l *lock) Identity() string                                                    { return "me" }
func (l *lock) Create(context.Context, resourcelock.LeaderElectionRecord) error     { return l.err }
func (l *lock) Update(_ context.Context, _ resourcelock.LeaderElectionRecord) error { return l.err }
func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return l.record, nil, l.err
}

func TestFenceKnowsWhoLeads(t *testing.T) {
	l := &lock{}
	f := NewFence(l, 10*time.Second, clocktesting.NewFakePassiveClock(fixture.Start))
	for _, c := range []struct {
		record *resourcelock.LeaderElectionRecord
		err    error
		want   string
	}{
		{nil, nil, ""}, {nil, errors.New("no lease"), ""},
		{&resourcelock.LeaderElectionRecord{HolderIdentity: "other"}, nil, "other"},
		{&resourcelock.LeaderElectionRecord{HolderIdentity: "third"}, errors.New("not reachable"), "other"},
		{&resourcelock.LeaderElectionRecord{}, nil, ""}, // given up
	} {
		l.record, l.err = c.record, c.err
		if _, _, err := f.Get(t.Context()); !errors.Is(err, c.err) || f.Leader() != c.want {
			t.Errorf("%+v: %q, %v", c, f.Leader(), err)
		}
	}
}

func TestFenceFollowsTheRenewals(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(fixture.Start)
	l := &lock{}
	f := NewFence(l, 10*time.Second, clock)
	later := func(d time.Duration) { clock.SetTime(clock.Now().Add(d)) }
	mine := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
	update := func(r resourcelock.LeaderElectionRecord) { _ = f.Update(t.Context(), r) }
	if f.Leads() {
		t.Fatal("leads before it was elected")
	}
	if err := f.Create(t.Context(), mine); err != nil || !f.Leads() {
		t.Fatal("does not lead after the election")
	}
	later(9 * time.Second)
	if update(mine); !f.Leads() {
		t.Fatal("does not lead after a renewal")
	}
	l.err = errors.New("not reachable")
	later(9 * time.Second)
	if update(mine); !f.Leads() {
		t.Fatal("does not lead within the deadline")
	}
	later(time.Second)
	if update(mine); f.Leads() {
		t.Fatal("leads beyond the deadline")
	}
	l.err = nil
	if update(mine); !f.Leads() {
		t.Fatal("does not lead after a late renewal")
	}
	l.err = errors.New("the answer is lost")
	if update(resourcelock.LeaderElectionRecord{}); f.Leads() {
		t.Fatal("leads after it gave up, although another may lead already")
	}
}
