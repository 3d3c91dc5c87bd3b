package guard_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
	"crawl.example.com/egress-proxies-operator/providers/guard"
)

// breakIt opens the breaker of p.
func breakIt(t *testing.T, p providers.Provider, cloud *fake.Cloud, failure error) {
	t.Helper()
	cloud.Down(failure)
	for range guard.BreakerThreshold {
		_, _ = reasonOfGet(t, p)
	}
	if _, err := reasonOfGet(t, p); !errors.Is(err, providers.ErrBreakerOpen) {
		t.Fatalf("got %v, want an open breaker", err)
	}
}

// A condition is made from reason and message, so these must not tell whether the breaker is open.
func TestBreaker_RefusesWithTheWordsOfTheFailure(t *testing.T) {
	for name, failure := range map[string]error{
		"refused credentials": providers.NewError(providers.Auth, "", "the key is revoked", errors.New("403 request 1")),
		"no answer":           errors.New("dial 2"),
	} {
		t.Run(name, func(t *testing.T) {
			p, cloud, clock := setup(t)
			cloud.Down(failure)
			_, want := reasonOfGet(t, p)
			breakIt(t, p, cloud, failure)
			for range 3 {
				// Open, and then a call that finds out again.
				for range 2 {
					if reason, err := reasonOfGet(t, p); reason != providers.ReasonOf(want) || providers.StableMessage(err) != providers.StableMessage(want) {
						t.Errorf("got %q %q, want %q %q", reason, providers.StableMessage(err), providers.ReasonOf(want), providers.StableMessage(want))
					}
				}
				clock.Step(guard.BreakerOpenFor)
			}
		})
	}
}

func TestBreaker_ACheckPassesAndClosesIt(t *testing.T) {
	p, cloud, clock := setup(t)
	breakIt(t, p, cloud, errors.New("dial"))

	// One that fails does not prolong anything.
	clock.Step(guard.BreakerOpenFor - time.Second)
	if err := p.Check(t.Context()); err == nil || errors.Is(err, providers.ErrBreakerOpen) {
		t.Errorf("got %v, want the provider's own answer", err)
	}
	if _, err := reasonOfGet(t, p); !errors.Is(err, providers.ErrBreakerOpen) {
		t.Errorf("got %v, want an open breaker", err)
	}
	clock.Step(time.Second)
	if _, err := reasonOfGet(t, p); errors.Is(err, providers.ErrBreakerOpen) {
		t.Error("a failed check kept the breaker open")
	}

	// One that succeeds ends it before its time.
	cloud.Down(nil)
	if err := p.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if reason, err := reasonOfGet(t, p); reason != providers.NotFound {
		t.Errorf("got %v after a good check", err)
	}
}

func TestBreaker_ACallThatNeverEndsIsGivenUp(t *testing.T) {
	p, cloud, clock := setup(t)
	breakIt(t, p, cloud, errors.New("dial"))
	clock.Step(guard.BreakerOpenFor)
	probing, end := make(chan struct{}), make(chan struct{})
	cloud.Hook(fake.MethodGet, func(fake.Call) { close(probing); <-end })
	var group sync.WaitGroup
	group.Go(func() { _, _ = p.Get(context.Background(), ref) })
	<-probing
	cloud.Hook(fake.MethodGet, nil)
	cloud.Down(nil)
	waited := time.Duration(0)
	for {
		_, err := reasonOfGet(t, p)
		if !errors.Is(err, providers.ErrBreakerOpen) {
			break
		}
		if waited > 5*time.Minute {
			t.Fatal("one call holds the breaker for ever")
		}
		waited += providers.RetryAfterOf(err)
		clock.Step(providers.RetryAfterOf(err))
	}
	if waited <= guard.DefaultListTimeout {
		t.Errorf("given up after %v, which is less than a call may take", waited)
	}
	close(end)
	group.Wait()
}

// Mended credentials must not wait for what the old ones did.
func TestBreaker_AChangedClassStartsAnew(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	cloud := fake.NewCloud(clock, fake.Behaviour{})
	factory := &fake.Factory{Cloud: cloud}
	set := providers.NewSet(factory, providers.Runtime{ClusterID: "cluster", Clock: clock}, guard.ForSet(factory, clock, nil))
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: "uid", Generation: 1}}
	of := func() providers.Provider {
		p, err := set.Open(t.Context(), class)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	breakIt(t, of(), cloud, providers.NewError(providers.Auth, "", "", nil))
	cloud.Down(nil)
	if _, err := reasonOfGet(t, of()); !errors.Is(err, providers.ErrBreakerOpen) {
		t.Fatalf("got %v, want an open breaker", err)
	}
	class.Generation++
	if reason, err := reasonOfGet(t, of()); reason != providers.NotFound {
		t.Errorf("got %v after the class was changed", err)
	}
}

func TestBreaker_ACallersOwnDeadlineCountsWhenItWasFair(t *testing.T) {
	for name, test := range map[string]struct {
		deadline time.Duration
		opens    bool
	}{
		"the window of an attempt": {10 * time.Second, true},
		"the rest of a window":     {time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cloud := fake.NewCloud(clock.RealClock{}, fake.Behaviour{})
				p := guard.Wrap(hanging{open(t, cloud)}, guard.Options{Clock: clock.RealClock{}})
				var err error
				for range guard.BreakerThreshold + 1 {
					ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
					_, err = p.Get(ctx, ref)
					cancel()
				}
				if errors.Is(err, providers.ErrBreakerOpen) != test.opens {
					t.Errorf("got %v, want an open breaker: %v", err, test.opens)
				}
			})
		})
	}
}

// waiter is a Proxy that asks until it gets an answer, as its controller does.
func waiter(t *testing.T, p providers.Provider, asked *int, mu *sync.Mutex) {
	for {
		_, err := p.Get(t.Context(), ref)
		mu.Lock()
		*asked++
		mu.Unlock()
		if providers.ReasonOf(err) == providers.NotFound {
			return
		}
		<-time.After(max(providers.RetryAfterOf(err), time.Second))
	}
}

// 500 Proxies wait behind a provider that is down for ten minutes. It is called now and then; when it is back, all of them
// are served within the time that the class's rate needs, never more at once than the limit allows, and hardly any of them
// comes in vain.
func TestA29_RecoveryIsSpread(t *testing.T) {
	const proxies, outage = 500, 10 * time.Minute
	for name, hangs := range map[string]bool{"refusing": false, "hanging": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				limits := providers.Limits{CallsPerSecond: 10, Burst: 50}
				cloud := fake.NewCloud(clock.RealClock{}, fake.Behaviour{})
				raw := &hangingUntil{Provider: open(t, cloud), end: make(chan struct{})}
				if !hangs {
					close(raw.end)
					cloud.Down(errors.New("dial"))
				}
				p := guard.Wrap(raw, guard.Options{Clock: clock.RealClock{}, Limits: limits})
				var (
					mu    sync.Mutex
					group sync.WaitGroup
					asked int
				)
				start := time.Now()
				for range proxies {
					group.Go(func() { waiter(t, p, &asked, &mu) })
				}
				<-time.After(outage)
				most := guard.BreakerThreshold + int(outage/guard.BreakerOpenFor)
				// All come in the same instant. Until five of them have failed only the rate bounds them, and who waits for it
				// then, up to two seconds, has passed the breaker.
				most += limits.Burst + int(limits.CallsPerSecond*2)
				if hangs {
					most += int(limits.CallsPerSecond * guard.DefaultGetTimeout.Seconds())
				}
				if n := int(raw.calls.Load()); n > most {
					t.Errorf("%d calls while it was down, want at most %d", n, most)
				}
				before := len(cloud.Calls())
				mu.Lock()
				askedBefore := asked
				mu.Unlock()
				cloud.Down(nil)
				if hangs {
					close(raw.end)
				}
				group.Wait()

				// The rate's own time, what a breaker may still be open, and a call that still hangs.
				need := time.Duration(proxies/limits.CallsPerSecond)*time.Second + guard.BreakerOpenFor + guard.DefaultGetTimeout
				if took := time.Since(start.Add(outage)); took > 2*need {
					t.Errorf("recovered after %v, want at most %v", took, 2*need)
				}
				calls := cloud.Calls()[before:]
				for i := range calls {
					n := 0
					for _, later := range calls[i:] {
						if later.Time.Sub(calls[i].Time) < time.Second {
							n++
						}
					}
					if most := limits.Burst + int(limits.CallsPerSecond); n > most {
						t.Fatalf("%d calls within a second, want at most %d", n, most)
					}
				}
				if per := float64(asked-askedBefore) / proxies; per > 3 {
					t.Errorf("each Proxy asked %.1f times after the provider was back, want at most 3", per)
				}
			})
		})
	}
}

// hangingUntil does not answer until a channel is closed.
type hangingUntil struct {
	providers.Provider
	end   chan struct{}
	calls atomic.Int64
}

func (h *hangingUntil) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	h.calls.Add(1)
	select {
	case <-h.end:
		return h.Provider.Get(ctx, ref)
	case <-ctx.Done():
		return providers.Instance{}, ctx.Err()
	}
}
