package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestLeaseLivesByRenewals(t *testing.T) {
	for _, ttl := range []time.Duration{10 * time.Second, 5 * time.Minute, 24 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			m := newModel()
			lease := acquire(t, m.client(t), Request{TTL: ttl})
			ended := m.only(t)
			const lives = 50
			for range 100 * lives {
				sleep(t.Context(), ttl/100)
				if left, really := time.Until(lease.ExpiresAt()), time.Until(ended.expires); lease.Err() != nil || left > really || left <= ttl*renewLeft/200 {
					t.Fatalf("%v, believes in %v of %v", lease.Err(), left, really)
				}
			}
			closeLease(t, lease)
			renewals, useless := 0, 0
			for _, c := range m.said() {
				if c.path == "/default.http-0.proof/renew" {
					renewals++
				}
			}
			// One in 0.55 to 0.65 TTLs, each of which is worth a write.
			if renewals < lives*100/65-1 || renewals > lives*100/55+1 || useless > 0 {
				t.Errorf("%d renewals in %d TTLs", renewals, lives)
			}
		})
	}
}

// Renewals of leases that were acquired together spread out.
func TestRenewalsHaveJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		c := m.client(t)
		for range 20 {
			defer closeLease(t, acquire(t, c, Request{TTL: 100 * time.Second}))
		}
		m.said()
		sleep(t.Context(), 70*time.Second)
		moments := map[time.Duration]bool{}
		begin := time.Now()
		for _, s := range m.said() {
			moments[begin.Sub(s.at).Truncate(time.Second)] = true
		}
		if len(moments) < 5 {
			t.Fatalf("renewals within %d seconds", len(moments))
		}
	})
}

// Whatever is lost or late: as long as the holder believes in its lease the API does too, unless it was revoked. And while
// the API is there most of the time, no lease is lost.
func TestHolderNeverBelievesTooLong(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			m := newModel()
			m.offset = time.Duration(r.Int64N(int64(48*time.Hour))) - 24*time.Hour
			bad := float64(seed%4) * 0.25
			m.breaks(func(_ int, c modelCall) fault {
				f := fault{before: time.Duration(r.Int64N(int64(300 * time.Millisecond))), after: time.Duration(r.Int64N(int64(300 * time.Millisecond)))}
				if r.Float64() >= bad {
					return f
				}
				switch r.IntN(6) {
				case 0:
					f.requestLost = true
				case 1:
					f.replyLost = true
				case 2:
					f.before = 8 * time.Second
				case 3:
					f.after = 8 * time.Second
				case 4:
					f.status, f.code, f.retryAfter = 503, wire.CodeNotReady, 1
				case 5:
					f.status, f.code, f.retryAfter = 429, wire.CodeTooManyRequests, 1+r.IntN(60)
				}
				return f
			})
			c := m.client(t)
			lease := acquire(t, c, Request{TTL: 30 * time.Second})
			state := m.of(lease)
			for range 60 * 60 {
				sleep(t.Context(), 100*time.Millisecond)
				m.mu.Lock()
				alive := state.alive(time.Now())
				m.mu.Unlock()
				if lease.Err() == nil && !alive {
					t.Fatalf("seed %d: believes in a lease that ended %v ago", seed, time.Since(state.expires))
				}
			}
			if lease.Err() != nil && bad < 0.5 {
				t.Errorf("seed %d: %v", seed, lease.Err())
			}
			m.breaks(nil)
			closeLease(t, lease)
			c.Close()
			if n := m.living(); n != 0 {
				t.Errorf("seed %d: %d leases are left", seed, n)
			}
		})
	}
}

func TestLeaseIsLostWhenNobodyConfirmsIt(t *testing.T) {
	for name, f := range map[string]fault{
		"no connection": {requestLost: true},
		"no answer":     {before: time.Hour},
		"refused":       {status: 401, code: wire.CodeUnauthorized},
		"asked to wait": {status: 503, code: wire.CodeNotReady, retryAfter: 3600},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				lease := acquire(t, m.client(t), Request{TTL: 100 * time.Second})
				begun := time.Now()
				m.said()
				m.breaks(func(int, modelCall) fault { return f })
				<-lease.Done()
				if took := time.Since(begun); took != 100*time.Second {
					t.Errorf("lost after %v", took)
				}
				if n := len(m.said()); n < 4 {
					t.Errorf("%d attempts to renew", n)
				}
				var lost *LostError
				if err := lease.Err(); !errors.As(err, &lost) || !errors.Is(err, ErrLost) || lost.Reason != ReasonExpired || lost.Cause == nil {
					t.Errorf("%#v", err)
				}
				if _, err := lease.Transport().RoundTrip(get(t, "http://x.example/")); !errors.Is(err, ErrLost) {
					t.Errorf("the transport answers %v", err)
				}
				m.breaks(nil)
				m.said()
				// Nobody has said that it is over: it is given back.
				closeLease(t, lease)
				if said := m.said(); len(said) != 1 || said[0].method != http.MethodDelete {
					t.Errorf("%v", said)
				}
			})
		})
	}
}

// An outage that is shorter than what is left of the TTL is not noticed, whatever is answered meanwhile.
func TestLeaseOutlivesAnOutage(t *testing.T) {
	for name, f := range map[string]fault{
		"no connection": {requestLost: true},
		"no answer":     {before: time.Hour},
		"lost replies":  {replyLost: true},
		"bad gateway":   {status: 502, text: "<html>"},
		"token expired": {status: 401, code: wire.CodeUnauthorized},
		"right revoked": {status: 403, code: wire.CodeForbidden},
		"overloaded":    {status: 429, code: wire.CodeTooManyRequests, retryAfter: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				lease := acquire(t, m.client(t), Request{TTL: 100 * time.Second})
				sleep(t.Context(), 50*time.Second)
				m.breaks(func(int, modelCall) fault { return f })
				sleep(t.Context(), 30*time.Second)
				m.breaks(nil)
				sleep(t.Context(), time.Hour)
				if err := lease.Err(); err != nil {
					t.Error(err)
				}
				closeLease(t, lease)
			})
		})
	}
}

func TestRevokedLeaseTellsWhy(t *testing.T) {
	for _, reason := range []string{ReasonProxyReplaced, ReasonProxyDeleted, ReasonDrainDeadline, ReasonConflict, ReasonGone, "SomethingNew"} {
		synctest.Test(t, func(t *testing.T) {
			m := newModel()
			lease := acquire(t, m.client(t), Request{TTL: 100 * time.Second})
			m.end(t, reason)
			<-lease.Done()
			var lost *LostError
			if !errors.As(lease.Err(), &lost) || lost.Reason != reason || lost.Cause != nil {
				t.Errorf("%v", lease.Err())
			}
			// What was seen is still told, and nothing is left to be released.
			m.said()
			if err := lease.Report(t.Context(), "x.example", Banned, 0); (err != nil) != (reason == ReasonGone) {
				t.Errorf("report: %v", err)
			}
			closeLease(t, lease)
			for _, s := range m.said() {
				if s.method == http.MethodDelete {
					t.Errorf("%v", s)
				}
			}
			if err := lease.Report(t.Context(), "x.example", Banned, 0); !errors.Is(err, ErrClosed) {
				t.Errorf("report after Close: %v", err)
			}
		})
	}
}

// A process that stood still finds out before it sends anything.
func TestErrDoesNotWaitForTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{TTL: 100 * time.Second})
		lease.cancel() // nothing goes on in the background
		lease.running.Wait()
		sleep(t.Context(), 99*time.Second)
		if err := lease.Err(); err != nil {
			t.Fatal(err)
		}
		sleep(t.Context(), time.Second)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := lease.Err(); !errors.Is(err, ErrLost) {
					t.Errorf("%v", err)
				}
			})
		}
		wg.Wait()
		<-lease.Done()
		closeLease(t, lease)
	})
}

func TestRenewalsTakeChangesIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{TTL: 100 * time.Second})
		m.mu.Lock()
		m.draining, m.password = true, "rotated"
		m.mu.Unlock()
		sleep(t.Context(), 70*time.Second)
		if _, password := lease.Credentials().Reveal(); !lease.Draining() || password != "rotated" {
			t.Fatalf("draining %v, password %s", lease.Draining(), password)
		}
		m.mu.Lock()
		m.username, m.password = "", ""
		m.mu.Unlock()
		sleep(t.Context(), 70*time.Second)
		if lease.Credentials() != nil || lease.ProxyURL().User != nil {
			t.Fatal("credentials that are not needed any more")
		}
		closeLease(t, lease)
	})
}

// Trouble with the proxy makes the lease be looked at, now and then.
func TestTroubleWithTheProxyIsLookedInto(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{TTL: 1000 * time.Second})
		m.said()
		for range 100 {
			lease.doubt()
			sleep(t.Context(), 100*time.Millisecond)
		}
		if n := len(m.said()); n < 2 || n > 3 {
			t.Errorf("%d looks in 10 s", n)
		}
		sleep(t.Context(), checkPeriod)
		m.end(t, ReasonProxyReplaced)
		begun := time.Now()
		lease.doubt()
		<-lease.Done()
		if time.Since(begun) != 0 {
			t.Errorf("lost after %v", time.Since(begun))
		}
		closeLease(t, lease)
	})
}

func TestReportIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{})
		defer closeLease(t, lease)
		m.said()
		lost := 3
		m.breaks(func(int, modelCall) fault { lost--; return fault{replyLost: lost >= 0} })
		if err := lease.Report(t.Context(), "x.example", RateLimited, 90*time.Second+1); err != nil {
			t.Fatal(err)
		}
		said := m.said()
		if len(said) != 4 || said[3].path != "/default.http-0.proof/report" {
			t.Fatalf("%v", said)
		}
		if r := said[3].report; r.Target != "x.example" || r.Result != "rate_limited" || *r.RetryAfterSeconds != 91 {
			t.Fatalf("%+v", r)
		}
		m.breaks(func(int, modelCall) fault {
			return fault{status: 422, code: wire.CodeInvalidField}
		})
		if err := lease.Report(t.Context(), "X", OK, 0); !errors.Is(err, ErrInvalid) || len(m.said()) != 1 {
			t.Fatal(err)
		}
		m.breaks(func(int, modelCall) fault { return fault{requestLost: true} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := lease.Report(ctx, "x.example", OK, 0); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errReset) {
			t.Fatal(err)
		}
		m.breaks(nil)
	})
}

func TestCloseGivesTheProxyBack(t *testing.T) {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	past, cancelPast := context.WithDeadline(context.Background(), time.Unix(0, 0))
	defer cancelPast()
	for name, ctx := range map[string]context.Context{"alive": context.Background(), "cancelled": over, "past its deadline": past} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				acquiring, cancel := context.WithCancel(t.Context())
				lease, err := m.client(t).Acquire(acquiring, Request{})
				if err != nil {
					t.Fatal(err)
				}
				cancel() // the lease does not end with the context that it was acquired with
				synctest.Wait()
				if err := lease.Err(); err != nil {
					t.Fatal(err)
				}
				lost := 2
				m.breaks(func(int, modelCall) fault { lost--; return fault{requestLost: lost >= 0} })
				m.said()
				var wg sync.WaitGroup
				for range 4 {
					wg.Go(func() {
						if err := lease.Close(ctx); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				if n := len(m.said()); n != 3 || m.living() != 0 {
					t.Errorf("%d calls, %d leases", n, m.living())
				}
				if err := lease.Err(); !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			})
		})
	}
}

// Close that fails says so in time, and may be tried again.
func TestCloseIsBoundedAndMayBeRepeated(t *testing.T) {
	for _, limit := range []time.Duration{2 * time.Second, releaseTimeout, time.Hour} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				lease := acquire(t, m.client(t), Request{})
				m.breaks(func(int, modelCall) fault { return fault{before: time.Hour} })
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				begun := time.Now()
				if err := lease.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				if took := time.Since(begun); took != min(limit, releaseTimeout) {
					t.Errorf("took %v", took)
				}
				m.breaks(nil)
				closeLease(t, lease)
				if m.living() != 0 {
					t.Error("the lease lives")
				}
			})
		})
	}
}

func get(t testing.TB, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
