package leasing

import (
	"testing"
	"time"
)

// The real allocators of one leader after another, over an API server that delays, drops, refuses and answers wrongly, give
// no exclusive proxy to two, lose no lease that was promised and leak no slot.
func TestSimulationKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	simulate(t, 1000, func(*simWorld) {}, kept(t))
}

// An exclusive proxy has two guards. Without either of them the same schedules show doubles.
func TestSimulationWithoutTheCheckOfTheLeadership(t *testing.T) {
	t.Parallel()
	doubled, _ := simulate(t, 150, func(w *simWorld) { w.unchecked = true }, func(*simWorld) {})
	if doubled == 0 && !testing.Short() && *simSeed == 0 {
		t.Error("the schedules do not need this guard, so they do not test it")
	}
}

func TestSimulationWithoutTheNameOnTheProxy(t *testing.T) {
	t.Parallel()
	doubled, _ := simulate(t, 150, func(w *simWorld) { w.api.unnamed = true }, func(*simWorld) {})
	if doubled == 0 && !testing.Short() && *simSeed == 0 {
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
