package main

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

const (
	// seedVariable, set to a number that a run has printed, makes the same decisions again.
	seedVariable = "EGRESS_CHAOS_SEED"
	// wantProxies is how many Proxies there are at the end.
	wantProxies = 200
	// mostWait and mostPause bound how long a manager works, and how long it is stopped, before it is killed.
	mostWait  = 2500 * time.Millisecond
	mostPause = 4 * time.Second
	// settleLimit bounds how long the operator may take, once it is left in peace.
	settleLimit = 3 * time.Minute
	// quiet is how long nothing may move to be called settled.
	quiet = 3 * time.Second
	// pollPeriod is the time between two looks for something.
	pollPeriod = 200 * time.Millisecond
)

// manner is how a manager is killed.
type manner string

const (
	// plain: killed, and a successor is started.
	plain manner = "plain"
	// overlap: the successor works beside the old one before that is killed.
	overlap manner = "overlap"
	// pause: the old one is stopped, much happens without it, and it goes on for a moment before it is killed.
	pause manner = "pause"
)

// killing is one kill.
type killing struct {
	role   role
	manner manner
}

// killings are all kills of a run, before they are shuffled.
func killings() []killing {
	var all []killing
	for _, k := range []struct {
		killing
		times int
	}{
		{killing{roleProvider, plain}, 7}, {killing{roleProvider, overlap}, 4}, {killing{roleProvider, pause}, 3},
		{killing{roleCore, plain}, 4}, {killing{roleCore, overlap}, 3}, {killing{roleCore, pause}, 3},
	} {
		for range k.times {
			all = append(all, k.killing)
		}
	}
	return all
}

// chaos is one run.
type chaos struct {
	t   *testing.T
	env *testenv.Env
	rng *rand.Rand
	// namespace of everything that the run makes.
	namespace string
	observer  *observer
	fleet     *fleet
	workload  *workload
	// unrecorded are instances that no status named when a provider manager was killed.
	unrecorded map[types.UID]types.UID
}

// TestA3_ChaosKillsLeakAndDoubleNothing runs the real binary on a real API server, kills its managers again and again at
// random moments of a random life of 200 Proxies, and restarts the API server in between. The instances are pods, so what
// the provider has outlives the managers. Nothing may leak, nothing may be doubled or replaced without being asked for,
// what a killed manager had made is taken over, and in the end all is still.
func TestA3_ChaosKillsLeakAndDoubleNothing(t *testing.T) {
	env := testenv.New(t)
	begin := time.Now()
	seed := seedOf(t)
	t.Logf("%s=%d makes the same decisions again", seedVariable, seed)
	c := &chaos{
		t: t, env: env, rng: rand.New(rand.NewPCG(seed, 0)), namespace: env.Namespace(t),
		unrecorded: map[types.UID]types.UID{},
	}
	world := newWorld(t, env, c.namespace)
	c.observer = observe(t, env, c.namespace)
	c.workload = newWorkload(c, world)
	c.fleet = newFleet(t, env, c.namespace, world)

	all := killings()
	c.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	steps := c.workload.steps()
	for i, k := range all {
		step := func() {}
		if i < len(steps) {
			step = steps[i]
		}
		c.kill(k, step)
		t.Logf("%5.1f s: %s killed (%s), %d Proxies and %d pods made so far", time.Since(begin).Seconds(), k.role, k.manner, c.observer.proxiesMade(), c.observer.podsMade())
		if i == len(all)/2 {
			c.restartAPIServer()
			t.Logf("%5.1f s: API server started again", time.Since(begin).Seconds())
		}
	}
	c.workload.finish()
	t.Logf("chaos of %s: %s; then %d Proxies and %d pods had been made", time.Since(begin).Round(time.Second), c.fleet.summary(), c.observer.proxiesMade(), c.observer.podsMade())

	c.awaitEnd()
	t.Logf("settled after %s", time.Since(begin).Round(time.Second))
	c.checkAsked()
	c.checkStill()
	for _, problem := range slices.Concat(c.observer.findings(), c.fleet.findings()) {
		t.Error(problem)
	}
	t.Logf("%s, %d pods collected as garbage, %s in all", c.fleet.summary(), world.garbage.Collected(podKind), time.Since(begin).Round(time.Second))
}

func seedOf(t *testing.T) uint64 {
	t.Helper()
	text, ok := os.LookupEnv(seedVariable)
	if !ok {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	return seed
}

// kill kills one manager at a random moment of the work that step makes.
func (c *chaos) kill(k killing, step func()) {
	c.t.Helper()
	switch k.manner {
	case plain:
		step()
		c.moment(k.role, mostWait)
		c.noteUnrecorded(k.role)
		c.fleet.kill(c.fleet.manager(k.role), k.manner)
		c.fleet.succeed(k.role)
	case overlap:
		old := c.fleet.manager(k.role)
		c.fleet.succeed(k.role)
		step()
		c.moment(k.role, mostWait)
		c.noteUnrecorded(k.role)
		c.fleet.kill(old, k.manner)
	case pause:
		c.moment(k.role, mostWait)
		old := c.fleet.manager(k.role)
		c.fleet.stop(old)
		c.noteUnrecorded(k.role)
		c.fleet.succeed(k.role)
		step()
		c.moment(k.role, mostPause)
		c.fleet.proceed(old)
		c.pass(mostPause / 10)
		c.fleet.kill(old, k.manner)
	}
}

// pass lets a random time go by.
func (c *chaos) pass(most time.Duration) {
	c.observer.await(anything, 0, time.Duration(c.rng.Int64N(int64(most))))
}

// moment waits for a random moment: by the clock, or by what happens.
func (c *chaos) moment(r role, most time.Duration) {
	if c.rng.IntN(3) == 0 {
		c.pass(most)
		return
	}
	kinds := progress[r]
	c.observer.await(kinds[c.rng.IntN(len(kinds))], 1+c.rng.IntN(8), most)
}

func (c *chaos) noteUnrecorded(r role) {
	if r != roleProvider {
		return
	}
	maps.Copy(c.unrecorded, c.observer.unrecorded())
}

// restartAPIServer takes the API server away in the middle of the work, and kills a manager meanwhile.
func (c *chaos) restartAPIServer() {
	c.t.Helper()
	c.moment(roleProvider, mostWait)
	c.fleet.outage(func() {
		c.env.RestartAPIServer(c.t, func() {
			for _, r := range []role{roleProvider, roleCore}[:1+c.rng.IntN(2)] {
				c.fleet.kill(c.fleet.manager(r), plain)
				c.fleet.succeed(r)
			}
		})
	})
}

// do makes one call of the test's own, again when it fails for a reason that passes.
func (c *chaos) do(what string, call func(ctx context.Context) error) error {
	c.t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(c.t.Context(), pollPeriod, time.Minute, true, func(ctx context.Context) (bool, error) {
		last = call(ctx)
		return last == nil || apierrors.IsNotFound(last) || apierrors.IsAlreadyExists(last) || apierrors.IsConflict(last), nil
	})
	if err != nil {
		c.t.Fatalf("%s: %v", what, last)
	}
	return last
}

// list lists objects of the namespace without a cache.
func (c *chaos) list(into client.ObjectList, options ...client.ListOption) {
	c.t.Helper()
	if err := c.do("list", func(ctx context.Context) error {
		return c.env.Client.List(ctx, into, append(options, client.InNamespace(c.namespace))...)
	}); err != nil {
		c.t.Fatalf("list: %v", err)
	}
}
