package instance

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

// The simulation runs whole lives of Proxies through Decide, chooseZone and the record functions: the production code, with
// life.act in the place of the calls that act.go makes. Around it is
//
//   - a cloud that answers late, loses replies of Create and Delete, shows what it accepted only after a while, drops it in
//     silence, misses for a moment what it showed before, refuses, goes down, and lets instances fail, go and never start;
//   - an API server whose cache lags by versions, and that keeps a name for the namesake of a Proxy that is gone;
//   - managers that die after any effect, and that are cut off before any effect, so that a successor works beside them and
//     their call or write still arrives: a Create within what Settle allows for, everything else minutes later;
//   - a user who changes the specification and deletes at any time, classes that change, go and come back, user data that
//     cannot be resolved, an operator upgrade, a status that is lost, and another owner who takes the name.
//
// Such a cloud never says twice, Confirm apart, that something does not exist which does. With it nothing may leak, nothing
// may be doubled, and so on; and each of the rules in loadBearing, switched off, makes the same lives go wrong.
//
// What Decide cannot help stays out: a finalizer that the API server stores on an object which it removes at that moment
// (lost.go), and a provider that says NotFound of what is there for as long as it likes (TestSimulation_LyingCloud); for
// both there is the orphan collection.

// simLives is the number of lives.
const simLives = 20_000

// simTiming is what the simulated cloud needs: what a Create that ends with the window leaves on its way arrives within
// Settle - simVisibleMax of its intent.
var simTiming = providers.Timing{
	Window: 10 * time.Second, Settle: 60 * time.Second, Confirm: 10 * time.Second,
	Poll: 3 * time.Second, PollMax: 10 * time.Second, Slow: time.Minute,
}

// simMode is how a life is run.
type simMode struct {
	without rule
	lying   bool
	trace   func(string, ...any)
}

// simulateLife runs one life; everything in it follows from the seed.
func simulateLife(seed int64, mode simMode) *[counters]int {
	f := newFate(seed, mode.trace)
	w := &world{fate: f, api: &simAPI{fate: f}, cloud: &simCloud{fate: f, lying: mode.lying}}
	l := &life{world: w, without: mode.without, timing: simTiming}
	l.bendTiming()
	w.plan()
	for !l.over() && l.now.Before(l.end) {
		l.until = l.end
		l.run()
	}
	if !l.over() {
		l.tell("!!! is not released: %+v", l.api.current())
		l.count(unfinished)
	}
	return &f.counts
}

// simulate runs the lives of the seeds from 0 on.
func simulate(mode simMode, lives int64) *tally {
	var (
		sum     tally
		mu      sync.Mutex
		workers sync.WaitGroup
	)
	n := int64(runtime.GOMAXPROCS(0))
	for first := range n {
		workers.Go(func() {
			var mine tally
			for seed := first; seed < lives; seed += n {
				mine.add(seed, simulateLife(seed, mode))
			}
			mu.Lock()
			defer mu.Unlock()
			sum.merge(&mine)
		})
	}
	workers.Wait()
	return &sum
}

func TestSimulation_NoMisfortune(t *testing.T) {
	t.Parallel()
	sum := simulate(simMode{}, simLives)
	t.Logf("seeds 0 to %d: %s", simLives-1, sum)
	for c, n := range sum.counts {
		switch {
		case counter(c) < misfortunes && n > 0:
			t.Errorf("%s: %d, want none; `SIMULATION_SEED=%d go test -v -run Simulation_Replay` shows the first", counterNames[c], n, sum.first[c])
		case counter(c) >= misfortunes && n == 0 && counter(c) != lies:
			t.Errorf("%s: none, so the simulation shows less than it says", counterNames[c])
		}
	}
}

// Each rule carries weight: without it the same lives go wrong.
func TestSimulation_RulesCarryWeight(t *testing.T) {
	t.Parallel()
	// One would do; some more show that it was no freak of one seed.
	const enough = 3
	for _, r := range loadBearing {
		t.Run(r.says, func(t *testing.T) {
			t.Parallel()
			var sum tally
			for seed := range int64(simLives) {
				sum.add(seed, simulateLife(seed, simMode{without: r.rule}))
				hits := 0
				for _, c := range r.shows {
					hits += sum.counts[c]
				}
				if hits >= enough {
					t.Logf("switched off, seeds 0 to %d: %s", seed, sum.misfortunes())
					return
				}
			}
			t.Errorf("switched off, %d lives are as well as ever: %s", simLives, sum.misfortunes())
		})
	}
}

// A cloud that says NotFound of what is there once in sixty times does leak. The second look is what keeps that rare, and
// what is deleted is still right.
func TestSimulation_LyingCloud(t *testing.T) {
	t.Parallel()
	const lives = simLives / 10
	with := simulate(simMode{lying: true}, lives)
	without := simulate(simMode{lying: true, without: notFoundTwice}, lives)
	t.Logf("seeds 0 to %d: %d lies; %s; with one look only: %s", lives-1, with.counts[lies], with.misfortunes(), without.misfortunes())
	if with.counts[lies] == 0 {
		t.Error("it did not lie")
	}
	if with.counts[leaks]*10 > without.counts[leaks] {
		t.Error("the second look makes no difference")
	}
	for _, c := range []counter{foreignDeleted, wrong, needless} {
		if with.counts[c] > 0 {
			t.Errorf("%s: %d, want none; the first is seed %d", counterNames[c], with.counts[c], with.first[c])
		}
	}
}

// TestSimulation_Replay tells one life, for whoever looks for a bug: SIMULATION_SEED says which, SIMULATION_WITHOUT the
// sentence of a rule to be switched off.
func TestSimulation_Replay(t *testing.T) {
	mode := simMode{trace: t.Logf}
	seed, err := strconv.ParseInt(os.Getenv("SIMULATION_SEED"), 10, 64)
	if err != nil {
		seed, mode.trace = 0, func(string, ...any) {}
	}
	for _, r := range loadBearing {
		if r.says == os.Getenv("SIMULATION_WITHOUT") {
			mode.without = r.rule
		}
	}
	first, again := simulateLife(seed, mode), simulateLife(seed, simMode{without: mode.without})
	if *first != *again {
		t.Errorf("the same seed led to two lives: %v and %v", first, again)
	}
}
