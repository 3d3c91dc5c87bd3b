package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/breaker"
	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

func contains(s, sub string) bool { return strings.Contains(s, sub) }

const (
	targetA = "a.example:443"
	targetB = "b.example:443"
)

// fleet starts n healthy proxies and lets them settle.
func fleet(b *bench, n int, urls ...string) {
	for i := range n {
		b.Upsert(restored(i, func(x *Target) { x.Check = settings(urls...) }))
	}
	b.pass(5 * time.Minute)
	b.takeWakes()
	b.prober.takeURLs()
}

// A dead probe site does not fail a fleet: no verdict changes in ten minutes, and all is as before when it is back.
func TestE20_DeadTargetHoldsTheFleet(t *testing.T) {
	for name, dead := range map[string]func(probe.Request) probe.Result{"E20 refused": noEgress, "E20 hanging": hung} {
		t.Run(name, func(t *testing.T) {
			f := &fakeProber{}
			inBubble(t, f, func(b *bench) {
				const n = 2000
				fleet(b, n, "https://a.example/")
				f.set(dead)
				b.pass(10 * time.Minute)
				if got := b.healthy(n); got != n {
					t.Errorf("%d of %d healthy", got, n)
				}
				if s := b.snapshot(); s.SuspectTargets != 1 {
					t.Errorf("%d suspect targets", s.SuspectTargets)
				}
				f.set(nil)
				b.pass(3 * time.Minute)
				if s := b.snapshot(); s.SuspectTargets != 0 || b.healthy(n) != n {
					t.Errorf("afterwards: %d suspect targets, %d healthy", s.SuspectTargets, b.healthy(n))
				}
				if got := b.takeWakes(); len(got) != 0 {
					t.Errorf("%d wakes", len(got))
				}
				// The counters are reset: one failure more is one failure.
				f.set(refused)
				b.pass(DefaultFastPeriod)
				if got := b.healthy(n); got != n {
					t.Errorf("%d of %d healthy after one failure", got, n)
				}
			})
		})
	}
}

// A loss of any part of the fleet is reported, and not later than without a breaker.
func TestE21_PartialLossIsReported(t *testing.T) {
	for _, percent := range []int{10, 30, 70} {
		t.Run(fmt.Sprintf("E21 %d percent", percent), func(t *testing.T) {
			f := &fakeProber{}
			inBubble(t, f, func(b *bench) {
				const n = 1000
				fleet(b, n, "https://a.example/")
				dead := map[string]bool{}
				for i := range n * percent / 100 {
					dead[addr(i)] = true
				}
				f.set(func(r probe.Request) probe.Result {
					if dead[r.Proxy] {
						return noEgress(r)
					}
					return good()
				})
				b.pass(DefaultPeriod + 3*DefaultFastPeriod + 5*time.Second)
				if got := n - b.healthy(n); got != len(dead) {
					t.Errorf("%d of %d reported", got, len(dead))
				}
			})
		})
	}
}

// All proxies refusing connections is nothing that a probe target could have done.
func TestE21_AllProxiesDownIsReported(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 500
		fleet(b, n, "https://a.example/")
		f.set(refused)
		b.pass(DefaultPeriod + 3*DefaultFastPeriod + 5*time.Second)
		if got := b.healthy(n); got != 0 {
			t.Errorf("%d still healthy", got)
		}
	})
}

// With one of two targets down nobody flips, and probes move to the other one.
func TestE23_ProbesMoveToTheOtherTarget(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 500
		fleet(b, n, "https://a.example/", "https://b.example/")
		f.set(func(r probe.Request) probe.Result {
			if r.Target.Authority() == targetA {
				return noEgress(r)
			}
			return good()
		})
		b.pass(3 * time.Minute)
		f.takeURLs()
		b.pass(10 * time.Minute)
		urls := f.takeURLs()
		if trials := int(10 * time.Minute / breaker.TrialInterval); urls[targetA] > trials+1 || urls[targetA] == 0 || urls[targetB] < 9*n {
			t.Errorf("probes by target: %v", urls)
		}
		if got := b.takeWakes(); len(got) != 0 || b.healthy(n) != n {
			t.Errorf("%d wakes, %d healthy", len(got), b.healthy(n))
		}
		f.set(nil)
		b.pass(3 * time.Minute)
		f.takeURLs()
		b.pass(10 * time.Minute)
		if urls := f.takeURLs(); urls[targetA] < 4*n || urls[targetB] < 4*n {
			t.Errorf("after it came back, probes by target: %v", urls)
		}
	})
}

// A small fleet with one of two targets down, too small for the breaker: nobody flips either.
func TestE23_SmallFleet(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 3
		fleet(b, n, "https://a.example/", "https://b.example/")
		f.set(func(r probe.Request) probe.Result {
			if r.Target.Authority() == targetA {
				return probe.Result{Stage: probe.StageTLS, Err: errExpired}
			}
			return good()
		})
		b.pass(time.Hour)
		if got := b.takeWakes(); len(got) != 0 || b.healthy(n) != n {
			t.Errorf("%d wakes, %d healthy", len(got), b.healthy(n))
		}
	})
}

// When targets of different operators fail together through all proxies, the fleet has lost its egress.
func TestE21_AllTargetsDownIsReported(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 500
		fleet(b, n, "https://a.example/", "https://b.example/")
		f.set(noEgress)
		b.pass(6 * time.Minute)
		if got := b.healthy(n); got != 0 {
			t.Errorf("%d still healthy", got)
		}
		f.set(nil)
		b.pass(20 * time.Minute)
		if got := b.healthy(n); got != n {
			t.Errorf("%d healthy after it came back", got)
		}
	})
}

// With a single target the hold ends some day.
func TestE20_HoldIsBounded(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 500
		fleet(b, n, "https://a.example/")
		f.set(noEgress)
		b.pass(breaker.MaxHold + 5*time.Minute)
		if got := b.healthy(n); got != 0 {
			t.Errorf("%d still healthy", got)
		}
		f.set(nil)
		b.pass(20 * time.Minute)
		if got := b.healthy(n); got != n {
			t.Errorf("%d healthy after it came back", got)
		}
	})
}

// A proxy that opens TLS falls at the first probe.
func TestE11_InterceptionFallsAtOnce(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		fleet(b, 50, "https://a.example/")
		f.set(func(r probe.Request) probe.Result {
			if r.Proxy == addr(0) {
				return probe.Result{Stage: probe.StageTLS, Err: errExpired}
			}
			return good()
		})
		before := f.count(addr(0))
		for f.count(addr(0)) == before {
			b.pass(time.Second)
		}
		b.pass(time.Second)
		if v := b.verdict(0); v.Healthy || v.Reason != classify.ReasonTLSIntercepted {
			t.Errorf("got %+v", v)
		}
		if got := b.healthy(50); got != 49 {
			t.Errorf("%d healthy", got)
		}
	})
}
