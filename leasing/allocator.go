package leasing

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/expiry"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/recovery"
	"crawl.example.com/egress-proxies-operator/leasing/retention"
)

const (
	// recoveryRetry is the pause after a recovery that failed.
	recoveryRetry = time.Second
	// drainTimeout is how long a leader that stops waits for grants that are under way.
	drainTimeout = 5 * time.Second
)

// role is what an Allocator does at the moment.
type role int32

const (
	follows   role = iota // another replica leads, or none
	recovers              // leads, and reads what there is
	leads                 // grants
	stepsDown             // leads no more
)

// Allocator grants leases. Every replica has one; only the leader's is started.
type Allocator struct {
	Options

	ledger    *ledger.Ledger
	deadlines *expiry.Deadlines
	pipeline  *grant.Pipeline
	waiting   waiting
	calls     calls
	finished  *retention.Set
	brake     retention.Brake
	// collecting is how many deletions of finished leases are under way.
	collecting atomic.Int32
	flights    flights
	consumed   consumed
	followed   followed
	metrics    *metrics

	role    atomic.Int32
	backlog backlog
	// wakeup, kick: there may be something to grant; the next deadline may be another one.
	wakeup, kick chan struct{}
	// collectNow: there may be a finished lease to delete before the next one is due.
	collectNow  chan struct{}
	chores      workqueue.TypedRateLimitingInterface[chore]
	emptied     listeners
	overcommits chan event.TypedGenericEvent[types.NamespacedName]
	stopBase    context.CancelFunc
	// found waiting at the start.
	found []*v1alpha1.ProxyLease
}

// New assembles an Allocator. It does nothing until it is started.
func New(o Options) (*Allocator, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	a := &Allocator{
		Options:     o,
		deadlines:   expiry.New(),
		wakeup:      make(chan struct{}, 1),
		collectNow:  make(chan struct{}, 1),
		finished:    retention.New(o.MaxFinishedPerNamespace),
		brake:       retention.Brake{Max: o.MaxLeases},
		kick:        make(chan struct{}, 1),
		overcommits: make(chan event.TypedGenericEvent[types.NamespacedName], changesBuffer),
	}
	var verdict ledger.Verdict
	if o.Verdicts != nil {
		verdict = o.Verdicts.Verdict
	}
	a.ledger = ledger.New(verdict)
	a.ledger.OnOvercommit(func(proxy types.NamespacedName) { announce(a.overcommits, proxy) })
	a.waiting.init()
	a.waiting.demands = demands{clock: o.Clock, patience: o.ExclusivePatience, ended: a.unclaimed, left: a.rouse}
	a.calls = calls{max: o.MaxWaiting, perIdentity: o.MaxWaitingPerIdentity, perHolder: o.MaxWaitingPerHolder}
	a.chores = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[chore]())
	metrics, err := newMetrics(a, o.Registerer)
	if err != nil {
		return nil, err
	}
	a.metrics = metrics
	base, stop := context.WithCancel(context.Background())
	a.stopBase = stop
	a.pipeline = &grant.Pipeline{
		Client: o.Client, Live: o.Live, Ledger: a.ledger, Clock: o.Clock, Log: o.Log, Base: base, Leads: o.Leads,
		OnUnknown: metrics.unknown.Inc, OnChange: a.wake, OnProxy: a.checkProxy,
	}
	return a, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only one replica grants.
func (a *Allocator) NeedLeaderElection() bool { return true }

var (
	_ manager.Runnable               = (*Allocator)(nil)
	_ manager.LeaderElectionRunnable = (*Allocator)(nil)
)

// Start recovers what there is and grants until ctx ends. An Allocator is started once: a process that lost the
// leadership ends.
func (a *Allocator) Start(ctx context.Context) error {
	defer a.stopBase()
	defer a.chores.ShutDown()
	a.role.Store(int32(recovers))
	stopListening, err := a.listen(ctx)
	if err != nil {
		return err
	}
	defer stopListening()
	if !a.recover(ctx) {
		return nil
	}
	var loops sync.WaitGroup
	for _, loop := range []func(context.Context){a.dispatch, a.watchDeadlines, a.collect} {
		loops.Go(func() { loop(ctx) })
	}
	for range choreWorkers {
		loops.Go(a.doChores)
	}
	loops.Go(func() { a.fenceFound(ctx, a.found) })
	context.AfterFunc(ctx, a.chores.ShutDown)
	a.wake()
	<-ctx.Done()

	a.role.Store(int32(stepsDown))
	draining, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	a.pipeline.Drain(draining)
	a.stopBase()
	loops.Wait()
	return nil
}

// Recovered tells whether this replica leads and knows what there is. Until then nothing is granted and no number of
// leases is to be believed.
func (a *Allocator) Recovered() bool { return role(a.role.Load()) == leads }

// CountLeases that hold a proxy; known is false when this replica does not know.
func (a *Allocator) CountLeases(proxy types.UID) (leases int, known bool) {
	if !a.Recovered() {
		return 0, false
	}
	return a.ledger.Load(proxy), true
}

// PoolCounts are how many leases the proxies of a pool carry and how many leases wait for the pool; known is false when
// this replica does not know.
func (a *Allocator) PoolCounts(namespace, pool string) (leased, pending int32, known bool) {
	if !a.Recovered() {
		return 0, 0, false
	}
	return int32(a.ledger.PoolLoad(namespace, pool)), int32(a.waiting.lenPool(namespace, pool)), true
}

// recover builds the ledger. It is false when ctx ended before it succeeded.
func (a *Allocator) recover(ctx context.Context) bool {
	start := a.Clock.Now()
	for {
		found, err := recovery.Fill(ctx, a.Live, a.ledger, a.Namespaces, recovery.Epoch(a.Clock.Now()))
		if err == nil {
			a.adopt(found)
			a.metrics.epoch.Set(float64(found.Epoch))
			a.metrics.recovery.Set(a.Clock.Since(start).Seconds())
			a.Log.Info("Leasing has recovered", "proxies", len(found.Proxies), "bound", len(found.Bound), "pending", len(found.Pending), "epoch", found.Epoch)
			a.role.Store(int32(leads))
			a.backlog.release()
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		a.Log.Error(err, "Recover leases")
		timer := a.Clock.NewTimer(recoveryRetry)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
}

// adopt takes over what the former leader left.
func (a *Allocator) adopt(found recovery.Result) {
	now := a.Clock.Now()
	grace := a.RestartGrace
	if grace == 0 {
		grace = expiry.RestartGrace
	}
	for _, lease := range found.Bound {
		deadline := expiry.Of(lease, expiry.Deadline{}, false, now)
		deadline.At = expiry.AtStart(lease, now, grace)
		a.deadlines.Set(deadline)
	}
	for _, lease := range found.Finished {
		a.keep(lease)
	}
	for _, lease := range found.Pending {
		a.enqueue(lease)
	}
	pending := map[types.UID]bool{}
	for _, lease := range found.Pending {
		pending[lease.UID] = true
	}
	for _, px := range found.Proxies {
		// The leases were listed after the proxies, and named after they were created.
		ended := types.UID("")
		if x := px.Status.Exclusive; x != nil && !pending[x.LeaseUID] {
			ended = x.LeaseUID
		}
		a.checkExclusive(px, ended)
		a.checkExit(nil, px)
	}
	a.castOut()
	a.found = found.Pending
}

func (a *Allocator) kickDeadlines() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}
