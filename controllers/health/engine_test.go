package health

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/fsm"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/sched"
)

// A new proxy is probed at once, and the first success makes it healthy; equal results after it are no news.
func TestE31_OneWakePerTransition(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		if v := b.verdict(0); v.Known || v.Reason != ReasonProbing || v.InstanceID != "i-0" {
			t.Errorf("before the first probe: %+v", v)
		}
		b.pass(10 * time.Millisecond)
		v := b.verdict(0)
		if !v.Known || !v.Healthy || v.Reason != ReasonProbeSucceeded {
			t.Errorf("after the first probe: %+v", v)
		}
		b.pass(1000 * time.Minute)
		if n := f.count(addr(0)); n < 990 || n > 1010 {
			t.Errorf("%d probes in 1000 periods", n)
		}
		if got := b.takeWakes(); len(got) != 1 || got[0].Name != "px-0" {
			t.Errorf("wakes %v", got)
		}
		f.set(refused)
		b.pass(75 * time.Second)
		if v := b.verdict(0); !v.Known || v.Healthy || v.Reason != classify.ReasonConnectionRefused {
			t.Errorf("after failures: %+v", v)
		}
		f.set(nil)
		b.pass(5 * time.Minute)
		if got := b.takeWakes(); len(got) != 2 {
			t.Errorf("%d wakes for down and up", len(got))
		}
	})
}

// Flapping below the thresholds, and any number of equal results, is no news: nobody is woken, and the verdict that the
// status is made from stays what it is.
func TestA27_FlappingBelowTheThresholdIsNoNews(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		b.pass(time.Minute)
		b.takeWakes()
		first := b.verdict(0)
		probes := 0
		f.set(func(r probe.Request) probe.Result {
			// Two failures and then a success, over and over: one less than it takes.
			if probes++; probes%DefaultFailureThreshold != 0 {
				return refused(r)
			}
			return good()
		})
		b.pass(1000 * time.Minute)
		if probes < 1000 {
			t.Errorf("%d probes", probes)
		}
		f.set(nil)
		b.pass(1000 * time.Minute)
		if got := b.takeWakes(); len(got) != 0 {
			t.Errorf("woken %d times", len(got))
		}
		if last := b.verdict(0); !last.Equal(first) {
			t.Errorf("the verdict was %+v and is %+v", first, last)
		}
	})
}

// How long detection takes: the rest of the period, two fast periods, and the timeouts.
func TestDetectionTime(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 50
		for i := range n {
			b.Upsert(proxy(i))
		}
		b.pass(time.Hour)
		const dead = 5
		f.set(func(r probe.Request) probe.Result {
			for i := range dead {
				if r.Proxy == addr(i) {
					return hung(r)
				}
			}
			return good()
		})
		b.pass(DefaultPeriod*105/100 + 2*DefaultFastPeriod*105/100 + 3*DefaultTimeout + time.Second)
		if got := b.healthy(n); got != n-dead {
			t.Errorf("%d of %d still healthy, %d are dead", got, n, dead)
		}
	})
}

func TestE27_RestartWritesAndFlipsNothing(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 500
		due := map[int]time.Time{}
		for i := range n {
			b.Upsert(restored(i))
			due[i] = sched.FirstDue(time.Now(), string(uid(i)), DefaultPeriod)
		}
		if got := b.healthy(n); got != n {
			t.Fatalf("%d of %d healthy before the first probe", got, n)
		}
		b.pass(time.Hour)
		if got := b.takeWakes(); len(got) != 0 {
			t.Errorf("%d wakes", len(got))
		}
		for i := range n {
			if first := f.first(addr(i)); !first.Equal(due[i]) {
				t.Fatalf("proxy %d first probed at %s, due %s", i, first, due[i])
			}
		}
	})
}

// Health of another instance counts as unknown.
func TestRestartWithAnotherInstance(t *testing.T) {
	inBubble(t, &fakeProber{}, func(b *bench) {
		x := restored(0)
		x.Initial.InstanceID = "another"
		b.Upsert(x)
		if v := b.verdict(0); v.Known || v.InstanceID != "i-0" {
			t.Errorf("got %+v", v)
		}
	})
}

// A result that was on its way when the instance changed is dropped, and the probe is ended.
func TestE35_OldResultsAreDropped(t *testing.T) {
	for name, change := range map[string]func(*Target){
		"E35 instance":    func(x *Target) { x.InstanceID = "i-new" },
		"E35 address":     func(x *Target) { x.Address = "10.9.9.9:3128" },
		"E35 credentials": func(x *Target) { x.Credentials, _ = NewCredentials("u", "p") },
		"E35 settings":    func(x *Target) { x.Check.FailureThreshold = 1 },
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeProber{latency: 5 * time.Second}
			inBubble(t, f, func(b *bench) {
				b.Upsert(proxy(0))
				b.pass(time.Second)
				f.set(refused) // of the next probe; the first one, under way, will succeed
				b.Upsert(proxy(0, change))
				b.pass(4500 * time.Millisecond)
				if v := b.verdict(0); v.Known {
					t.Errorf("an old result decided: %+v", v)
				}
				if n := f.total(); n != 2 {
					t.Errorf("%d probes, want the old one and a new one at once", n)
				}
			})
		})
	}
}

func TestE36_RemovedWhileProbing(t *testing.T) {
	f := &fakeProber{latency: 5 * time.Second}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		b.pass(time.Second)
		b.Remove(uid(0))
		b.pass(100 * time.Millisecond)
		if n, _ := b.sched.Load(); n != 0 {
			t.Errorf("%d probes under way", n)
		}
		if _, ok := b.Verdict(uid(0)); ok {
			t.Error("still watched")
		}
		if s := b.snapshot(); len(s.Proxies) != 0 || len(b.targets) != 0 {
			t.Errorf("left over: %+v, %d targets", s, len(b.targets))
		}
		b.Remove(uid(0))
		b.pass(time.Hour)
		if got := b.takeWakes(); len(got) != 0 || f.total() != 1 {
			t.Errorf("%d wakes, %d probes", len(got), f.total())
		}
	})
}

func TestE53_EditsTakeEffectSoon(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		b.pass(10*time.Minute + 30*time.Second)
		b.takeWakes()
		before := f.count(addr(0))
		b.Upsert(proxy(0, func(x *Target) { x.Check.Period = 5 * time.Second }))
		b.pass(time.Second)
		if got := f.count(addr(0)); got != before+1 {
			t.Errorf("%d probes within a second", got-before)
		}
		b.pass(time.Minute)
		if got := f.count(addr(0)) - before; got < 11 || got > 15 {
			t.Errorf("%d probes in a minute with a period of 5 s", got)
		}
		if v := b.verdict(0); !v.Healthy {
			t.Errorf("the verdict fell with the edit: %+v", v)
		}
		b.Upsert(proxy(0, func(x *Target) { x.Check.Disabled = true }))
		if v := b.verdict(0); v.Known || v.Reason != ReasonCheckDisabled {
			t.Errorf("disabled: %+v", v)
		}
		before = f.count(addr(0))
		b.pass(time.Hour)
		if got := f.count(addr(0)); got != before {
			t.Errorf("%d probes while disabled", got-before)
		}
		b.Upsert(proxy(0))
		b.pass(time.Second)
		if v := b.verdict(0); !v.Known || !v.Healthy {
			t.Errorf("enabled again: %+v", v)
		}
	})
}

func TestNoAddressIsNotProbed(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0, func(x *Target) { x.Address = "" }))
		b.Hint(uid(0))
		b.pass(time.Hour)
		if v := b.verdict(0); v.Known || v.Reason != ReasonNoAddress || f.total() != 0 {
			t.Errorf("got %+v, %d probes", v, f.total())
		}
		b.Upsert(proxy(0))
		b.pass(time.Second)
		if v := b.verdict(0); !v.Healthy {
			t.Errorf("with an address: %+v", v)
		}
	})
}

// A burst of new proxies is spread, one alone is probed at once, also when the period is long.
func TestE54_NewProxiesAreProbedSoon(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		hourly := func(x *Target) { x.Check.Period = time.Hour }
		b.Upsert(proxy(0, hourly))
		b.pass(10 * time.Millisecond)
		if f.count(addr(0)) != 1 {
			t.Error("a single new proxy was not probed at once")
		}
		b.pass(20 * time.Minute)
		begin := time.Now()
		const n = 5000
		for i := 1; i <= n; i++ {
			b.Upsert(proxy(i, hourly))
		}
		b.pass(30 * time.Second)
		if got := b.healthy(n + 1); got != n+1 {
			t.Errorf("%d of %d healthy after 30 s", got, n+1)
		}
		perSecond := map[int]int{}
		for i := 1; i <= n; i++ {
			perSecond[int(f.first(addr(i)).Sub(begin)/time.Second)]++
		}
		for s, count := range perSecond {
			if count > 300 {
				t.Errorf("%d first probes in second %d", count, s)
			}
		}
	})
}

// Whatever happens, no log line has a secret.
func TestE45_LogsHaveNoSecrets(t *testing.T) {
	var lines []string
	log := funcr.New(func(prefix, args string) { lines = append(lines, prefix+args) }, funcr.Options{Verbosity: 10})
	f := &fakeProber{}
	inBubbleWith(t, f, Options{Log: log}, func(b *bench) {
		credentials, _ := NewCredentials("crawler", "hunter2")
		b.Upsert(proxy(0, func(x *Target) { x.Credentials = credentials }))
		b.pass(time.Minute)
		f.set(refused)
		b.pass(10 * time.Minute)
		lines = append(lines, fmt.Sprintf("%+v %+v", b.verdict(0), b.entries[uid(0)].target))
	})
	if len(lines) < 3 {
		t.Errorf("only %d lines", len(lines))
	}
	for _, l := range lines {
		for _, secret := range []string{"hunter2", "Y3Jhd2xlcjpodW50ZXIy"} {
			if contains(l, secret) {
				t.Errorf("%s", l)
			}
		}
	}
}

// The same name with another UID is another proxy.
func TestNamesakesAreDifferent(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		x, y := proxy(0), proxy(1)
		y.Key = x.Key
		b.Upsert(x)
		b.Upsert(y)
		b.pass(time.Second)
		b.Remove(x.UID)
		if v := b.verdict(1); !v.Healthy {
			t.Errorf("got %+v", v)
		}
		if _, ok := b.Verdict(x.UID); ok {
			t.Error("the old one is still there")
		}
	})
}

func TestVerdictEqual(t *testing.T) {
	yes, no, alsoYes := true, false, true
	now := time.Now()
	a := Verdict{Known: true, AccessRestricted: &yes, LastTransition: now}
	for _, tc := range []struct {
		b    Verdict
		want bool
	}{
		{Verdict{Known: true, AccessRestricted: &alsoYes, LastTransition: now.UTC()}, true},
		{Verdict{Known: true, AccessRestricted: &no, LastTransition: now}, false},
		{Verdict{Known: true, LastTransition: now}, false},
		{Verdict{Known: true, AccessRestricted: &yes, LastTransition: now.Add(1)}, false},
		{Verdict{AccessRestricted: &yes, LastTransition: now}, false},
	} {
		if got := a.Equal(tc.b); got != tc.want {
			t.Errorf("%+v: got %v", tc.b, got)
		}
	}
	if (Verdict{}).status() != fsm.Unknown {
		t.Error("an empty verdict is not unknown")
	}
}
