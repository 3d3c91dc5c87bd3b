package proxypool

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Who pauses a rollout loses nothing that is available and old: the successor goes, whether it is there yet or not.
func TestPausingFinishesNoReplacement(t *testing.T) {
	for name, c := range map[string]struct {
		minReady int32
		more     option
	}{
		"the successor is not available yet":      {minReady: 600},
		"the successor is available":              {},
		"the old ones cool, which ranks them low": {more: cooling(3)},
	} {
		pool := newPool(4)
		zero, one := intstr.FromInt32(0), intstr.FromInt32(1)
		pool.Spec.Strategy = &v1alpha1.PoolStrategy{MaxSurge: &one, MaxUnavailable: &zero}
		pool.Spec.MinReadySeconds, pool.Spec.Paused = &c.minReady, new(true)
		list := members(pool, 5, ready)
		for i := range 4 {
			list[i] = memberOf(pool, list[i].Name, ready, old)
			for j := range list[i].Status.Conditions {
				list[i].Status.Conditions[j].LastTransitionTime = metav1.NewTime(start.Add(-time.Hour))
			}
			if c.more != nil {
				c.more(list[i])
			}
		}
		plan := MakePlan(Input{Pool: pool, Members: list, Now: start})
		if plan.Status.Available < 4 || len(plan.Deletes) != 1 || plan.Deletes[0].Proxy != list[4] {
			t.Errorf("%s: %d are available, and %v go", name, plan.Status.Available, deletedNames(plan))
		}
	}
}

// Pausing takes back what is being drained for its successor, with or without a deadline, and lets what is being drained for a
// smaller size go. Going on drains again.
func TestPausingTakesBackWhatItWasReplacing(t *testing.T) {
	for _, strategy := range []v1alpha1.PoolStrategyType{v1alpha1.StrategyRollingUpdate, v1alpha1.StrategyOnRelease} {
		w := drainingWorld(8, 1)
		w.pool.Spec.Strategy = &v1alpha1.PoolStrategy{Type: strategy}
		w.pool.Spec.Template.Spec.Port = 8080
		draining := func() (n int) {
			return w.count(func(px *v1alpha1.Proxy) bool { return len(px.Spec.DrainRequests) > 0 })
		}
		w.step()
		if got := draining(); got != 2 {
			t.Fatalf("%s: %d are drained, want 2", strategy, got)
		}
		w.pool.Spec.Paused = new(true)
		for range 5 {
			w.step()
		}
		if got := w.count(func(px *v1alpha1.Proxy) bool { return isAvailable(px) && px.Spec.Port == 3128 }); got != 8 || draining() != 0 {
			t.Errorf("%s: after pausing %d old ones are available and %d drained", strategy, got, draining())
		}
		w.gone()
		w.pool.Spec.Replicas = new(int32(6))
		w.step()
		if got := draining(); got != 2 {
			t.Errorf("%s: scaling a paused pool from 8 to 6 drains %d", strategy, got)
		}
		clear(w.leases)
		w.step()
		w.gone()
		if len(w.members) != 6 {
			t.Errorf("%s: %d are left of 8 that became 6", strategy, len(w.members))
		}
		w.pool.Spec.Paused = nil
		for range 60 {
			w.step()
			w.gone()
			for _, px := range w.members {
				if !isAvailable(px) {
					w.makeReady(px)
				}
			}
		}
		if plan := w.plan(); plan.acts() || plan.Status.Updated != 6 {
			t.Errorf("%s: going on leaves %+v", strategy, plan.Status)
		}
	}
}

// A paused pool that lacks a replica takes an old one back rather than make one.
func TestPausedPoolGrowsByWhatItDrains(t *testing.T) {
	w := drainingWorld(4, 1)
	for _, px := range w.members {
		old(px)
	}
	w.pool.Spec.Paused, w.pool.Spec.Replicas = new(true), new(int32(2))
	w.step()
	w.pool.Spec.Replicas = new(int32(3))
	if plan := w.step(); len(plan.Undrains) != 1 || len(plan.Creates) != 0 {
		t.Errorf("%d are taken back and %d made, want 1 and none", len(plan.Undrains), len(plan.Creates))
	}
}

// afterTime replaces each member once, however far the clock that judges it is ahead of the one that dates members, and
// members that were there before it are replaced whatever they were made for.
func TestAfterTimeReplacesOnceWhateverTheClocksSay(t *testing.T) {
	for _, skew := range []time.Duration{-30 * time.Second, 0, time.Second, 5 * time.Second, 30 * time.Second, time.Hour} {
		w := newWorld(4, 0)
		at := start
		for round := 1; round <= 2; round++ {
			w.pool.Spec.Rollout = &v1alpha1.PoolRollout{AfterTime: new(metav1.NewTime(at))}
			for range 240 {
				before := map[types.UID]bool{}
				for _, px := range w.members {
					before[px.UID] = true
				}
				w.step()
				for _, px := range w.members {
					if !before[px.UID] {
						markServed(px, w.pool, w.now)
						px.CreationTimestamp = metav1.NewTime(w.now.Add(-skew).Truncate(time.Second))
					}
				}
				w.gone()
				for _, px := range w.members {
					if !isAvailable(px) {
						w.makeReady(px)
					}
				}
			}
			if w.made != 4*round {
				t.Errorf("skew %v: %d were made for 4 members and %d restarts", skew, w.made, round)
			}
			// Later than what they were made for, and than their making by either clock.
			at = w.now.Add(2 * time.Second)
		}
	}
}
