package guard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
	"crawl.example.com/egress-proxies-operator/providers/guard"
)

// panicking is a provider with a mistake in every method.
type panicking struct{}

var _ providers.Provider = panicking{}

func boom() {
	var none *v1alpha1.ProviderClass
	_ = none.Name // a nil pointer, as mistakes are
}

func (panicking) Check(context.Context) error                 { boom(); return nil }
func (panicking) ValidateSpec(*v1alpha1.ProxySpec) error      { boom(); return nil }
func (panicking) Delete(context.Context, providers.Ref) error { boom(); return nil }
func (panicking) Close() error                                { boom(); return nil }
func (panicking) Create(context.Context, providers.CreateRequest) (providers.Receipt, error) {
	boom()
	return providers.Receipt{}, nil
}

func (panicking) Get(context.Context, providers.Ref) (providers.Instance, error) {
	boom()
	return providers.Instance{}, nil
}

func (panicking) List(context.Context) ([]providers.Instance, error) {
	boom()
	return []providers.Instance{}, nil
}

func (panicking) Place(*v1alpha1.ProxySpec, types.UID, []string) (string, error) {
	boom()
	return "", nil
}

func TestPanic_IsUnavailableAndNothingMore(t *testing.T) {
	for method, call := range map[string]func(context.Context, providers.Provider) error{
		"Check":        func(ctx context.Context, p providers.Provider) error { return p.Check(ctx) },
		"ValidateSpec": func(_ context.Context, p providers.Provider) error { return p.ValidateSpec(&v1alpha1.ProxySpec{}) },
		"Delete":       func(ctx context.Context, p providers.Provider) error { return p.Delete(ctx, ref) },
		"Create": func(ctx context.Context, p providers.Provider) error {
			_, err := p.Create(ctx, providers.CreateRequest{Name: ref.Name})
			return err
		},
		"Get": func(ctx context.Context, p providers.Provider) error { _, err := p.Get(ctx, ref); return err },
		"List": func(ctx context.Context, p providers.Provider) error {
			all, err := p.List(ctx)
			if all != nil {
				return errors.New("a list that was not finished")
			}
			return err
		},
		"Place": func(_ context.Context, p providers.Provider) error {
			_, err := p.Place(&v1alpha1.ProxySpec{}, "", nil)
			return err
		},
	} {
		t.Run(method, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			metrics, err := guard.NewMetrics(registry)
			if err != nil {
				t.Fatal(err)
			}
			_, _, clock := setup(t)
			p := guard.Wrap(panicking{}, guard.Options{Type: "kubernetes", Class: "c", Clock: clock, Metrics: metrics})
			var logged strings.Builder
			ctx := log.IntoContext(t.Context(), funcr.New(func(_, args string) { logged.WriteString(args) }, funcr.Options{}))
			err = call(ctx, p)
			if providers.ReasonOf(err) != providers.Unavailable || providers.IsNotFound(err) {
				t.Fatalf("got %v, want Unavailable", err)
			}
			if text := providers.StableMessage(err); text != "the provider failed unexpectedly; the log of its manager has the details" {
				t.Errorf("got %q: what a panic says differs each time", text)
			}
			if err := testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP proxy_operator_provider_panics_total Calls to providers that ended in a panic. Anything but 0 is a bug of the provider.
# TYPE proxy_operator_provider_panics_total counter
proxy_operator_provider_panics_total{class="c",method="`+method+`",type="kubernetes"} 1
`), "proxy_operator_provider_panics_total"); err != nil {
				t.Error(err)
			}
			if method != "ValidateSpec" && method != "Place" && !strings.Contains(logged.String(), "panic_test.go") {
				t.Errorf("the stack is not in the log: %s", logged.String())
			}
		})
	}
	t.Run("Close", func(t *testing.T) {
		_, _, clock := setup(t)
		if err := guard.Wrap(panicking{}, guard.Options{Clock: clock}).Close(); providers.ReasonOf(err) != providers.Unavailable {
			t.Errorf("got %v, want Unavailable", err)
		}
	})
}

func TestPanic_OpensTheBreaker(t *testing.T) {
	_, _, clock := setup(t)
	p := guard.Wrap(panicking{}, guard.Options{Clock: clock})
	for range guard.BreakerThreshold {
		_, _ = reasonOfGet(t, p)
	}
	if _, err := reasonOfGet(t, p); !errors.Is(err, providers.ErrBreakerOpen) {
		t.Errorf("got %v, want an open breaker", err)
	}
}

// series counts what a registry has of class c.
func series(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	n, err := testutil.GatherAndCount(registry)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A class that is gone leaves no series behind, and one that is changed loses none.
func TestMetrics_EndWithTheClass(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics, err := guard.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	first, cloud, _ := setup(t, func(o *guard.Options) { o.Metrics = metrics })
	breakIt(t, first, cloud, errors.New("dial"))
	before := series(t, registry)

	second, cloud, _ := setup(t, func(o *guard.Options) { o.Metrics = metrics })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if n := series(t, registry); n != before {
		t.Errorf("%d series after the class was changed, want %d", n, before)
	}
	calling, end, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	cloud.Hook(fake.MethodGet, func(fake.Call) { close(calling); <-end })
	go func() {
		defer close(ended)
		_, _ = second.Get(context.Background(), ref)
	}()
	<-calling
	for range 2 {
		if err := second.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(end)
	<-ended
	if n := series(t, registry); n != 0 {
		t.Errorf("%d series after the class was removed", n)
	}
}

type reporter struct{ providers.Provider }

func (reporter) Report() string { return "mine" }

// A provider's optional interface is found whatever is around it.
func TestOptionalInterfacesPassTheGuard(t *testing.T) {
	p, _, _ := setup(t)
	if _, ok := providers.Find[interface{ Report() string }](p); ok {
		t.Error("found what is not there")
	}
	if _, ok := providers.Find[providers.Eventer](p); !ok {
		t.Error("the events of the fake are not found")
	}
	_, _, clock := setup(t)
	inner := guard.Wrap(reporter{p}, guard.Options{Clock: clock})
	if found, ok := providers.Find[interface{ Report() string }](guard.Wrap(inner, guard.Options{Clock: clock})); !ok || found.Report() != "mine" {
		t.Errorf("got %v, %v", found, ok)
	}
}
