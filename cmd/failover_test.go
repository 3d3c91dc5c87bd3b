package main

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const (
	// bound leases hold every slot of the group full, pending ones wait for it while the leader changes.
	boundLeases, pendingLeases = 1000, 200
	// servedBefore are served in addition, by the first leader.
	servedBefore = 20
	// freeze is how long a leader is stopped.
	freeze = 30 * time.Second
	// handover is how long nobody grants, at most, when the leader ends in an orderly way: far less than an election's lease.
	handover = 12 * time.Second
)

// failover is one run.
type failover struct {
	*replicas
	env       *testenv.Env
	seed      uint64
	rng       *rand.Rand
	namespace string
	promises  *promises
	stored    *stored
	// mu is for cores: those that callers know.
	mu    sync.Mutex
	cores []*replica
	// full are the leases that were promised on the group full.
	full []promise
}

func newFailover(t *testing.T) *failover {
	t.Helper()
	env := testenv.New(t)
	seed := seedOf(t)
	t.Logf("%s=%d makes the same decisions again", seedVariable, seed)
	f := &failover{
		env: env, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), namespace: env.Namespace(t), promises: newPromises(),
	}
	f.replicas = newReplicas(t, env, f.namespace)
	f.stored = watchLeases(t, env, f.namespace, f.promises)
	return f
}

// begin starts two cores and brings everything into the state in which the leader goes: slots all taken, leases that wait
// for them, and crawlers that lease and release beside them. It gives the leader and the other one.
func (f *failover) begin() (leader, other *replica, c *crowd) {
	f.t.Helper()
	start := time.Now()
	f.makeProxies()
	leader, other = f.start(), f.start()
	f.cores = []*replica{leader, other}
	if f.awaitLeader(leader, other) == other {
		leader, other = other, leader
	}
	f.awaitProxies()
	f.fill()
	f.makePending(servedBefore + pendingLeases)
	f.free(servedBefore)
	f.awaitPending(pendingLeases)
	c = newCrowd(f)
	c.awaitGrants(f, 1)
	f.t.Logf("%d bound and %d pending leases after %.1f s, %s leads", boundLeases, pendingLeases, time.Since(start).Seconds(), leader.name)
	return leader, other, c
}

// core is any core that callers know.
func (f *failover) core(rng *rand.Rand) *replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cores[rng.IntN(len(f.cores))]
}

// strike does something to the leader at a random moment at which most crawlers wait for a grant.
func (f *failover) strike(c *crowd, what string, do func()) time.Time {
	f.t.Helper()
	linger(f.t.Context(), time.Duration(f.rng.Int64N(int64(time.Second))))
	f.await("most crawlers wait for a grant", takeoverLimit, func(context.Context) bool { return c.waiting() > crawlers/2 })
	do()
	f.t.Logf("%s with %d requests for a lease under way", what, c.waiting())
	return time.Now()
}

// end stops the crawlers and looks at what has become of everything.
func (f *failover) end(c *crowd, since time.Time) {
	f.t.Helper()
	gap := f.promises.gap(since)
	c.stop()
	f.awaitConsistent()
	f.checkFull()
	f.free(pendingLeases)
	f.awaitPending(0)
	f.checkOrder()
	f.awaitConsistent()
	var grants, ended int64
	for _, one := range c.all {
		grants += one.grants.Load()
		ended += one.ended.Load()
	}
	for _, problem := range f.promises.found() {
		f.t.Error(problem)
	}
	f.t.Logf("%d grants to crawlers, %d keys whose lease had ended before it was promised, nothing granted for %.1f s", grants, ended, gap.Seconds())
}

// TestR1_KilledLeaderLosesAndDoublesNothing kills the leader of two real cores with SIGKILL in the middle of everything.
func TestR1_KilledLeaderLosesAndDoublesNothing(t *testing.T) {
	f := newFailover(t)
	leader, other, c := f.begin()
	at := f.strike(c, "killed", func() { leader.Signal(syscall.SIGKILL) })
	if f.awaitLeader(other); !leader.ended() {
		t.Error("another core leads although the first one has not ended")
	}
	t.Logf("%s leads after %.1f s", other.name, time.Since(at).Seconds())
	c.awaitGrants(f, 1)
	f.end(c, at)
}

// TestR2_FrozenLeaderDoesNoHarmWhenItGoesOn stops the leader of two real cores for half a minute in the middle of
// everything, and lets it go on with what it had begun, and with the requests that have come to it meanwhile.
func TestR2_FrozenLeaderDoesNoHarmWhenItGoesOn(t *testing.T) {
	f := newFailover(t)
	leader, other, c := f.begin()
	at := f.strike(c, "frozen", func() { leader.Signal(syscall.SIGSTOP) })
	f.awaitLeader(other)
	t.Logf("%s leads after %.1f s", other.name, time.Since(at).Seconds())
	linger(t.Context(), time.Until(at.Add(freeze)))
	leader.Signal(syscall.SIGCONT)
	if err := f.awaitEnd(leader); err == nil {
		t.Error("a core that was deposed ended as if it had been asked to")
	}
	t.Logf("the frozen one has ended after %.1f s", time.Since(at).Seconds())
	c.awaitGrants(f, 1)
	f.end(c, at)
}

// TestR3_RollingRestartHandsOverQuickly restarts both cores one after the other, as a rolling update does: the new one
// first.
func TestR3_RollingRestartHandsOverQuickly(t *testing.T) {
	f := newFailover(t)
	leader, other, c := f.begin()
	first := time.Now()
	for range 2 {
		next := f.start()
		f.mu.Lock()
		f.cores = append(f.cores, next)
		f.mu.Unlock()
		at := f.strike(c, "told to end", func() { leader.Signal(syscall.SIGTERM) })
		f.awaitLeader(other, next)
		if err := f.awaitEnd(leader); err != nil {
			t.Errorf("%s did not end in an orderly way: %v\n%s", leader.name, err, leader.Tail())
		}
		c.awaitGrants(f, 1)
		gap := f.promises.gap(at)
		t.Logf("nothing was granted for %.1f s", gap.Seconds())
		if gap > handover {
			t.Errorf("nothing was granted for %s, want at most %s", gap, handover)
		}
		f.mu.Lock()
		f.cores = slices.DeleteFunc(f.cores, func(core *replica) bool { return core == leader })
		f.mu.Unlock()
		if leader, other = other, next; next.Led() {
			leader, other = next, leader
		}
	}
	f.end(c, first)
}
