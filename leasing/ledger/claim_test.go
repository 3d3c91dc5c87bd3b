package ledger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
)

// checkClaims fails the test unless claims and proxies agree, the claims are bounded, and every proxy that takes leases can
// be found by those who may have it.
func checkClaims(t *rapid.T, l *Ledger) {
	claimed := map[string]int{}
	open := map[string]int{}
	for key, c := range l.claims {
		if c.proxy == nil {
			continue
		}
		claimed[c.namespace]++
		if c.proxy.claim != key || l.proxies[c.proxy.key] != c.proxy {
			t.Fatalf("%s claims %s, which knows of %q", key, c.proxy.key, c.proxy.claim)
		}
	}
	for key, p := range l.proxies {
		if p.closed == "" {
			open[key.Namespace]++
		}
		if p.claim != "" && (l.claims[p.claim] == nil || l.claims[p.claim].proxy != p) {
			t.Fatalf("%s is claimed by %q, who claims another", key, p.claim)
		}
		free := p.closed == "" && p.claim == "" && (p.capacity == 0 || p.load() < p.capacity) && p.usage.exclusives == 0 && p.object.Status.Exclusive == nil
		if free != (p.level >= 0) {
			t.Fatalf("%s is free: %v, but stands in bucket %d", key, free, p.level)
		}
	}
	for namespace, n := range claimed {
		// A proxy that closes makes the bound smaller; what is claimed by then stays for its window.
		if n > max(1, len(l.proxies)/claimedShare) {
			t.Fatalf("%d of %d proxies of %s are claimed", n, open[namespace], namespace)
		}
	}
}

// claimer is an exclusive request that waits.
func claimer(name string, change ...func(*Request)) Request {
	r := request(name, append(change, exclusive)...)
	r.Claim = "claim of " + name
	return r
}

// stream keeps shared leases on every proxy: each ends after ttl, and a new one comes for each that ends.
type stream struct {
	l     *Ledger
	ttl   time.Duration
	ends  map[*Reservation]time.Time
	count int
	// refused is how many found no proxy.
	refused int
}

func (s *stream) tick(now time.Time) {
	for res, end := range s.ends {
		if !end.After(now) {
			s.l.Cancel(*res)
			delete(s.ends, res)
		}
	}
	s.count++
	res, err := s.l.Reserve(request(fmt.Sprint("shared", s.count)), now)
	if err != nil {
		s.refused++
		return
	}
	s.ends[&res] = now.Add(s.ttl)
}

func TestL13_AStreamOfSharedLeasesDoesNotStarveAnExclusiveOne(t *testing.T) {
	for _, n := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(n, " proxies"), func(t *testing.T) {
			var proxies []*v1alpha1.Proxy
			for i := range n {
				proxies = append(proxies, fixture.Proxy(ns, fmt.Sprint("p", i)))
			}
			l := newLedger(proxies...)
			s := &stream{l: l, ttl: 60 * time.Second, ends: map[*Reservation]time.Time{}}
			r := claimer("x")
			now := fixture.Start
			waitUntil := func(claims bool) (granted bool) {
				for range 1200 {
					now = now.Add(time.Second)
					s.tick(now)
					if _, err := l.Reserve(r, now); err == nil {
						return true
					}
					if claims {
						l.Claim(r.Claim, r, now)
					}
				}
				return false
			}
			for range 60 {
				now = now.Add(time.Second)
				s.tick(now)
			}
			if waitUntil(false) {
				t.Fatal("the stream leaves proxies empty: it proves nothing")
			}
			before := s.refused
			start := now
			if !waitUntil(true) {
				t.Fatal("the exclusive lease starved")
			}
			if took := now.Sub(start); took > s.ttl+5*time.Second {
				t.Fatalf("granted after %v, although all shared leases end within %v", took, s.ttl)
			}
			if n > 1 && s.refused != before {
				t.Fatalf("%d shared leases found no proxy, although only one was claimed", s.refused-before)
			}
			if l.Claimed() != 0 {
				t.Fatal("the claim outlived the grant")
			}
		})
	}
}

// A proxy may carry leases that never end: the claim moves on.
func TestL13_AClaimMovesOnFromAProxyThatNeverBecomesEmpty(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"))
	mustReserve(t, l, request("for-ever")) // on one of them
	s := &stream{l: l, ttl: 20 * time.Minute, ends: map[*Reservation]time.Time{}}
	r := claimer("x")
	now := fixture.Start
	for range 60 {
		s.tick(now)
	}
	for range 6 * 3600 {
		now = now.Add(time.Second)
		s.tick(now)
		if _, err := l.Reserve(r, now); err == nil {
			return
		}
		l.Claim(r.Claim, r, now)
	}
	t.Fatal("starved for six hours")
}

func TestL10_AClaimThatNothingServesKeepsNobodyOut(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "only"))
	mustReserve(t, l, request("for-ever"))
	r := claimer("x")
	now := fixture.Start
	longest, kept := time.Duration(0), time.Duration(0)
	for i := range 24 * 3600 {
		now = now.Add(time.Second)
		l.Claim(r.Claim, r, now)
		res, err := l.Reserve(request(fmt.Sprint(i)), now)
		if kept += time.Second; err == nil {
			kept = 0
			l.Cancel(res)
		}
		longest = max(longest, kept)
	}
	if longest < ClaimWindow || longest > MaxClaimWindow {
		t.Fatalf("others were kept out for %v at a time", longest)
	}
}

func TestL13_TheClaimEndsWithTheRequest(t *testing.T) {
	l := newLedger(fixture.Proxy(ns, "a"))
	mustReserve(t, l, request("holds"))
	r := claimer("x")
	until := l.Claim(r.Claim, r, fixture.Start)
	if !until.Equal(fixture.Start.Add(ClaimWindow)) {
		t.Fatalf("claimed until %v", until)
	}
	wantReason(t, l, request("y"), v1alpha1.ReasonAtCapacity)
	if why := l.Explain(request("y"), fixture.Start); !strings.Contains(why.Message, "exclusive") {
		t.Fatalf("the reason does not tell: %s", why.Message)
	}
	if again := l.Claim(r.Claim, r, fixture.Start.Add(time.Minute)); !again.Equal(until) {
		t.Fatalf("asked again it lasts until %v", again)
	}
	l.Withdraw(r.Claim)
	mustReserve(t, l, request("y"))
}

func TestL13_TheClaimIsChosenAnewWhenItsProxyBecomesUnusable(t *testing.T) {
	newer := func(name string, change func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
		px := fixture.Proxy(ns, name, change)
		px.ResourceVersion = "2"
		return px
	}
	for name, spoil := range map[string]func(l *Ledger, name string){
		"cordoned": func(l *Ledger, name string) {
			l.ObserveProxy(newer(name, func(px *v1alpha1.Proxy) { px.Spec.Leasing = v1alpha1.LeasingDisabled }))
		},
		"unhealthy": func(l *Ledger, name string) { l.ObserveProxy(newer(name, fixture.Unready)) },
		"draining": func(l *Ledger, name string) {
			l.ObserveProxy(newer(name, func(px *v1alpha1.Proxy) { px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "x"}} }))
		},
		"deleted": func(l *Ledger, name string) { l.DeleteProxy(fixture.Proxy(ns, name)) },
		"another": func(l *Ledger, name string) {
			l.ObserveProxy(newer(name, func(px *v1alpha1.Proxy) { px.UID = "new"; fixture.Unready(px) }))
		},
		"other labels": func(l *Ledger, name string) {
			l.ObserveProxy(newer(name, fixture.Labels(map[string]string{"geo": "us"})))
		},
		"cooling": func(l *Ledger, name string) {
			l.ObserveProxy(newer(name, func(px *v1alpha1.Proxy) {
				px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "x.example", InstanceID: "i-" + name, UntilTime: &metav1.Time{Time: fixture.Start.Add(time.Hour)}}}
			}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(fixture.Proxy(ns, "a"), fixture.Proxy(ns, "b"))
			a, b := mustReserve(t, l, request("on-a", pinned("a"))), mustReserve(t, l, request("on-b", pinned("b")))
			r := claimer("x", targets("x.example"), inEU)
			l.Claim(r.Claim, r, fixture.Start)
			if got := l.claims[r.Claim].proxy.key.Name; got != "a" {
				t.Fatalf("claimed %s", got)
			}
			spoil(l, "a")
			l.Claim(r.Claim, r, fixture.Start)
			if got := l.claims[r.Claim].proxy; got == nil || got.key.Name != "b" {
				t.Fatalf("claimed %+v", got)
			}
			l.Cancel(a)
			l.Cancel(b)
			if res := mustReserve(t, l, r); res.Binding.ProxyName != "b" {
				t.Fatalf("got %s", res.Binding.ProxyName)
			}
		})
	}
}

func TestClaimsAreBounded(t *testing.T) {
	var proxies []*v1alpha1.Proxy
	for i := range 9 {
		proxies = append(proxies, fixture.Proxy(ns, fmt.Sprint("p", i)))
	}
	l := newLedger(proxies...)
	for i := range 9 {
		mustReserve(t, l, request(fmt.Sprint("holds", i)))
	}
	for i := range 20 {
		r := claimer(fmt.Sprint("x", i))
		l.Claim(r.Claim, r, fixture.Start)
	}
	if n := l.Claimed(); n != 4 {
		t.Fatalf("%d of 9 proxies are claimed", n)
	}
	shared := claimer("shared")
	shared.Mode = v1alpha1.LeaseShared
	if until := l.Claim(shared.Claim, shared, fixture.Start); !until.IsZero() {
		t.Fatal("a shared request claims")
	}
	// What is free is given at once, whoever claims what.
	l.Withdraw("claim of x0")
	free := fixture.Proxy(ns, "free")
	l.ObserveProxy(free)
	if res := mustReserve(t, l, claimer("x5")); res.Binding.ProxyName != "free" {
		t.Fatalf("got %s", res.Binding.ProxyName)
	}
}
