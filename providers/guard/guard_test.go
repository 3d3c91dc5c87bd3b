package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
	"crawl.example.com/egress-proxies-operator/providers/guard"
)

var ref = providers.Ref{Name: "px-1"}

// setup gives a guarded fake with its cloud and clock.
func setup(t *testing.T, change ...func(*guard.Options)) (providers.Provider, *fake.Cloud, *clocktesting.FakeClock) {
	t.Helper()
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	cloud := fake.NewCloud(clock, fake.Behaviour{})
	o := guard.Options{Type: v1alpha1.ProviderKubernetes, Class: "c", Clock: clock, Limits: providers.Limits{CallsPerSecond: 1000, Burst: 1000}}
	for _, f := range change {
		f(&o)
	}
	return guard.Wrap(open(t, cloud), o), cloud, clock
}

func open(t *testing.T, cloud *fake.Cloud) providers.Provider {
	t.Helper()
	p, err := (&fake.Factory{Cloud: cloud}).Open(t.Context(), &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "c"}}, providers.Runtime{ClusterID: "cluster"})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func reasonOfGet(t *testing.T, p providers.Provider) (providers.Reason, error) {
	t.Helper()
	_, err := p.Get(t.Context(), ref)
	return providers.ReasonOf(err), err
}

func TestBreaker_OpensAfterFailuresInARow(t *testing.T) {
	for _, failure := range []providers.Reason{providers.Unavailable, providers.Auth} {
		t.Run(string(failure), func(t *testing.T) {
			p, cloud, clock := setup(t)
			cloud.Down(providers.NewError(failure, "", "", nil))
			for range guard.BreakerThreshold {
				if reason, err := reasonOfGet(t, p); reason != failure || errors.Is(err, providers.ErrBreakerOpen) {
					t.Fatalf("got %v, want the provider's own %s", err, failure)
				}
			}
			_, err := p.Get(t.Context(), ref)
			if !errors.Is(err, providers.ErrBreakerOpen) || providers.RetryAfterOf(err) != guard.BreakerOpenFor {
				t.Fatalf("got %v after %v, want an open breaker for %v", err, providers.RetryAfterOf(err), guard.BreakerOpenFor)
			}
			if n := cloud.Count(fake.MethodGet); n != guard.BreakerThreshold {
				t.Errorf("%d calls, want %d", n, guard.BreakerThreshold)
			}

			// Half open: one call finds that it is still down.
			clock.Step(guard.BreakerOpenFor)
			if reason, err := reasonOfGet(t, p); reason != failure || errors.Is(err, providers.ErrBreakerOpen) {
				t.Errorf("got %v, want one call through", err)
			}
			if _, err := reasonOfGet(t, p); !errors.Is(err, providers.ErrBreakerOpen) {
				t.Errorf("got %v, want an open breaker again", err)
			}

			// Half open: one call finds that it is well.
			clock.Step(guard.BreakerOpenFor)
			cloud.Down(nil)
			for range 3 {
				if reason, err := reasonOfGet(t, p); reason != providers.NotFound {
					t.Errorf("got %v, want NotFound", err)
				}
			}
		})
	}
}

func TestBreaker_AnAnswerIsNoFailure(t *testing.T) {
	p, cloud, _ := setup(t)
	for range 3 * guard.BreakerThreshold {
		cloud.Fail(fake.MethodGet, errors.New("503"), errors.New("503"), providers.NewError(providers.Capacity, "", "", nil))
	}
	for range 9 * guard.BreakerThreshold {
		if _, err := reasonOfGet(t, p); errors.Is(err, providers.ErrBreakerOpen) {
			t.Fatal("the breaker opened although the failures were not in a row")
		}
	}
}

func TestBreaker_OneProbeAtATime(t *testing.T) {
	p, cloud, clock := setup(t)
	cloud.Down(errors.New("dial"))
	for range guard.BreakerThreshold {
		_, _ = reasonOfGet(t, p)
	}
	clock.Step(guard.BreakerOpenFor)
	var group sync.WaitGroup
	probing := make(chan struct{})
	answer := make(chan struct{})
	cloud.Hook(fake.MethodGet, func(fake.Call) { close(probing); <-answer })
	group.Go(func() { _, _ = p.Get(context.Background(), ref) })
	<-probing
	if _, err := reasonOfGet(t, p); !errors.Is(err, providers.ErrBreakerOpen) {
		t.Errorf("got %v while a probe is under way, want an open breaker", err)
	}
	close(answer)
	group.Wait()
}

func TestBreaker_ACallerThatGivesUpIsNoFailure(t *testing.T) {
	p, _, _ := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 * guard.BreakerThreshold {
		if _, err := p.Get(ctx, ref); providers.ReasonOf(err) != providers.Unavailable {
			t.Fatalf("got %v, want Unavailable", err)
		}
	}
	if reason, err := reasonOfGet(t, p); reason != providers.NotFound {
		t.Errorf("got %v, want NotFound", err)
	}
}

// 500 Proxies that look every minute for ten minutes, behind a provider that does not answer.
func TestA29_ADeadProviderIsNotCalledForEachProxy(t *testing.T) {
	p, cloud, clock := setup(t)
	cloud.Down(errors.New("dial"))
	for range 10 {
		for range 500 {
			_, _ = reasonOfGet(t, p)
		}
		clock.Step(time.Minute)
	}
	if n, most := cloud.Count(fake.MethodGet), guard.BreakerThreshold+10; n > most {
		t.Errorf("%d calls, want at most %d", n, most)
	}
}

func TestLimiter_RefusesWhatWouldWaitTooLong(t *testing.T) {
	p, cloud, clock := setup(t, func(o *guard.Options) { o.Limits = providers.Limits{CallsPerSecond: .1, Burst: 3} })
	for range 3 {
		if reason, err := reasonOfGet(t, p); reason != providers.NotFound {
			t.Fatalf("got %v within the burst", err)
		}
	}
	reason, err := reasonOfGet(t, p)
	if reason != providers.RateLimited || providers.RetryAfterOf(err) != 10*time.Second {
		t.Errorf("got %v after %v, want RateLimited for 10s", err, providers.RetryAfterOf(err))
	}
	if n := cloud.Count(fake.MethodGet); n != 3 {
		t.Errorf("%d calls, want 3", n)
	}
	clock.Step(10 * time.Second)
	if reason, err := reasonOfGet(t, p); reason != providers.NotFound {
		t.Errorf("got %v with a new token", err)
	}
}

func TestLimiter_PausesTheClassWhenTheProviderAsks(t *testing.T) {
	p, cloud, clock := setup(t)
	cloud.Fail(fake.MethodCreate, &providers.Error{Reason: providers.RateLimited, RetryAfter: time.Minute})
	if _, err := p.Create(t.Context(), providers.CreateRequest{Name: "px-1"}); providers.ReasonOf(err) != providers.RateLimited {
		t.Fatalf("got %v", err)
	}
	if reason, err := reasonOfGet(t, p); reason != providers.RateLimited || providers.RetryAfterOf(err) != time.Minute {
		t.Errorf("got %v after %v, want RateLimited for 1m", err, providers.RetryAfterOf(err))
	}
	clock.Step(time.Minute)
	if reason, err := reasonOfGet(t, p); reason != providers.NotFound {
		t.Errorf("got %v after the pause", err)
	}
	if n := cloud.Count(fake.MethodGet); n != 1 {
		t.Errorf("%d calls, want 1", n)
	}
}

func TestErrors_AreOfTheTaxonomyAndStable(t *testing.T) {
	p, cloud, _ := setup(t)
	cloud.Fail(fake.MethodGet, errors.New("request 4711 failed"))
	_, err := p.Get(t.Context(), ref)
	var known *providers.Error
	if !errors.As(err, &known) || known.Reason != providers.Unavailable || known.Op != "get instance" {
		t.Fatalf("got %#v", err)
	}
	if got, want := err.Error(), "get instance: Unavailable"; got != want {
		t.Errorf("got %q, want %q: ids in texts cause endless writes", got, want)
	}
	cloud.Fail(fake.MethodList, errors.New("page 2"))
	if all, err := p.List(t.Context()); all != nil || err == nil {
		t.Errorf("got %v, %v: a partial list must not look whole", all, err)
	}
}

func TestTimeout_EndsACallThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cloud := fake.NewCloud(clock.RealClock{}, fake.Behaviour{})
		p := guard.Wrap(hanging{open(t, cloud)}, guard.Options{Clock: clock.RealClock{}})
		start := time.Now()
		_, err := p.Get(t.Context(), ref)
		if providers.ReasonOf(err) != providers.Unavailable || time.Since(start) != guard.DefaultGetTimeout {
			t.Errorf("got %v after %v, want Unavailable after %v", err, time.Since(start), guard.DefaultGetTimeout)
		}
	})
}

type hanging struct{ providers.Provider }

func (hanging) Get(ctx context.Context, _ providers.Ref) (providers.Instance, error) {
	<-ctx.Done()
	return providers.Instance{}, ctx.Err()
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	first, err := guard.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	// A second manager in the process uses the same.
	if _, err := guard.NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	p, cloud, _ := setup(t, func(o *guard.Options) { o.Metrics = first })
	cloud.Down(errors.New("dial"))
	for range guard.BreakerThreshold + 1 {
		_, _ = reasonOfGet(t, p)
	}
	for name, want := range map[string]int{
		"proxy_operator_provider_call_duration_seconds": 1, "proxy_operator_provider_calls_refused_total": 1, "proxy_operator_provider_breaker_open": 1,
	} {
		if got, err := testutil.GatherAndCount(registry, name); err != nil || got != want {
			t.Errorf("%s: %d series, %v; want %d", name, got, err, want)
		}
	}
	if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
}
