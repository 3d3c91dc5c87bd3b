package instance

import (
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/controllers/provider/class"
	"crawl.example.com/egress-proxies-operator/controllers/proxy"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// together is a bed with core and the provider manager at work: what a user sees comes of both.
type together struct {
	*bed
	*queue
}

func newTogether(t *testing.T, kind v1alpha1.ProviderType, b fake.Behaviour) *together {
	t.Helper()
	s := newBedOf(t, kind, b)
	q, _ := s.newQueue()
	defaults, err := health.NewDefaults(nil, "", nil)
	s.must(err)
	q.reconcilers[inCore] = &proxy.Reconciler{
		Options: proxy.Options{
			ControllerName: v1alpha1.DefaultControllerName, Health: &soundHealth{targets: map[types.UID]string{}}, HealthDefaults: defaults, Clock: s.clock,
		},
		Client: s.client, Recorder: &events.FakeRecorder{},
	}
	q.reconcilers[inClass] = class.NewReconciler(s.client, &events.FakeRecorder{}, class.Options{
		Set: s.Set, Clock: s.clock, ControllerName: v1alpha1.DefaultControllerName,
	})
	q.add(inClass, client.ObjectKeyFromObject(s.class))
	return &together{s, q}
}

// asked stores a Proxy as a user does.
func (s *together) asked(name string, change func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	s.bed.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	px.Spec.Provider = s.class.Name
	if change != nil {
		change(px)
	}
	s.must(s.client.Create(s.bed.t.Context(), px))
	return px
}

// changes edits a stored Proxy as a user does.
func (s *together) changes(px *v1alpha1.Proxy, change func(*v1alpha1.Proxy)) {
	s.bed.t.Helper()
	now := s.get(px)
	change(now)
	s.must(s.client.Update(s.bed.t.Context(), now))
}

// says tells whether a condition of a Proxy has a reason.
func (s *together) says(px *v1alpha1.Proxy, kind, reason string) func() bool {
	return func() bool {
		c := meta.FindStatusCondition(s.get(px).Status.Conditions, kind)
		return c != nil && c.Reason == reason
	}
}

// works tells whether a Proxy is ready.
func (s *together) works(px *v1alpha1.Proxy) func() bool {
	return func() bool {
		now := s.get(px)
		return now != nil && now.Status.Phase == v1alpha1.PhaseReady && meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionReady)
	}
}

// soundHealth is an engine that finds every instance well.
type soundHealth struct {
	mu      sync.Mutex
	targets map[types.UID]string
}

func (h *soundHealth) Upsert(target health.Target) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.targets[target.UID] = target.InstanceID
}

func (h *soundHealth) Remove(uid types.UID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.targets, uid)
}

func (h *soundHealth) Verdict(uid types.UID) (health.Verdict, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	instance, ok := h.targets[uid]
	return health.Verdict{
		InstanceID: instance, Known: true, Healthy: true, Reason: health.ReasonProbeSucceeded, Message: "The probe succeeded.",
		AccessRestricted: new(true), AccessReason: v1alpha1.ReasonRestricted, LastTransition: time.Unix(1, 0),
	}, ok
}

func (h *soundHealth) Changes() <-chan event.TypedGenericEvent[types.NamespacedName] { return nil }
