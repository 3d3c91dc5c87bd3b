package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestRequestIsSentAsTheAPIWantsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{
			Namespace: "shop", Selector: map[string]string{"geo": "eu"}, Pool: "pool", Targets: []string{"x.example"}, TTL: 59*time.Second + 1,
			Mode: Exclusive, Holder: "worker", Wait: 2*time.Second + 1, Exclude: []string{"b"}, Key: "job-1",
		})
		defer closeLease(t, lease)
		eu := "eu"
		want := wire.LeaseRequest{
			Namespace: "shop", Selector: map[string]*string{"geo": &eu}, Pool: "pool", Targets: []string{"x.example"}, TTLSeconds: new(int32(60)),
			Mode: "Exclusive", Holder: "worker", WaitSeconds: new(int32(3)), Exclude: []string{"b"},
		}
		said := m.said()
		if diff := cmp.Diff(want, said[0].body); diff != "" || len(said) != 1 || said[0].key != "job-1" || said[0].token != "secret-token" {
			t.Fatalf("%v %+v", diff, said)
		}
		p := lease.Proxy()
		if p.ID() != "default/p" || p.URL != "http://192.0.2.1:3128" || p.EgressIP != "203.0.113.7" || p.Labels["geo"] != "eu" ||
			lease.TTL() != time.Minute || lease.ID() != "default.http-0.proof" || lease.Draining() {
			t.Fatalf("%+v", p)
		}
	})
}

// What has no certain outcome is asked again with the same key, and one lease is the result.
func TestAcquireSettlesWhatIsUncertain(t *testing.T) {
	for name, c := range map[string]struct {
		faults []fault
		pause  time.Duration // at least, before the second attempt
	}{
		"request lost":      {faults: []fault{{requestLost: true}}},
		"reply lost":        {faults: []fault{{replyLost: true}}},
		"both":              {faults: []fault{{requestLost: true}, {replyLost: true}, {replyLost: true}}},
		"no answer":         {faults: []fault{{after: time.Hour}}, pause: callTimeout},
		"not ready":         {faults: []fault{{status: 503, code: wire.CodeNotReady, retryAfter: 1}}, pause: time.Second},
		"outcome unknown":   {faults: []fault{{status: 503, code: wire.CodeOutcomeUnknown, retryAfter: 1}}, pause: time.Second},
		"api unavailable":   {faults: []fault{{status: 503, code: wire.CodeUnavailable, retryAfter: 2}}, pause: 2 * time.Second},
		"internal":          {faults: []fault{{status: 500, code: wire.CodeInternal}}},
		"another 502":       {faults: []fault{{status: 502, text: "<html>"}}},
		"another 504":       {faults: []fault{{status: 504, text: "<html>"}}},
		"overloaded":        {faults: []fault{{status: 429, code: wire.CodeTooManyRequests, retryAfter: 7}}, pause: 7 * time.Second},
		"queue full":        {faults: []fault{{status: 429, code: wire.CodeQueueFull, retryAfter: 5}}, pause: 5 * time.Second},
		"no proxy":          {faults: []fault{{status: 503, code: wire.CodeNoProxy, retryAfter: 60}}, pause: time.Minute},
		"for quite a while": {faults: make([]fault, 30)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.breaks(func(n int, _ modelCall) fault {
					if n < len(c.faults) {
						if f := c.faults[n]; f != (fault{}) {
							return f
						}
						return fault{requestLost: true}
					}
					return fault{}
				})
				lease := acquire(t, m.client(t), Request{})
				defer closeLease(t, lease)
				var attempts []modelCall
				for _, s := range m.said() {
					if s.path == "" {
						attempts = append(attempts, s)
					}
				}
				for _, s := range attempts {
					if s.key != attempts[0].key || len(s.key) < 20 {
						t.Fatalf("key %q after %q", s.key, attempts[0].key)
					}
				}
				if len(attempts) != len(c.faults)+1 || m.living() != 1 {
					t.Fatalf("%d attempts, %d leases", len(attempts), m.living())
				}
				if pause := attempts[1].at.Sub(attempts[0].at); pause < max(c.pause, minPause/2) {
					t.Errorf("the second attempt came after %v", pause)
				}
			})
		})
	}
}

func TestAcquireReturnsRefusalsAtOnce(t *testing.T) {
	for _, c := range []struct {
		status int
		code   string
		is     error
	}{
		{400, wire.CodeInvalidBody, ErrInvalid},
		{401, wire.CodeUnauthorized, ErrUnauthorized},
		{403, wire.CodeForbidden, ErrForbidden},
		{404, wire.CodeNotFound, nil},
		{409, wire.CodeKeyConsumed, ErrKeyUsed},
		{410, wire.CodeLeaseEnded, ErrLost},
		{422, wire.CodeInvalidField, ErrInvalid},
		{422, wire.CodeKeyReused, ErrKeyUsed},
	} {
		t.Run(c.code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.breaks(func(int, modelCall) fault { return fault{status: c.status, code: c.code} })
				_, err := m.client(t).Acquire(t.Context(), Request{Key: "mine"})
				var e *Error
				if !errors.As(err, &e) || e.Status != c.status || e.Code != c.code || c.is != nil && !errors.Is(err, c.is) || errors.Is(err, ErrNoProxy) {
					t.Fatalf("%v", err)
				}
				if n := len(m.said()); n != 1 {
					t.Fatalf("%d calls", n)
				}
			})
		})
	}
}

// What is no answer of the API is told at once, and not tried until the context ends.
func TestAcquireTellsAWrongURL(t *testing.T) {
	for name, f := range map[string]fault{
		"a page":      {status: 200, text: "<html>welcome</html>"},
		"a redirect":  {status: 301, text: "moved"},
		"nobody home": {status: 404, text: "404"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.breaks(func(int, modelCall) fault { return f })
				_, err := m.client(t).Acquire(t.Context(), Request{})
				if err == nil || !strings.Contains(err.Error(), "API") || len(m.said()) != 1 {
					t.Fatalf("%v", err)
				}
			})
		})
	}
	for _, url := range []string{"", "host:8090", "ftp://host", "http://", "http://user:secret@host", "http://host/?token=secret", "http://host/#x"} {
		if _, err := New(url, Options{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestAcquireWaitsAsLongAsItIsTold(t *testing.T) {
	for _, c := range []struct {
		name      string
		wait      time.Duration
		timeout   time.Duration // of the context
		want      error
		also      error
		took, max time.Duration
		calls     int
	}{
		{"not at all", NoWait, time.Hour, ErrNoProxy, nil, 0, 0, 1},
		{"a while", 30 * time.Second, time.Hour, ErrNoProxy, nil, 30 * time.Second, 31 * time.Second, 2},
		{"longer than one call may", 400 * time.Second, time.Hour, ErrNoProxy, nil, 400 * time.Second, 402 * time.Second, 5},
		{"until the context ends", 0, 90 * time.Second, context.DeadlineExceeded, ErrNoProxy, 90 * time.Second, 90 * time.Second, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.free = func() bool { return false }
				ctx, cancel := context.WithTimeout(t.Context(), c.timeout)
				defer cancel()
				begun := time.Now()
				_, err := m.client(t).Acquire(ctx, Request{Wait: c.wait})
				took := time.Since(begun)
				if !errors.Is(err, c.want) || c.also != nil && !errors.Is(err, c.also) {
					t.Errorf("error %v", err)
				}
				if took < c.took || took > c.max {
					t.Errorf("took %v", took)
				}
				if n := len(m.said()); n > c.calls {
					t.Errorf("%d calls", n)
				}
			})
		})
	}
}

// A lease that was granted long after it was asked for is not counted from then, and neither is it believed to have more
// left than it has.
func TestSlowGrantIsRenewedBeforeItIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		begun := time.Now()
		m.free = func() bool { return time.Since(begun) > 200*time.Second }
		lease := acquire(t, m.client(t), Request{TTL: time.Minute})
		defer closeLease(t, lease)
		if took := time.Since(begun); took < 200*time.Second || took > 201*time.Second {
			t.Fatalf("took %v", took)
		}
		if left, really := time.Until(lease.ExpiresAt()), time.Until(m.only(t).expires); left < 30*time.Second || left > really {
			t.Fatalf("believes in %v of %v", left, really)
		}
	})
}

// A lease of the same key, perhaps of a process that is no more, has an unknown rest.
func TestKeyOfAnEarlierProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		first := acquire(t, m.client(t), Request{Key: "job", TTL: 100 * time.Second})
		// The process dies: it neither renews nor releases.
		first.finish(errors.New("killed"), true)
		first.running.Wait()
		for _, age := range []time.Duration{45 * time.Second, 40 * time.Second} {
			sleep(t.Context(), age)
			second := acquire(t, m.client(t), Request{Key: "job", TTL: 100 * time.Second})
			if left, really := time.Until(second.ExpiresAt()), time.Until(m.only(t).expires); second.ID() != first.ID() || left > really || left < 50*time.Second {
				t.Fatalf("%s believes in %v of %v", second.ID(), left, really)
			}
			second.finish(errors.New("killed"), true)
			second.running.Wait()
		}
		// With another request the key is not for sale.
		if _, err := m.client(t).Acquire(t.Context(), Request{Key: "job", Holder: "other"}); !errors.Is(err, ErrKeyUsed) {
			t.Fatal(err)
		}
		sleep(t.Context(), time.Hour)
		if _, err := m.client(t).Acquire(t.Context(), Request{Key: "job", TTL: 100 * time.Second}); !errors.Is(err, ErrKeyUsed) {
			t.Fatal(err)
		}
	})
}

// A lease that ended before its acquirer learned of it is followed by another one, unless the key was the caller's.
func TestLeaseThatEndsUnknownIsFollowedByAnother(t *testing.T) {
	for name, spoil := range map[string]func(m *model, n int) fault{
		"expired meanwhile": func(m *model, n int) fault {
			if n < 3 {
				return fault{replyLost: true, before: 15 * time.Second}
			}
			return fault{}
		},
		"revoked meanwhile": func(m *model, n int) fault {
			if n == 1 {
				for _, l := range m.leases {
					l.reason = "ProxyReplaced"
				}
			}
			return fault{replyLost: n == 0}
		},
		"revoked on the way": func(_ *model, n int) fault {
			if n < 2 {
				return fault{status: 410, code: wire.CodeLeaseEnded}
			}
			return fault{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				m.breaks(func(n int, _ modelCall) fault { return spoil(m, n) })
				lease := acquire(t, m.client(t), Request{TTL: 10 * time.Second})
				defer closeLease(t, lease)
				if m.living() != 1 || lease.Err() != nil {
					t.Fatalf("%d leases live, %v", m.living(), lease.Err())
				}
			})
		})
	}
}

// Whenever and however the context ends, no lease is left behind.
func TestBrokenOffAcquireLeavesNothing(t *testing.T) {
	for name, f := range map[string]func(n int) fault{
		"reply lost":        func(int) fault { return fault{replyLost: true} },
		"answer on its way": func(n int) fault { return fault{after: time.Minute * time.Duration(max(0, 1-n))} },
		"request on its way": func(n int) fault {
			if n == 0 {
				return fault{before: time.Minute}
			}
			return fault{}
		},
		"not ready": func(int) fault { return fault{status: 503, code: wire.CodeNotReady, retryAfter: 1} },
		"refused in the end": func(n int) fault {
			if n == 1 {
				return fault{status: 403, code: wire.CodeForbidden}
			}
			return fault{replyLost: n == 0}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newModel()
				var mended atomic.Bool
				m.breaks(func(n int, c modelCall) fault {
					if mended.Load() {
						return fault{}
					}
					return f(n)
				})
				ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("time is up"))
				defer cancel()
				context.AfterFunc(ctx, func() { mended.Store(true) })
				c := m.client(t)
				if _, err := c.Acquire(ctx, Request{}); err == nil || name != "refused in the end" && !strings.Contains(err.Error(), "time is up") {
					t.Fatal(err)
				}
				c.Close()
				if n := m.living(); n != 0 {
					t.Fatalf("%d leases are left", n)
				}
			})
		})
	}
}

func TestCloseOfTheClientIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		m.breaks(func(int, modelCall) fault { return fault{replyLost: true} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		c := m.client(t)
		if _, err := c.Acquire(ctx, Request{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		begun := time.Now()
		c.Close()
		if took := time.Since(begun); took > releaseTimeout {
			t.Fatalf("took %v", took)
		}
	})
}

func TestErrorsSayWhatAndRepeatNoSecrets(t *testing.T) {
	e := &Error{Status: 422, Code: wire.CodeInvalidField, Field: "target", Detail: "must be a host"}
	if got := e.Error(); got != "invalid_field: target: must be a host" {
		t.Error(got)
	}
	e = &Error{Status: 503, Code: wire.CodeNoProxy, Reason: "Cooling", Detail: "all cool"}
	if got := e.Error(); got != "no_proxy_available (Cooling): all cool" {
		t.Error(got)
	}
	if got := (&Error{Status: 502, Detail: "answered 502"}).Error(); got != "answered 502" {
		t.Error(got)
	}
	lost := &LostError{Reason: ReasonExpired, Detail: "why", Cause: e}
	if !errors.Is(lost, ErrLost) || !errors.Is(lost, ErrNoProxy) || lost.Error() != "the lease is lost (Expired): why: no_proxy_available (Cooling): all cool" {
		t.Error(lost)
	}
	synctest.Test(t, func(t *testing.T) {
		m := newModel()
		lease := acquire(t, m.client(t), Request{})
		m.breaks(func(int, modelCall) fault { return fault{requestLost: true} })
		err := lease.Close(t.Context())
		text := fmt.Sprintf("%v %+v %q", err, err, err)
		if err == nil || strings.Contains(text, "proof") || strings.Contains(text, "secret-token") || !strings.Contains(text, "connection reset") {
			t.Fatal(text)
		}
	})
}

func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for value, want := range map[string]time.Duration{
			"": 0, "0": 0, "-5": 0, "30": 30 * time.Second, " 7 ": 7 * time.Second, "soon": 0, "1.5": 0,
			"-99999999999999999999": 0, "604800": 7 * 24 * time.Hour, "604801": 7 * 24 * time.Hour, "2592000": 7 * 24 * time.Hour,
			"2147483648": 7 * 24 * time.Hour, "9223372037": 7 * 24 * time.Hour, "99999999999999999999": 7 * 24 * time.Hour,
			"Wed, 01 Mar 2000 00:00:00 GMT": 7 * 24 * time.Hour, "Fri, 31 Dec 9999 23:59:59 GMT": 7 * 24 * time.Hour,
			"Sat, 01 Jan 2000 00:02:00 GMT": 2 * time.Minute, "Fri, 31 Dec 1999 00:00:00 GMT": 0,
		} {
			if got := RetryAfter(http.Header{"Retry-After": {value}}); got != want {
				t.Errorf("%q: %v, want %v", value, got, want)
			}
		}
	})
}
