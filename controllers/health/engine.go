package health

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/controllers/health/fsm"
	"crawl.example.com/egress-proxies-operator/controllers/health/metrics"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/sched"
)

// Prober sends probes; *probe.Prober is the one that uses the network.
type Prober interface {
	Probe(ctx context.Context, req probe.Request) probe.Result
	Knock(ctx context.Context, k probe.Knock) probe.Result
}

// Options configures an Engine. The zero value works.
type Options struct {
	// Log gets one line per transition. The zero value discards.
	Log logr.Logger
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Prober defaults to a probe.Prober that dials what AllowedProxies and its built-in policy allow.
	Prober Prober
	// AllowedProxies are the ranges of --allow-proxy-cidrs.
	AllowedProxies []netip.Prefix
	// Slots is how many probes are in flight at most; it defaults to sched.DefaultSlots.
	Slots int
	// Tracer, if set, gets a span for each probe (--trace-health-probes).
	Tracer trace.Tracer
	// Random returns numbers in [0, 1) for jitter; it defaults to math/rand.
	Random func() float64
}

// Engine probes proxies and keeps verdicts in memory. It writes nothing: whoever keeps the status reads Verdict when
// Changes names a proxy. It is safe for concurrent use.
type Engine struct {
	log     logr.Logger
	clock   clock.WithTicker
	prober  Prober
	tracer  trace.Tracer
	random  func() float64
	sched   *sched.Scheduler[types.UID]
	wakes   *wakeQueue
	stalls  stalls
	metrics *metrics.Metrics

	mu      sync.RWMutex
	entries map[types.UID]*entry
	// reached and resolved are when a probe last succeeded, and when one did through a proxy that is known by its name.
	reached, resolved time.Time
	targets           targetSet
	spread            sched.Spreader
}

// entry is one proxy. Engine.mu guards it.
type entry struct {
	target   Target // Initial is dropped
	machine  fsm.Machine
	verdict  Verdict // as published
	targets  []assigned
	attempts int       // probes sent, for the rotation of targets
	nextDue  time.Time // zero: not scheduled
	lastEnd  time.Time // of the last probe
	// generation changes with the machine's key: a result of an older one is dropped.
	generation int
	cancel     context.CancelFunc // of the probe under way; nil outside one
	// localTime is when the last probe ended if our own network or resolver seemed to be at fault; else zero.
	localTime time.Time

	access     access
	egressIP   string
	egressTime time.Time
}

// New returns an engine that starts probing with Start.
func New(o Options) *Engine {
	e := &Engine{
		log: o.Log, clock: o.Clock, prober: o.Prober, tracer: o.Tracer, random: o.Random,
		entries: map[types.UID]*entry{}, targets: targetSet{}, wakes: newWakeQueue(),
	}
	if e.log.GetSink() == nil {
		e.log = logr.Discard()
	}
	if e.clock == nil {
		e.clock = clock.RealClock{}
	}
	if e.prober == nil {
		e.prober = &probe.Prober{Policy: probe.AddressPolicy{Allow: o.AllowedProxies}}
	}
	if e.random == nil {
		e.random = rand.Float64
	}
	e.metrics = metrics.New(e.snapshot)
	e.stalls.busy = func(busy bool) { e.sched.SetBusy(busy) }
	e.sched = sched.New[types.UID](sched.Options{Clock: e.clock, Slots: o.Slots, Late: e.metrics.Late})
	return e
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: two engines would double every probe.
func (e *Engine) NeedLeaderElection() bool { return true }

// Start probes until ctx ends, and returns nil when nothing of it runs any more. Call it once. Upsert may be called
// before.
func (e *Engine) Start(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { e.wakes.run(ctx) })
	running.Go(func() { e.stalls.watch(ctx, e.clock) })
	e.sched.Start(ctx, e.run)
	return nil
}

// Changes names the proxies whose verdict changed, at most WakesPerSecond of them and new Unhealthy ones first. A
// proxy that changes again before it is taken is named once. A controller takes it as a source:
//
//	builder.WatchesRawSource(source.TypedChannel(engine.Changes(), handler.TypedFuncs[types.NamespacedName, reconcile.Request]{
//		GenericFunc: func(_ context.Context, ev event.TypedGenericEvent[types.NamespacedName], q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
//			q.Add(reconcile.Request{NamespacedName: ev.Object})
//		},
//	}))
func (e *Engine) Changes() <-chan event.TypedGenericEvent[types.NamespacedName] { return e.wakes.out }

// Collector returns the engine's metrics for registration.
func (e *Engine) Collector() prometheus.Collector { return e.metrics }

// Verdict returns the verdict on a proxy, and false when it is not watched.
func (e *Engine) Verdict(uid types.UID) (Verdict, bool) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	en, ok := e.entries[uid]
	if !ok {
		return Verdict{}, false
	}
	v := en.verdict
	if v.AccessRestricted != nil {
		restricted := *v.AccessRestricted
		v.AccessRestricted = &restricted
	}
	return v, true
}

// Upsert watches a proxy or tells what changed about it; equal calls cost nothing. Another instance, address,
// credentials or settings make results that are still on their way worthless, and the proxy is probed at once. With
// another instance or address the verdict is Unknown until then.
func (e *Engine) Upsert(t Target) {
	key := fsm.Key{
		UID: string(t.UID), InstanceID: t.InstanceID, Address: t.Address,
		Credentials: t.Credentials.Fingerprint(), Settings: t.Check.Hash(),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.clock.Now()
	en, known := e.entries[t.UID]
	if !known {
		e.insert(t, key, now)
		return
	}
	old := en.machine.Key()
	accessChanged := en.target.Managed != t.Managed || en.target.RequireAuth != t.RequireAuth
	t.Initial = nil
	en.target = t
	if key == old && !accessChanged {
		return
	}
	en.access.nextTime = time.Time{} // the next success is followed by a negative probe
	if !key.Same(old) || !t.Managed {
		en.access = access{}
	}
	if key != old {
		e.rekey(en, key, now)
	}
	e.schedule(en, e.spread.Next(now))
	e.publish(en)
}

// rekey tells an entry what it judges from now on, and ends a probe of what it judged before.
func (e *Engine) rekey(en *entry, key fsm.Key, now time.Time) {
	if !key.Same(en.machine.Key()) {
		en.egressIP, en.egressTime = "", time.Time{}
		en.localTime = time.Time{}
	}
	en.machine.Rekey(key, now)
	if en.target.Check.Disabled {
		en.machine = fsm.New(key, now)
	}
	en.generation++
	if en.cancel != nil {
		en.cancel()
	}
	before := en.targets
	en.targets = e.targets.acquire(en.target.Check) // first, so that a target that stays keeps its breaker and sessions
	e.targets.release(before)
}

// insert starts to watch a proxy, from the verdict in its status where that is about the same instance.
func (e *Engine) insert(t Target, key fsm.Key, now time.Time) {
	initial := t.Initial
	t.Initial = nil
	en := &entry{target: t, machine: fsm.New(key, now), targets: e.targets.acquire(t.Check)}
	e.entries[t.UID] = en
	if initial == nil || initial.InstanceID != t.InstanceID || t.Check.Disabled {
		en.verdict = en.currentVerdict()
		e.schedule(en, e.spread.Next(now))
		return
	}
	if initial.Known || initial.Reason != "" {
		en.machine = fsm.Restore(key, initial.status(), initial.Reason, initial.Message, initial.LastTransition)
	}
	en.egressIP, en.egressTime = initial.EgressIP, initial.LastTransition
	if t.Managed {
		en.access = access{restricted: initial.AccessRestricted, reason: initial.AccessReason}
	}
	en.verdict = en.currentVerdict()
	if initial.Known {
		e.schedule(en, sched.FirstDue(now, string(t.UID), t.Check.Period))
	} else {
		e.schedule(en, e.spread.Next(now))
	}
}

// Remove forgets a proxy and ends its probe.
func (e *Engine) Remove(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en, ok := e.entries[uid]
	if !ok {
		return
	}
	delete(e.entries, uid)
	e.sched.Remove(uid)
	e.targets.release(en.targets)
	if en.cancel != nil {
		en.cancel()
	}
}

// Hint says that somebody had trouble with a proxy. It is probed soon, but not more often than its fast period allows,
// and the verdict stays the engine's own: one holder must not be able to empty a fleet.
func (e *Engine) Hint(uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	en, ok := e.entries[uid]
	if !ok || en.nextDue.IsZero() || en.cancel != nil {
		return
	}
	now := e.clock.Now()
	at := en.lastEnd.Add(en.target.Check.FastPeriod)
	if !at.After(now) {
		at = e.spread.Next(now)
	}
	if at.Before(en.nextDue) {
		e.schedule(en, at)
	}
}

// schedule sets the time of the next probe, or none where there is nothing to probe.
func (e *Engine) schedule(en *entry, due time.Time) {
	if en.target.Check.Disabled || en.target.Address == "" || len(en.targets) == 0 {
		en.nextDue = time.Time{}
		e.sched.Remove(en.target.UID)
		return
	}
	en.nextDue = due
	e.sched.Set(en.target.UID, due, en.background())
}

func (en *entry) background() bool { return en.machine.Status() == fsm.Unhealthy }

// publish makes the current state visible and wakes the reader if it differs.
func (e *Engine) publish(en *entry) {
	v := en.currentVerdict()
	if v.Equal(en.verdict) {
		return
	}
	fell := en.verdict.Healthy && !v.Healthy
	if en.verdict.Known != v.Known || en.verdict.Healthy != v.Healthy {
		e.metrics.Transition(v.status().String(), v.Reason)
		e.log.Info("Health changed", "proxy", en.target.Key, "health", v.status().String(), "reason", v.Reason)
	}
	en.verdict = v
	e.wakes.add(en.target.Key, fell)
}

func (en *entry) currentVerdict() Verdict {
	status := en.machine.Status()
	v := Verdict{
		InstanceID: en.target.InstanceID, Known: status != fsm.Unknown, Healthy: status == fsm.Healthy,
		EgressIP: en.egressIP, LastTransition: en.machine.Since(),
		AccessRestricted: en.access.restricted, AccessReason: en.access.reason,
	}
	v.Reason, v.Message = en.machine.Reason()
	switch {
	case en.target.Check.Disabled:
		v.Reason, v.Message = ReasonCheckDisabled, messageDisabled
	case en.target.Address == "":
		v.Reason, v.Message = ReasonNoAddress, messageNoAddress
	}
	if en.target.Managed && en.access.reason == "" {
		v.AccessReason = ReasonAccessNotProbed
	}
	return v
}
