package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// reviewed is an API whose tokens are reviewed by a reviewer, with the clock that both have.
func reviewed(t *testing.T) (http.Handler, *reviewer, *Kubernetes, *clocktesting.FakePassiveClock) {
	t.Helper()
	_, _, s := newServer(t)
	r := &reviewer{}
	k := r.kubernetes(t)
	clk := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
	k.Clock = clk
	var err error
	if s.Auth, err = NewAuth(AuthConfig{Modes: []string{AuthKubernetes}, Kubernetes: k}); err != nil {
		t.Fatal(err)
	}
	return s.Handler(), r, k, clk
}

// manyAddresses gives a stranger an address for each call.
func manyAddresses(i int) string { return fmt.Sprintf("198.%d.%d.%d", 18+i>>16&1, i>>8&255, i&255) }

// guess is what a stranger tries for the nth time.
func guess(t *testing.T, k *Kubernetes, n int, address string) {
	t.Helper()
	_, ok, err := k.Authenticate(t.Context(), fmt.Sprint("x", n), netip.MustParseAddr(address))
	if e, known := errors.AsType[*Error](err); ok || err != nil && (!known || e.Status != http.StatusTooManyRequests) {
		t.Fatalf("a stranger: %v %v", ok, err)
	}
}

// Strangers without any right send unknown tokens as fast as they can, from one address and from many. Whoever has called before
// notices nothing of it, however often they call, and the API server is not loaded.
func TestStrangersDoNotLockHoldersOut(t *testing.T) {
	for name, address := range map[string]func(int) string{
		"from the holders' address": func(int) string { return "192.0.2.1" },
		"from another address":      func(int) string { return "192.0.2.66" },
		"from many addresses":       manyAddresses,
	} {
		t.Run(name, func(t *testing.T) {
			h, r, k, clk := reviewed(t)
			start := clk.Now()
			const seconds, perSecond = 100, 150
			// How many seconds are between two calls of each.
			holders := map[string]int{"admin1": 1, "admin2": 20, "admin3": 60, "admin4": seconds - 1}
			for holder := range holders {
				if w := list(h, holder); w.Code != http.StatusOK {
					t.Fatal(w.Code)
				}
			}
			sent := 0
			for second := range seconds {
				for i := range perSecond {
					clk.SetTime(start.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Second/perSecond))
					sent++
					guess(t, k, sent, address(sent))
				}
				for holder, every := range holders {
					if second%every != 0 {
						continue
					}
					if w := list(h, holder); w.Code != http.StatusOK {
						t.Fatalf("%s in second %d: %d %s", holder, second, w.Code, w.Body)
					}
				}
			}
			if most := strangerReviewsPerSecond*seconds + strangerReviewBurst + 100; r.asked > most {
				t.Errorf("%d reviews, want %d at most", r.asked, most)
			}
			if n := k.budget.sources.last.Len(); n > maxLimiters {
				t.Errorf("%d addresses are remembered", n)
			}
			if n := k.tokens.refused.Len(); n > maxReviews {
				t.Errorf("%d refusals are remembered", n)
			}
		})
	}
}

// One stranger, with all the addresses of an IPv6 network, does not take the reviews away from those who come for the first time
// from elsewhere.
func TestOneStrangerDoesNotKeepNewHoldersOut(t *testing.T) {
	for name, address := range map[string]func(int) string{
		"IPv4":             func(int) string { return "192.0.2.66" },
		"IPv4 within IPv6": func(int) string { return "::ffff:192.0.2.66" },
		"an IPv6 network":  func(i int) string { return fmt.Sprintf("2001:db8::%x:%x", i>>16, i&0xffff) },
	} {
		t.Run(name, func(t *testing.T) {
			h, _, k, clk := reviewed(t)
			start := clk.Now()
			const seconds, perSecond = 15, 300
			sent := 0
			for second := range seconds {
				for i := range perSecond {
					clk.SetTime(start.Add(time.Duration(second)*time.Second + time.Duration(i)*time.Second/perSecond))
					sent++
					guess(t, k, sent, address(sent))
				}
				for i := range 5 {
					if w := listFrom(h, fmt.Sprint("admin", second*5+i), manyAddresses(i)); w.Code != http.StatusOK {
						t.Fatalf("second %d: %d %s", second, w.Code, w.Body)
					}
				}
			}
		})
	}
}

// A review that says no counts at once, also while the answer before it would still be believed.
func TestRevokedTokenIsRefusedByItsNextReview(t *testing.T) {
	h, r, _, clk := reviewed(t)
	start := clk.Now()
	at := func(after time.Duration, want int) {
		t.Helper()
		clk.SetTime(start.Add(after))
		if w := list(h, "admin"); w.Code != want {
			t.Fatalf("after %v: %d %s, want %d", after, w.Code, w.Body, want)
		}
	}
	at(0, http.StatusOK)
	r.revoked = "admin"
	at(reviewTTL-1, http.StatusOK)
	at(reviewTTL, http.StatusUnauthorized)
	at(reviewTTL+failedReviewTTL-1, http.StatusUnauthorized)
	r.down = true
	at(reviewTTL+failedReviewTTL, http.StatusServiceUnavailable) // what was refused is not believed again
	r.down, r.revoked = false, ""
	start = clk.Now()
	at(0, http.StatusOK)
	r.down = true
	at(reviewTTL, http.StatusOK)
	r.down, r.revoked = false, "admin"
	at(reviewTTL+unavailableRetry, http.StatusUnauthorized)
}

// While the API server does not answer, what it said before holds for a while, and it is not asked at every call. Of those it has
// not told anything of, nobody is let in.
func TestLastAnswersHoldWhileKubernetesIsDown(t *testing.T) {
	h, r, _, clk := reviewed(t)
	start := clk.Now()
	if w := list(h, "admin"); w.Code != http.StatusOK {
		t.Fatal(w.Code)
	}
	r.down, r.asked = true, 0
	const end = reviewTTL + staleReviewTTL
	for after := time.Duration(0); after < end; after += 100 * time.Millisecond {
		clk.SetTime(start.Add(after))
		if w := list(h, "admin"); w.Code != http.StatusOK {
			t.Fatalf("after %v: %d %s", after, w.Code, w.Body)
		}
	}
	if most := 2 * int(staleReviewTTL/unavailableRetry); r.asked == 0 || r.asked > most {
		t.Errorf("%d reviews, want %d at most: the token's and the right's", r.asked, most)
	}
	if w := list(h, "admin2"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("a token that was never seen: %d", w.Code)
	}
	clk.SetTime(start.Add(end))
	if w := list(h, "admin"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("after %v: %d", end, w.Code)
	}
	r.down = false
	clk.SetTime(start.Add(end + time.Hour))
	if w := list(h, "admin"); w.Code != http.StatusOK {
		t.Errorf("when it is up again: %d", w.Code)
	}
}

// More good tokens than can be reviewed at once are due at once: nobody is refused, and each is reviewed while its last answer is
// believed.
func TestManyKnownTokensAreReviewedOneAfterTheOther(t *testing.T) {
	if knownReviewsPerSecond*(reviewTTL+staleReviewTTL) < maxReviews*time.Second {
		t.Error("the budget does not reach for all that are remembered")
	}
	_, r, k, clk := reviewed(t)
	const tokens = 5 * knownReviewBurst
	call := func(i int, address string) {
		t.Helper()
		if _, ok, err := k.Authenticate(t.Context(), fmt.Sprint("admin", i), netip.MustParseAddr(address)); !ok {
			t.Fatalf("token %d, %v later: %v", i, clk.Since(time.Unix(1000, 0)), err)
		}
	}
	start := clk.Now()
	for i := range tokens {
		clk.SetTime(start.Add(time.Duration(i) * time.Second / strangerReviewsPerSecond))
		call(i, manyAddresses(i))
	}
	start = clk.Now()
	for second := range int((2*reviewTTL + staleReviewTTL) / time.Second) {
		clk.SetTime(start.Add(reviewTTL + time.Duration(second)*time.Second))
		r.asked = 0
		for i := range tokens {
			call(i, "192.0.2.1")
		}
		if r.asked > knownReviewBurst {
			t.Fatalf("%d reviews in second %d", r.asked, second)
		}
	}
}

// Those who call with one token at the same time share its review.
func TestCallsAtTheSameTimeShareTheReview(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, r, _, _ := reviewed(t)
		r.hold = make(chan struct{})
		var calls sync.WaitGroup
		for range 3 * sourceReviewBurst {
			calls.Go(func() {
				if w := list(h, "admin"); w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		synctest.Wait()
		close(r.hold)
		calls.Wait()
		if r.asked != 2 {
			t.Errorf("%d reviews, want one of the token and one of the right", r.asked)
		}
	})
}

// A caller with a good token who names one namespace after the other takes no more than a share of the reviews, and none of
// another's; a right that it has shown goes on.
func TestRightsOfManyNamespacesAreReviewedSlowly(t *testing.T) {
	_, r, k, clk := reviewed(t)
	identity := func(token string) Identity {
		id, ok, err := k.Authenticate(t.Context(), token, netip.MustParseAddr("192.0.2.1"))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		return id
	}
	guest, admin := identity("guest1"), identity("admin1")
	right := func(namespace string) Access {
		return Access{Verb: "create", Resource: "proxyleases", Namespace: namespace}
	}
	if ok, err := k.Authorize(t.Context(), admin, right("team")); !ok || err != nil {
		t.Fatal(ok, err)
	}
	before, refused := r.asked, 0
	for i := range 1000 {
		_, err := k.Authorize(t.Context(), guest, right(fmt.Sprint("n", i)))
		if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusTooManyRequests {
			refused++
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if asked := r.asked - before; asked != rightReviewBurst || refused != 1000-rightReviewBurst {
		t.Fatalf("%d reviews, %d refusals", asked, refused)
	}
	for _, namespace := range []string{"team", "other"} {
		if ok, err := k.Authorize(t.Context(), admin, right(namespace)); !ok || err != nil {
			t.Fatalf("another user in %s: %v %v", namespace, ok, err)
		}
	}
	clk.SetTime(clk.Now().Add(time.Second))
	for i := range rightReviewsPerSecond {
		if _, err := k.Authorize(t.Context(), guest, right(fmt.Sprint("m", i))); err != nil {
			t.Fatalf("a second later: %v", err)
		}
	}
}
