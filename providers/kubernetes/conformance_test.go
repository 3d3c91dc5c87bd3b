package kubernetes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
	"crawl.example.com/egress-proxies-operator/providers/providertest"
)

func TestConformance(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	kubelettest.Run(t, env.Config, namespace)
	valid := func() v1alpha1.ProxySpec { return newRequest(namespace, "", nil).Spec }
	invalid := func(change func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec {
		spec := valid()
		change(&spec)
		return spec
	}
	named := func(name string, change func(*v1alpha1.ProviderClassSpec)) *v1alpha1.ProviderClass {
		class := newClass(change)
		class.ObjectMeta = metav1.ObjectMeta{Name: namespace + "-" + name, UID: types.UID(name), Generation: 1}
		return class
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	t.Cleanup(ticker.Stop)
	informers := newInformers(t, env.Config, namespace)
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		gate := &gate{Client: env.Client}
		return providertest.Harness{
			Factory:   pagedFactory{NewFactory()},
			Runtime:   providers.Runtime{ClusterID: namespace, Client: gate, Reader: gate, Informers: informers, Clock: clock.RealClock{}},
			Namespace: namespace,
			Class:     func(name string) *v1alpha1.ProviderClass { return named(name, nil) },
			Spec:      valid,
			Tick:      func() { <-ticker.C },
			Patience:  int(patience / (20 * time.Millisecond)),
			Invalid: map[string]v1alpha1.ProxySpec{
				"spec.placement.machineType": invalid(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{MachineType: "big"} }),
				"spec.placement.image":       invalid(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Image: "x"} }),
				"spec.placement.zone":        invalid(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Zone: "not a label"} }),
				"spec.cloudInit":             invalid(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: "x"} }),
			},
			InvalidClasses: map[string]*v1alpha1.ProviderClass{
				"spec.kubernetes.image": named("a", func(s *v1alpha1.ProviderClassSpec) {
					s.Kubernetes = &v1alpha1.KubernetesClass{Image: "an image"}
				}),
				"spec.kubernetes.resources.limits[cpu]": named("a", func(s *v1alpha1.ProviderClassSpec) {
					s.Kubernetes = &v1alpha1.KubernetesClass{Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("-1"), corev1.ResourceMemory: resource.MustParse("-1Gi")}}}
				}),
				"spec.exposure.allowedSourceRanges": named("a", func(s *v1alpha1.ProviderClassSpec) {
					s.Exposure = &v1alpha1.Exposure{AllowedSourceRanges: []string{"10.0.0.1"}}
				}),
			},
			Credentials: &providers.Credentials{Username: "crawler", Password: "secret"},
			// The scheduler chooses; a zone that a Proxy names is passed on to it.
			Zones:    []string{"zone-a"},
			PageSize: conformancePage,
			Calls:    gate.count,
			Exists: func(ref providers.Ref) bool {
				err := env.Client.Get(context.Background(), client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, &corev1.Pod{})
				return !apierrors.IsNotFound(err)
			},
			Foreign: func(t testing.TB, ref providers.Ref) {
				pod := &corev1.Pod{
					ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name},
					Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "theirs", Image: "theirs"}}},
				}
				if err := env.Client.Create(context.Background(), pod); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := env.Client.Delete(context.Background(), pod); client.IgnoreNotFound(err) != nil {
						t.Error(err)
					}
				})
			},
			Fail:       gate.fail,
			Hang:       gate.hang,
			RetryAfter: retryAfter,
			// The API server forgets where a list that takes long was to go on.
			Partial: map[string]providertest.Partial{"a later page": {
				Hide: func() func() {
					gate.set(func() { gate.shown = 0 })
					return gate.refuse(func(c call) error {
						if !c.continues {
							return nil
						}
						return apierrors.NewResourceExpired("the provided continue parameter is too old")
					})
				},
				Shown: gate.listed,
			}},
			Missing: map[string]func(*providers.CreateRequest){
				"its namespace": func(req *providers.CreateRequest) { req.Owner.Namespace = namespace + "-missing" },
			},
		}
	})
}

// newInformers watch a namespace until the test ends.
func newInformers(t *testing.T, config *rest.Config, namespace string) cache.Cache {
	t.Helper()
	informers, err := cache.New(config, cache.Options{DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- informers.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return informers
}

// retryAfter is what the API server asks of those who call too often.
const retryAfter = time.Second

// conformancePage makes a few pods several pages.
const conformancePage = 3

// pagedFactory makes providers that list a few pods at a time.
type pagedFactory struct{ *Factory }

func (f pagedFactory) Open(ctx context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	p, err := f.Factory.Open(ctx, class, rt)
	if err != nil {
		return nil, err
	}
	p.(*Provider).pageSize = conformancePage
	return p, nil
}

// gate is the API server as the provider sees it: its calls can be counted, refused and held up.
type gate struct {
	client.Client

	mu      sync.Mutex
	calls   int
	shown   int
	refusal func(call) error
	held    chan struct{}
}

// call is what decides about a refusal.
type call struct {
	verb   string
	object client.Object
	// continues tells that it asks for the rest of a list.
	continues bool
}

func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls
}

// listed is how many pods lists have shown.
func (g *gate) listed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.shown
}

func (g *gate) refuse(refusal func(call) error) (restore func()) {
	g.set(func() { g.refusal = refusal })
	return func() { g.set(func() { g.refusal = nil }) }
}

func (g *gate) hang() (restore func()) {
	held := make(chan struct{})
	g.set(func() { g.held = held })
	return sync.OnceFunc(func() {
		g.set(func() { g.held = nil })
		close(held)
	})
}

func (g *gate) set(change func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change()
}

// fail answers as an API server does.
func (g *gate) fail(reason providers.Reason) (restore func()) {
	return g.refuse(func(c call) error {
		switch reason {
		case providers.Auth:
			return apierrors.NewUnauthorized("token 4711 has expired")
		case providers.RateLimited:
			return apierrors.NewTooManyRequests("too many requests, please try again later", int(retryAfter/time.Second))
		case providers.Capacity:
			if pod, ok := c.object.(*corev1.Pod); ok && c.verb == "create" {
				return apierrors.NewForbidden(corev1.Resource("pods"), pod.Name, errors.New("exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4"))
			}
			return nil
		default:
			return apierrors.NewServiceUnavailable("request 4711 was not served")
		}
	})
}

func (g *gate) pass(ctx context.Context, c call) error {
	g.mu.Lock()
	g.calls++
	refusal, held := g.refusal, g.held
	g.mu.Unlock()
	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if refusal != nil {
		return refusal(c)
	}
	return nil
}

// Get implements client.Client.
func (g *gate) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if err := g.pass(ctx, call{verb: "get", object: object}); err != nil {
		return err
	}
	return g.Client.Get(ctx, key, object, options...)
}

// List implements client.Client.
func (g *gate) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	all := client.ListOptions{}
	all.ApplyOptions(options)
	if err := g.pass(ctx, call{verb: "list", continues: all.Continue != ""}); err != nil {
		return err
	}
	err := g.Client.List(ctx, list, options...)
	if err == nil {
		g.set(func() { g.shown += meta.LenList(list) })
	}
	return err
}

// Create implements client.Client.
func (g *gate) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	if err := g.pass(ctx, call{verb: "create", object: object}); err != nil {
		return err
	}
	return g.Client.Create(ctx, object, options...)
}

// Update implements client.Client.
func (g *gate) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	if err := g.pass(ctx, call{verb: "update", object: object}); err != nil {
		return err
	}
	return g.Client.Update(ctx, object, options...)
}

// Delete implements client.Client.
func (g *gate) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	if err := g.pass(ctx, call{verb: "delete", object: object}); err != nil {
		return err
	}
	return g.Client.Delete(ctx, object, options...)
}
