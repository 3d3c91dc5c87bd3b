package health

import (
	"fmt"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// Mass flips reach the writer at a bounded rate, the worst first; readers of the verdict do not wait for it.
func TestE34_WakesAreBoundedAndWorstFirst(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		const n = 2000
		for i := range n {
			b.Upsert(restored(i))
		}
		b.pass(2 * time.Minute)
		b.takeWakes()
		f.set(refused)
		begin := time.Now()
		// New healthy ones queue up behind.
		b.pass(80 * time.Second)
		if got := b.healthy(n); got != 0 {
			t.Errorf("%d verdicts are late", got)
		}
		b.pass(time.Minute)
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.wakes) != n {
			t.Errorf("%d wakes for %d flips", len(b.wakes), n)
		}
		perSecond := map[int]int{}
		for _, at := range b.times {
			perSecond[int(at.Sub(begin)/time.Second)]++
		}
		for s, count := range perSecond {
			if count > WakesPerSecond+WakeBurst {
				t.Errorf("%d wakes in second %d", count, s)
			}
		}
	})
}

func TestE46_RotatedCredentialsAreUsedAtOnce(t *testing.T) {
	f := &fakeProber{}
	wanted, _ := NewCredentials("crawler", "new")
	old, _ := NewCredentials("crawler", "old")
	f.do = func(r probe.Request) probe.Result {
		if r.Credentials.Fingerprint() != wanted.Fingerprint() {
			return probe.Result{Stage: probe.StageConnect, Code: 407, Err: fmt.Errorf("407")}
		}
		return good()
	}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0, func(x *Target) { x.Credentials = old }))
		b.pass(time.Second)
		if v := b.verdict(0); v.Known || v.Reason != classify.ReasonProxyAuthFailed {
			t.Errorf("after the first probe: %+v", v)
		}
		b.pass(10 * time.Minute)
		if v := b.verdict(0); !v.Known || v.Healthy || v.Reason != classify.ReasonProxyAuthFailed {
			t.Errorf("with the old password: %+v", v)
		}
		if n := f.count(addr(0)); n > 10 {
			t.Errorf("%d probes with wrong credentials in ten minutes", n)
		}
		b.Upsert(proxy(0, func(x *Target) { x.Credentials = wanted }))
		b.pass(DefaultFastPeriod*2 + time.Second)
		if v := b.verdict(0); !v.Healthy {
			t.Errorf("with the new password: %+v", v)
		}
	})
}

func TestE49_HintsProbeButNeverDecide(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		b.pass(30 * time.Second)
		before := f.count(addr(0))
		for range 1000 {
			b.Hint(uid(0))
		}
		b.pass(time.Second)
		if got := f.count(addr(0)) - before; got != 1 {
			t.Errorf("%d extra probes for 1000 hints", got)
		}
		for range 10 {
			b.Hint(uid(0))
			b.pass(time.Second)
		}
		if got := f.count(addr(0)) - before; got > 4 {
			t.Errorf("%d extra probes in 10 s", got)
		}
		if v := b.verdict(0); !v.Healthy || len(b.takeWakes()) != 1 {
			t.Errorf("hints decided: %+v", v)
		}
		// A hint and failing probes flip earlier than the period.
		b.pass(2 * time.Minute)
		f.set(refused)
		b.Hint(uid(0))
		b.pass(4 * DefaultFastPeriod)
		if v := b.verdict(0); v.Healthy {
			t.Errorf("not noticed: %+v", v)
		}
		b.Hint("nobody")
	})
}

// Trouble of our own neither flips nor wakes anybody, and is retried soon.
func TestE37_LocalTroubleCountsForNothing(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		for i := range 100 {
			b.Upsert(restored(i))
		}
		f.set(func(probe.Request) probe.Result {
			return probe.Result{Stage: probe.StageResolve, Err: fmt.Errorf("our resolver is down")}
		})
		b.pass(time.Hour)
		if got := b.healthy(100); got != 100 || len(b.takeWakes()) != 0 {
			t.Errorf("%d healthy", got)
		}
	})
}

// A timeout while this process got no CPU time is not the proxy's.
func TestE38_TimeoutsDuringAStallCountForNothing(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(restored(0))
		f.set(hung)
		for range 600 {
			b.stalls.note(time.Now(), 2*time.Second)
			b.pass(time.Second)
		}
		if v := b.verdict(0); !v.Healthy {
			t.Errorf("during stalls: %+v", v)
		}
		b.pass(2 * time.Minute)
		if v := b.verdict(0); v.Healthy {
			t.Errorf("after them: %+v", v)
		}
	})
}

// Throttled proxies keep their verdict and are left alone as long as they ask.
func TestE6_Throttled(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(restored(0))
		f.set(func(probe.Request) probe.Result {
			return probe.Result{Stage: probe.StageConnect, Code: 429, RetryAfter: 5 * time.Minute, Err: fmt.Errorf("429")}
		})
		b.pass(31 * time.Minute)
		if v := b.verdict(0); !v.Healthy {
			t.Errorf("got %+v", v)
		}
		if n := f.count(addr(0)); n < 5 || n > 8 {
			t.Errorf("%d probes in half an hour", n)
		}
	})
}
