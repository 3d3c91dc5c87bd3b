package health

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// fakeProber answers probes from a script, in fake time.
type fakeProber struct {
	mu     sync.Mutex
	probes map[string][]time.Time // by proxy
	urls   map[string]int         // by authority of the target
	knocks int
	// latency of each probe; zero: a millisecond.
	latency time.Duration
	// do decides about a probe; nil: success.
	do func(probe.Request) probe.Result
	// knock decides about a negative probe; nil: refused.
	knock func(probe.Knock) probe.Result
}

func (f *fakeProber) Probe(ctx context.Context, req probe.Request) probe.Result {
	f.mu.Lock()
	if f.probes == nil {
		f.probes, f.urls = map[string][]time.Time{}, map[string]int{}
	}
	f.probes[req.Proxy] = append(f.probes[req.Proxy], time.Now())
	f.urls[req.Target.Authority()]++
	do, latency := f.do, max(f.latency, time.Millisecond)
	f.mu.Unlock()
	start := time.Now()
	r := good()
	if do != nil {
		r = do(req)
	}
	if isTimeoutResult(r) {
		latency = req.Timeout
	}
	select {
	case <-ctx.Done():
		r = probe.Result{Stage: probe.StageConnect, Err: fmt.Errorf("probe cancelled: %w", ctx.Err())}
	case <-time.After(latency):
	}
	r.Start, r.Total = start, time.Since(start)
	return r
}

func (f *fakeProber) Knock(_ context.Context, k probe.Knock) probe.Result {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.knocks++
	if f.knock != nil {
		return f.knock(k)
	}
	return probe.Result{Stage: probe.StageConnect, Code: 403}
}

// set changes the script.
func (f *fakeProber) set(do func(probe.Request) probe.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.do = do
}

func (f *fakeProber) setKnock(knock func(probe.Knock) probe.Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.knock = knock
}

func (f *fakeProber) count(proxy string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.probes[proxy])
}

func (f *fakeProber) total() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, p := range f.probes {
		n += len(p)
	}
	return n
}

// first returns when a proxy was probed first.
func (f *fakeProber) first(proxy string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.probes[proxy][0]
}

// asked returns how many questions negative probes asked.
func (f *fakeProber) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.knocks
}

// takeURLs returns how often each target was probed, and starts counting anew.
func (f *fakeProber) takeURLs() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.urls
	f.urls = map[string]int{}
	return out
}

func good() probe.Result { return probe.Result{Stage: probe.StageDone, Code: 204} }

func refused(probe.Request) probe.Result {
	return probe.Result{Stage: probe.StageDial, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
}

func noEgress(probe.Request) probe.Result {
	return probe.Result{Stage: probe.StageConnect, Code: 503, Err: errors.New("503")}
}

func hung(probe.Request) probe.Result {
	return probe.Result{Stage: probe.StageConnect, Err: os.ErrDeadlineExceeded}
}

func isTimeoutResult(r probe.Result) bool { return errors.Is(r.Err, os.ErrDeadlineExceeded) }

// bench is an engine in a bubble of fake time.
type bench struct {
	*Engine
	t      *testing.T
	prober *fakeProber
	mu     sync.Mutex
	wakes  []types.NamespacedName
	times  []time.Time
}

// inBubble runs f with a started engine, and ends the engine afterwards.
func inBubble(t *testing.T, prober *fakeProber, f func(*bench)) {
	t.Helper()
	inBubbleWith(t, prober, Options{}, f)
}

func inBubbleWith(t *testing.T, prober *fakeProber, o Options, f func(*bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o.Prober = prober
		if o.Log.GetSink() == nil {
			o.Log = logr.Discard()
		}
		b := &bench{Engine: New(o), t: t, prober: prober}
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = b.Start(ctx) })
		running.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case ev := <-b.Changes():
					b.mu.Lock()
					b.wakes, b.times = append(b.wakes, ev.Object), append(b.times, time.Now())
					b.mu.Unlock()
				}
			}
		})
		f(b)
		cancel()
		running.Wait()
	})
}

// pass lets time pass and everything that is due happen.
func (b *bench) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// takeWakes returns the wakes since the last call.
func (b *bench) takeWakes() []types.NamespacedName {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.wakes
	b.wakes, b.times = nil, nil
	return out
}

func (b *bench) verdict(i int) Verdict {
	b.t.Helper()
	v, ok := b.Verdict(uid(i))
	if !ok {
		b.t.Fatalf("proxy %d is not watched", i)
	}
	return v
}

// healthy counts healthy proxies among the first n.
func (b *bench) healthy(n int) int {
	out := 0
	for i := range n {
		if v := b.verdict(i); v.Known && v.Healthy {
			out++
		}
	}
	return out
}

func uid(i int) types.UID { return types.UID(fmt.Sprintf("7f9c24e8-3b1d-4b8a-9c1e-%012d", i)) }

func addr(i int) string { return fmt.Sprintf("10.0.%d.%d:3128", i/250, i%250) }

// settings are the defaults with the given targets.
func settings(urls ...string) Settings {
	s := Settings{
		Period: DefaultPeriod, Timeout: DefaultTimeout, FastPeriod: DefaultFastPeriod, UnhealthyPeriodMax: DefaultUnhealthyPeriodMax,
		FailureThreshold: DefaultFailureThreshold, SuccessThreshold: DefaultSuccessThreshold, MaxBodyBytes: DefaultMaxBodyBytes, ReportExitIP: true,
	}
	if len(urls) == 0 {
		urls = []string{"https://a.example/"}
	}
	for _, u := range urls {
		s.Targets = append(s.Targets, TargetSettings{TargetKey: TargetKey{URL: u, SystemRoots: true}})
	}
	return s
}

func proxy(i int, change ...func(*Target)) Target {
	t := Target{
		Key: types.NamespacedName{Namespace: "ns", Name: fmt.Sprintf("px-%d", i)}, UID: uid(i),
		InstanceID: fmt.Sprintf("i-%d", i), Address: addr(i), Check: settings(),
	}
	for _, c := range change {
		c(&t)
	}
	return t
}

// restored makes a target whose status says it is healthy.
func restored(i int, change ...func(*Target)) Target {
	t := proxy(i, change...)
	t.Initial = &Verdict{
		InstanceID: t.InstanceID, Known: true, Healthy: true, Reason: ReasonProbeSucceeded, Message: "ok",
		LastTransition: time.Now().Add(-time.Hour),
	}
	return t
}
