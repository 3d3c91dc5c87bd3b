package proxylease

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// rough is an API server that takes its time and fails every third call about leases and proxies: it refuses, it answers with
// an error before or after it has done what was asked, or not at all. Watches are left alone.
type rough struct {
	next  http.RoundTripper
	calls atomic.Int32
	off   atomic.Bool

	mu  sync.Mutex
	rng *rand.Rand
}

func (r *rough) wrap(next http.RoundTripper) http.RoundTripper {
	r.next = next
	return r
}

func (r *rough) RoundTrip(request *http.Request) (*http.Response, error) {
	ours := strings.Contains(request.URL.Path, "/proxyleases") || strings.Contains(request.URL.Path, "/proxies")
	if query := request.URL.Query(); !ours || query.Has("watch") || query.Has("resourceVersion") || r.off.Load() {
		return r.next.RoundTrip(request)
	}
	r.calls.Add(1)
	r.mu.Lock()
	fate := r.rng.IntN(12)
	late := time.Duration(300+r.rng.IntN(500)) * time.Millisecond
	r.mu.Unlock()
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-request.Context().Done():
		return nil, request.Context().Err()
	}
	failure := func(code int, reason string) *http.Response {
		return &http.Response{
			StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Request: request,
			Body: io.NopCloser(strings.NewReader(fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code))),
		}
	}
	switch fate {
	case 0:
		return failure(http.StatusTooManyRequests, "TooManyRequests"), nil
	case 1:
		return failure(http.StatusInternalServerError, "InternalError"), nil
	case 2, 3: // after it was done
		answer, err := r.next.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		if fate == 2 {
			return failure(http.StatusInternalServerError, "InternalError"), nil
		}
		return nil, errLost
	}
	return r.next.RoundTrip(request)
}

func TestR8_ASlowAPIServerThatFailsEveryThirdCallBreaksNoRule(t *testing.T) {
	const callers, slots, shared, lonely = 12, 4, 4, 2
	f := newFleet(t)
	for i := range shared {
		f.proxy(fmt.Sprint("p", i), capacity(slots))
	}
	for i := range lonely {
		f.proxy(fmt.Sprint("p", shared+i), func(px *v1alpha1.Proxy) { px.Labels = map[string]string{"geo": "us"} })
	}
	network := &rough{rng: rand.New(rand.NewPCG(8, 8))}
	c := f.start(withTransport(network.wrap))
	// What is promised to callers, by the id of the lease.
	var mu sync.Mutex
	promised := map[string]string{}
	stop, watched := make(chan struct{}), make(chan struct{})
	go func() { // no rule is broken at any moment
		defer close(watched)
		for {
			load, exclusive := map[string]int{}, map[string]int{}
			for _, l := range f.leases() {
				if b, ok := record.BindingOf(&l); ok && record.Holds(&l) {
					load[b.ProxyName]++
					if x := f.getProxy(b.ProxyName).Status.Exclusive; l.Spec.Mode == v1alpha1.LeaseExclusive && x != nil && x.LeaseUID == l.UID {
						exclusive[b.ProxyName]++
					}
				}
			}
			for name, n := range load {
				if n > slots || exclusive[name] > 0 && n > 1 {
					t.Errorf("%s carries %d leases, %d of them exclusive", name, n, exclusive[name])
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	const bounded = 30 * time.Second
	var calls sync.WaitGroup
	for i := range callers {
		calls.Go(func() {
			body, deadline := `{"ttlSeconds":900,"selector":{"geo":"eu"}}`, time.Now().Add(bounded)
			if i%4 == 0 { // three for two proxies
				body, deadline = `{"ttlSeconds":900,"mode":"Exclusive","selector":{"geo":"us"},"waitSeconds":1}`, time.Now().Add(bounded/4)
			}
			for time.Now().Before(deadline) {
				status, answer := c.call(http.MethodPost, "/v1/leases", body, keyHeader, fmt.Sprint("key-", i))
				switch status {
				case 200, 201:
					lease := decode[httpLease](t, answer)
					mu.Lock()
					if was, ok := promised[lease.name()]; ok && was != lease.Proxy.ID {
						t.Errorf("%s moved from %s to %s", lease.name(), was, lease.Proxy.ID)
					}
					promised[lease.name()] = lease.Proxy.ID
					mu.Unlock()
					if i%2 == 1 { // asked for again, it is the same
						if status, again := c.call(http.MethodPost, "/v1/leases", body, keyHeader, fmt.Sprint("key-", i)); status == 200 && decode[httpLease](t, again).LeaseID != lease.LeaseID {
							t.Errorf("key %d gave %s, and then %s", i, lease.LeaseID, again)
						}
					}
					return
				case 429, 503:
					tick(t, 200*time.Millisecond)
				default:
					t.Errorf("%d %s", status, answer)
					return
				}
			}
		})
		if i%3 == 0 {
			f.lease(fmt.Sprint("cr-", i), func(l *v1alpha1.ProxyLease) {
				l.Spec.TTLSeconds, l.Spec.Selector = 900, &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "eu"}}
			})
		}
	}
	calls.Wait()
	// A retry storm would be many calls for each lease.
	most := int32(10 * (callers + callers/3))
	if n := network.calls.Load(); n > most {
		t.Errorf("%d calls for %d leases", n, callers+callers/3)
	}
	network.off.Store(true)
	eventually(t, "what was promised is stored, and the leases by object are bound or wait", func() string {
		for name, id := range promised {
			l := f.get(name)
			if l == nil {
				return name + " is lost"
			}
			if b, ok := record.BindingOf(l); !ok || !record.Holds(l) || f.ns+"/"+b.ProxyName != id {
				return fmt.Sprintf("%s is %+v, promised was %s", name, l.Status, id)
			}
		}
		for _, l := range f.leases() {
			if record.Finished(&l) {
				return fmt.Sprintf("%s has ended: %+v", l.Name, l.Status)
			}
		}
		return ""
	})
	close(stop)
	<-watched
	if n := len(promised); n < callers-callers/4 {
		t.Fatalf("%d of %d callers were served", n, callers)
	}
	t.Logf("%d of %d callers were served by %d calls", len(promised), callers, network.calls.Load())
	// Nothing has leaked: when all leases are gone, every slot is free.
	for _, l := range f.leases() {
		if err := f.Client.Delete(t.Context(), &l); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "no slot is taken", func() string {
		for i := range shared + lonely {
			px := f.getProxy(fmt.Sprint("p", i))
			if load, _ := c.allocator.CountLeases(px.UID); load != 0 || px.Status.Exclusive != nil {
				return fmt.Sprintf("%s carries %d, %+v", px.Name, load, px.Status.Exclusive)
			}
		}
		return ""
	})
}

func TestT24_AddingDeletingAndListingAtOnceConverge(t *testing.T) {
	f := newFleet(t)
	leader := f.start()
	follower := f.start(following)
	type list struct{ Proxies []struct{ Name string } }
	names := func(c *core, query string) []string {
		status, body := c.call(http.MethodGet, "/v1/proxies"+query, "")
		if status != 200 {
			t.Errorf("list: %d %s", status, body)
		}
		var out []string
		for _, px := range decode[list](t, body).Proxies {
			out = append(out, px.Name)
		}
		return out
	}
	stop := make(chan struct{})
	var readers, writers sync.WaitGroup
	for _, c := range []*core{leader, follower} {
		readers.Go(func() {
			for {
				got := names(c, "?geo=eu")
				if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
					t.Errorf("listed %v", got)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
		readers.Go(func() {
			for {
				// Whoever gets a lease gets one of a proxy that was there.
				if status, body := c.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":60}`); status != 201 && status != 503 && status != 410 {
					t.Errorf("lease: %d %s", status, body)
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	const each = 12
	for w := range 3 {
		writers.Go(func() {
			for i := range each {
				name := fmt.Sprintf("w%d-%02d", w, i)
				px := f.proxy(name)
				if i%3 == 0 {
					if err := f.Client.Delete(context.Background(), px); err != nil {
						t.Error(err)
					}
				}
				if i%6 == 0 { // the name is used again
					f.proxy(name)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
	var exist []string
	proxies := &v1alpha1.ProxyList{}
	if err := f.Client.List(t.Context(), proxies, client.InNamespace(f.ns)); err != nil {
		t.Fatal(err)
	}
	uids := map[string]v1alpha1.Proxy{}
	for _, px := range proxies.Items {
		exist = append(exist, px.Name)
		uids[px.Name] = px
	}
	slices.Sort(exist)
	if len(exist) != 3*(each-each/3+each/6) {
		t.Fatalf("%d proxies exist", len(exist))
	}
	for _, c := range []*core{leader, follower} {
		eventually(t, "the list is what exists", func() string {
			if got := names(c, "?healthy=true"); !slices.Equal(got, exist) {
				return fmt.Sprintf("%v, want %v", got, exist)
			}
			return ""
		})
	}
	eventually(t, "leases hold what exists", func() string {
		load := map[string]int{}
		for _, l := range f.leases() {
			b, ok := record.BindingOf(&l)
			if !ok || record.Finished(&l) {
				continue
			}
			if px := uids[b.ProxyName]; px.UID != b.ProxyUID {
				return fmt.Sprintf("%s holds a proxy that is gone: %+v", l.Name, b)
			}
			load[b.ProxyName]++
		}
		for name, px := range uids {
			if n, _ := leader.allocator.CountLeases(px.UID); n != load[name] {
				return fmt.Sprintf("%s carries %d leases, the leader knows of %d", name, load[name], n)
			}
		}
		return ""
	})
}

func TestL9_TheEndOfACordonAndOfACooldownWake(t *testing.T) {
	f := newFleet(t)
	end := time.Now().Add(20 * time.Second).Truncate(time.Second)
	f.proxy("cordoned", func(px *v1alpha1.Proxy) { px.Spec.Leasing = v1alpha1.LeasingDisabled })
	f.setStatus(f.proxy("cooling"), func(s *v1alpha1.ProxyStatus) {
		s.Cooldowns = []v1alpha1.Cooldown{{Target: "x.example", InstanceID: "i-cooling", Hits: 1, UntilTime: new(metav1.NewTime(end))}}
	})
	f.start()
	f.lease("after-cordon", pinnedTo("cordoned"))
	f.lease("after-cooldown", pinnedTo("cooling"), func(l *v1alpha1.ProxyLease) { l.Spec.Targets = []string{"x.example"} })
	f.awaitPhase("after-cordon", v1alpha1.LeasePending)
	f.awaitPhase("after-cooldown", v1alpha1.LeasePending)
	eventually(t, "the cordon ends", func() string {
		px := f.getProxy("cordoned")
		px.Spec.Leasing = v1alpha1.LeasingEnabled
		if err := f.Client.Update(t.Context(), px); err != nil && !apierrors.IsConflict(err) {
			t.Fatal(err)
		} else if err != nil {
			return err.Error()
		}
		f.setStatus(px, func(*v1alpha1.ProxyStatus) {})
		return ""
	})
	f.awaitPhase("after-cordon", v1alpha1.LeaseBound)
	if l := f.awaitPhase("after-cooldown", v1alpha1.LeaseBound); l.Status.BoundTime.Time.Before(end) {
		t.Fatalf("bound %v before the cooldown's end", end.Sub(l.Status.BoundTime.Time))
	}
}
