package fake_test

import (
	"context"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
	"crawl.example.com/egress-proxies-operator/providers/guard"
	"crawl.example.com/egress-proxies-operator/providers/providertest"
)

func newClass(name string) *v1alpha1.ProviderClass {
	return &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1alpha1.ProviderClassSpec{Type: v1alpha1.ProviderKubernetes},
	}
}

func TestConformance(t *testing.T) {
	for name, b := range map[string]fake.Behaviour{
		"at once":        {Wakes: true},
		"late":           {Visible: 5 * time.Second, Start: 20 * time.Second, Stop: 10 * time.Second, Operations: true, MaxUserData: 1000, Wakes: true},
		"in three zones": {Start: 5 * time.Second, Stop: 5 * time.Second, Zones: []string{"a", "b", "c"}, Wakes: true},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, func(*testing.T) providertest.Harness { return harness(b) })
		})
	}
}

// harness reaches a new cloud, and behind it.
func harness(b fake.Behaviour) providertest.Harness {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	cloud := fake.NewCloud(clock, b)
	var missing map[string]func(*providers.CreateRequest)
	if len(b.Zones) > 0 {
		missing = map[string]func(*providers.CreateRequest){"its zone": func(req *providers.CreateRequest) { req.Zone = "z" }}
	}
	return providertest.Harness{
		Factory:  &fake.Factory{Cloud: cloud},
		Runtime:  providers.Runtime{ClusterID: "cluster", Clock: clock},
		Class:    newClass,
		Spec:     func() v1alpha1.ProxySpec { return v1alpha1.ProxySpec{} },
		Tick:     func() { clock.Step(time.Second) },
		Patience: 60,
		Invalid: map[string]v1alpha1.ProxySpec{
			"spec.placement.image": {ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Placement: &v1alpha1.Placement{Image: fake.InvalidImage}}},
		},
		UserData:      []byte("#cloud-config"),
		UserDataLimit: b.MaxUserData,
		Credentials:   &providers.Credentials{Username: "crawler", Password: "secret"},
		Zones:         b.Zones,
		Calls:         func() int { return len(cloud.Calls()) },
		Exists: func(ref providers.Ref) bool {
			return slices.ContainsFunc(cloud.Instances(), func(i providers.Instance) bool { return i.Name == ref.Name })
		},
		Foreign: func(_ testing.TB, ref providers.Ref) {
			cloud.Plant("a", providers.Instance{Ref: ref, State: providers.StateRunning})
		},
		Fail: func(reason providers.Reason) func() {
			methods := []string{}
			if reason == providers.Capacity {
				methods = append(methods, fake.MethodCreate)
			}
			err := providers.NewError(reason, "", "", nil)
			if reason == providers.RateLimited {
				err.RetryAfter = retryAfter
			}
			cloud.Down(err, methods...)
			return func() { cloud.Down(nil) }
		},
		RetryAfter: retryAfter,
		Hang:       cloud.Stall,
		Shrink: func() func() {
			fewer := b
			fewer.Zones = fewer.Zones[:len(fewer.Zones)-1]
			cloud.SetBehaviour(fewer)
			return func() { cloud.SetBehaviour(b) }
		},
		Missing: missing,
	}
}

// retryAfter is what the cloud asks of those who call too often.
const retryAfter = 7 * time.Second

// The guard must not change what a provider means.
func TestConformance_Guarded(t *testing.T) {
	providertest.Run(t, func(*testing.T) providertest.Harness {
		h := harness(fake.Behaviour{Start: 5 * time.Second, Stop: 5 * time.Second, Wakes: true})
		inner := h.Factory.(*fake.Factory)
		// Nobody moves the clock for a call that waits for its turn.
		inner.Rate = providers.Limits{CallsPerSecond: 1e6, Burst: 1e6}
		h.Factory = guarded{inner, guard.ForSet(inner, h.Runtime.Clock, nil)}
		// What fails is left alone for a while.
		h.Fail = nil
		return h
	})
}

type guarded struct {
	*fake.Factory
	wrap func(*v1alpha1.ProviderClass, providers.Provider) providers.Provider
}

func (g guarded) Open(ctx context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	p, err := g.Factory.Open(ctx, class, rt)
	if err != nil {
		return nil, err
	}
	return g.wrap(class, p), nil
}
