package proxylease

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing"
)

func exclusivePatience(d time.Duration) coreOption {
	return withOptions(func(o *leasing.Options) { o.ExclusivePatience = d })
}

func exclusiveLease(l *v1alpha1.ProxyLease) { l.Spec.Mode = v1alpha1.LeaseExclusive }

func pinnedTo(proxy string) func(*v1alpha1.ProxyLease) {
	return func(l *v1alpha1.ProxyLease) { l.Spec.Selector, l.Spec.ProxyName = nil, proxy }
}

// sharedStream keeps all proxies busy with shared leases that come and go, until the test ends.
func sharedStream(t *testing.T, c *core) (granted *atomic.Int32) {
	stop := make(chan struct{})
	granted = &atomic.Int32{}
	var stream sync.WaitGroup
	for i := range 6 {
		stream.Go(func() {
			for n := 0; ; n++ {
				lease := c.acquire(201, fmt.Sprintf(`{"waitSeconds":20,"holder":"h%d"}`, i))
				granted.Add(1)
				tick(t, time.Duration(150+30*i)*time.Millisecond)
				c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, "")
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		stream.Wait()
	})
	flowsOn(t, granted)
	return granted
}

// flowsOn waits for some more leases of a stream.
func flowsOn(t *testing.T, granted *atomic.Int32) {
	t.Helper()
	before := granted.Load()
	eventually(t, "the stream flows", func() string {
		if n := granted.Load() - before; n < 12 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

func TestL13_AStreamOfSharedLeasesDoesNotStarveAnExclusiveOne(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	c := f.start(exclusivePatience(500 * time.Millisecond))
	granted := sharedStream(t, c)
	for i := range 3 {
		name := fmt.Sprint("x", i)
		f.lease(name, exclusiveLease)
		l := f.awaitPhase(name, v1alpha1.LeaseBound)
		flowsOn(t, granted)
		for _, other := range f.leases() {
			if other.Spec.Grant != nil && other.Spec.Grant.ProxyUID == l.Status.ProxyRef.UID {
				t.Fatalf("%s shares the proxy of %s", other.Name, name)
			}
		}
		if err := f.Client.Delete(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
}

// Calls that wait for less than the patience, and come again, wait together as long as one that stays.
func TestL13_AStreamOfSharedLeasesDoesNotStarveCallsThatComeAgain(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	c := f.start(exclusivePatience(3 * time.Second))
	sharedStream(t, c)
	eventually(t, "a call is served", func() string {
		status, body := c.call(http.MethodPost, "/v1/leases", `{"mode":"Exclusive","waitSeconds":1}`)
		if status != 201 {
			return string(body)
		}
		c.call(http.MethodDelete, "/v1/leases/"+decode[httpLease](t, body).LeaseID, "")
		return ""
	})
}

// An Exclusive lease that waits for a busy proxy keeps others away from it, until it waits no more.
func TestL13_TheClaimEndsWithTheLease(t *testing.T) {
	for name, wait := range map[string]func(f *fleet, c *core) (end func()){
		"deleted": func(f *fleet, _ *core) func() {
			f.lease("x", exclusiveLease, pinnedTo("a"))
			return func() {
				if err := f.Client.Delete(t.Context(), f.get("x")); err != nil {
					t.Fatal(err)
				}
			}
		},
		"timed out": func(f *fleet, _ *core) func() {
			f.lease("x", exclusiveLease, pinnedTo("a"), func(l *v1alpha1.ProxyLease) { l.Spec.WaitSeconds = ptr.To[int32](10) })
			return func() { f.awaitPhase("x", v1alpha1.LeaseFailed) }
		},
		"call timed out": func(_ *fleet, c *core) func() {
			answered := make(chan int, 1)
			go func() {
				status, _ := c.call(http.MethodPost, "/v1/leases", `{"proxy":"a","mode":"Exclusive","waitSeconds":10}`)
				answered <- status
			}()
			return func() {
				if status := <-answered; status != 503 {
					t.Fatalf("answered %d", status)
				}
			}
		},
		"hung up": func(_ *fleet, c *core) func() {
			ctx, cancel := context.WithCancel(t.Context())
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/leases", strings.NewReader(`{"proxy":"a","mode":"Exclusive","waitSeconds":60}`))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+token)
			go func() {
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_ = answer.Body.Close()
				}
			}()
			return cancel
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.proxy("a")
			f.proxy("b")
			c := f.start(exclusivePatience(200 * time.Millisecond))
			f.lease("holds", pinnedTo("a"))
			f.awaitPhase("holds", v1alpha1.LeaseBound)
			end := wait(f, c)
			// What others ask for is free while nothing is claimed, so only trying tells.
			eventually(t, "the proxy is claimed", func() string {
				status, body := c.call(http.MethodPost, "/v1/leases", `{"proxy":"a"}`)
				if status == 201 {
					c.call(http.MethodDelete, "/v1/leases/"+decode[httpLease](t, body).LeaseID, "")
					return "it was leased"
				}
				return ""
			})
			if got := c.acquire(201, `{}`); got.proxyName() != "b" { // nobody else is held up
				t.Fatalf("leased %s", got.proxyName())
			}
			end()
			eventually(t, "the proxy is leased again", func() string {
				if status, body := c.call(http.MethodPost, "/v1/leases", `{"proxy":"a"}`); status != 201 {
					return string(body)
				}
				return ""
			})
		})
	}
}
