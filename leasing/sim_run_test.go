package leasing

import (
	"testing"
	"time"
)

// simSchedules is how many schedules are carried out by default.
const simSchedules = 1500

// The real allocators of one leader after another, over an API server that delays, drops, refuses and answers wrongly, give
// no exclusive proxy to two, lose no lease that was promised and leak no slot.
func TestSimulationKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	simulate(t, simSchedules, func(*simWorld) {}, kept(t))
}

// An exclusive proxy has two guards. Without either of them the same schedules show doubles, after some dozens of them.
func TestSimulationWithoutTheCheckOfTheLeadership(t *testing.T) {
	t.Parallel()
	needed(t, func(w *simWorld) { w.unchecked = true })
}

func TestSimulationWithoutTheNameOnTheProxy(t *testing.T) {
	t.Parallel()
	needed(t, func(w *simWorld) { w.api.unnamed = true })
}

// needed fails the test unless a schedule shows a double without a guard.
func needed(t *testing.T, off func(*simWorld)) {
	if testing.Short() {
		t.Skip("a few schedules show nothing")
	}
	doubled, _ := simulate(t, simSchedules, off, func(w *simWorld) bool { return len(w.doubles) == 0 })
	if doubled == 0 && *simSeed == 0 && *simRuns == 0 {
		t.Error("the schedules do not need this guard, so they do not test it")
	}
}

func TestR2_AFrozenLeaderDoesNoHarmWhenItGoesOn(t *testing.T) {
	t.Parallel()
	simulate(t, 300, func(w *simWorld) { w.ends = []ending{frozen} }, kept(t))
}

func TestR5_ASuccessorWhoseCacheLagsGrantsNothingFromOldData(t *testing.T) {
	t.Parallel()
	simulate(t, 300, func(w *simWorld) { w.lag = 5 * time.Second }, kept(t))
}
