package proxypool

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// sick proxies run and have not worked for some time.
func sick(since time.Duration) option {
	return func(px *v1alpha1.Proxy) {
		unhealthy(px)
		meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
			Type: v1alpha1.ConditionHealthy, Status: metav1.ConditionFalse, Reason: "Test", LastTransitionTime: metav1.NewTime(start.Add(-since)),
		})
	}
}

func conditionOf(plan Plan, name string) metav1.Condition {
	if c := meta.FindStatusCondition(plan.Status.Conditions, name); c != nil {
		return *c
	}
	return metav1.Condition{}
}

func TestUnhealthyMembersAreReplacedAfterTheirTime(t *testing.T) {
	pool := newPool(10)
	list := members(pool, 10, ready)
	sick(10 * time.Minute)(list[3])
	sick(4 * time.Minute)(list[7])
	if plan := MakePlan(Input{Pool: pool, Members: list, Now: start}); plan.acts() {
		t.Errorf("without remediation it acts: %v %v", plan.Creates, deletedNames(plan))
	}
	pool.Spec.Remediation = &v1alpha1.PoolRemediation{UnhealthyTimeoutSeconds: new(int32(300))}
	plan := MakePlan(Input{Pool: pool, Members: list, Now: start})
	if got := deletedNames(plan); len(got) != 1 || got[0] != list[3].Name || plan.Deletes[0].Reason != reasonUnhealthy {
		t.Errorf("deletes %+v, want the one that is sick long enough", plan.Deletes)
	}
	if len(plan.Creates) != 1 || plan.Recheck != time.Minute {
		t.Errorf("creates %v and looks again in %s, want one and 1m", plan.Creates, plan.Recheck)
	}
	if c := conditionOf(plan, v1alpha1.ConditionRemediationAllowed); c.Status != metav1.ConditionTrue {
		t.Errorf("RemediationAllowed is %+v", c)
	}
	// A lease on what does not work keeps nothing.
	pool.Spec.Strategy = &v1alpha1.PoolStrategy{Type: v1alpha1.StrategyOnRelease}
	plan = MakePlan(Input{Pool: pool, Members: list, Leases: leased(1), Now: start})
	if got := deletedNames(plan); len(got) != 1 {
		t.Errorf("deletes %v of leased sick members, want one", got)
	}
}

func TestP12_NothingIsReplacedWhileEverythingIsUnhealthy(t *testing.T) {
	pool := newPool(10)
	pool.Spec.Remediation = &v1alpha1.PoolRemediation{UnhealthyTimeoutSeconds: new(int32(60))}
	pool.Spec.Recycle = &v1alpha1.PoolRecycle{MaxAgeSeconds: new(int32(60))}
	for n, allowed := range map[int]bool{4: true, 5: false, 10: false} {
		list := members(pool, 10, ready)
		for _, px := range list[:n] {
			sick(time.Hour)(px)
		}
		plan := MakePlan(Input{Pool: pool, Members: list, Now: start})
		c := conditionOf(plan, v1alpha1.ConditionRemediationAllowed)
		if plan.acts() != allowed || (c.Status == metav1.ConditionTrue) != allowed {
			t.Errorf("%d of 10 unhealthy: creates %v, deletes %v, RemediationAllowed %+v", n, plan.Creates, deletedNames(plan), c)
		}
		if !allowed && c.Reason != v1alpha1.ReasonTooManyUnhealthy {
			t.Errorf("%d of 10 unhealthy: %+v", n, c)
		}
	}
	// A new template goes on: it may be the cure.
	list := members(pool, 10, sick(time.Hour))
	pool.Spec.Template.Spec.Port = 8080
	if plan := MakePlan(Input{Pool: pool, Members: list, Now: start}); !plan.acts() {
		t.Error("a rollout is held up by unhealthy members")
	}
}

// Members that were made in one second get too old one after the other, and even without jitter no more of them are away
// at once than the strategy allows. T10: until its turn each stays in use.
func TestP13_T10_AgeIsReplacedByBudgetAndJitter(t *testing.T) {
	for _, jitter := range []int32{0, 10} {
		w := newWorld(20, 1)
		w.pool.Spec.Recycle = &v1alpha1.PoolRecycle{MaxAgeSeconds: new(int32(3600)), JitterPercent: &jitter}
		for i, px := range w.members {
			px.CreationTimestamp = metav1.NewTime(start)
			px.UID += "-jitter"
			w.leases[px.UID] = i % 2
		}
		var first, last time.Time
		made := 0
		for range 3 * 3600 {
			plan := w.step()
			if w.made > made {
				made = w.made
				if first.IsZero() {
					first = w.now
				}
				last = w.now
			}
			for _, d := range plan.Deletes {
				if d.Reason != reasonMaxAge && d.Reason != reasonRollout {
					t.Fatalf("deleted for %s", d.Reason)
				}
			}
			if n := w.count(isAvailable); n < 15 {
				t.Fatalf("jitter %d: %d of 20 available", jitter, n)
			}
			if got := len(w.members); got > 20+5+5 {
				t.Fatalf("jitter %d: %d exist", jitter, got)
			}
			w.gone()
			for _, px := range w.members {
				if !isAvailable(px) && px.DeletionTimestamp.IsZero() {
					w.makeReady(px)
				}
			}
			if jitter == 0 && w.now.Equal(start.Add(3601*time.Second)) {
				// A rollout and a scaling at the same time share the budget.
				w.pool.Spec.Template.Spec.Port = 8080
				w.pool.Spec.Replicas = new(int32(21))
				w.pool.Generation++
			}
			if w.now.After(start.Add(3800 * time.Second)) {
				break
			}
		}
		// Without jitter a few were replaced for their age before the rollout began.
		if jitter > 0 && w.made != 20 || jitter == 0 && (w.made < 21 || w.made > 21+5+5) {
			t.Errorf("jitter %d: %d were made", jitter, w.made)
		}
		if spread := last.Sub(first); jitter > 0 && spread < 30*time.Second {
			t.Errorf("jitter %d: all replaced within %s", jitter, spread)
		}
		if first.After(start.Add(3700 * time.Second)) {
			t.Errorf("jitter %d: the first was replaced at %s", jitter, first.Sub(start))
		}
	}
}

func TestAgeIsNeverExceededAndSpreadByTheJitter(t *testing.T) {
	recycle := &v1alpha1.PoolRecycle{MaxAgeSeconds: new(int32(1000)), JitterPercent: new(int32(20))}
	pool := newPool(1)
	earliest, latest := time.Hour, time.Duration(0)
	for _, px := range members(pool, 200, created(0)) {
		m := member{Proxy: px}
		age := m.bestBefore(recycle).Sub(px.CreationTimestamp.Time)
		earliest, latest = min(earliest, age), max(latest, age)
		if again := (&member{Proxy: px}).bestBefore(recycle); !again.Equal(m.bestBefore(recycle)) {
			t.Fatal("the same member has two ages")
		}
	}
	if earliest < 800*time.Second || latest > 1000*time.Second || latest-earliest < 150*time.Second {
		t.Errorf("ages from %s to %s, want 800 s to 1000 s", earliest, latest)
	}
}

func TestRecyclingKeepsThePoolReady(t *testing.T) {
	pool := newPool(4)
	pool.Spec.Recycle = &v1alpha1.PoolRecycle{MaxAgeSeconds: new(int32(60))}
	list := members(pool, 4, ready)
	list = append(list, memberOf(pool, "successor", created(10*time.Second), ready))
	plan := MakePlan(Input{Pool: pool, Members: list, Now: start})
	if c := conditionOf(plan, v1alpha1.ConditionReady); c.Status != metav1.ConditionTrue {
		t.Errorf("Ready is %+v", c)
	}
	if c := progressing(plan); c.Status != metav1.ConditionTrue || c.Reason != v1alpha1.ReasonRecycling {
		t.Errorf("Progressing is %+v", c)
	}
	pool.Spec.Paused = new(true)
	plan = MakePlan(Input{Pool: pool, Members: list[:4], Now: start})
	if plan.acts() {
		t.Error("a paused pool replaces for age")
	}
}

func TestT1_GrowingLeavesWhatIsThere(t *testing.T) {
	w := newWorld(10, 0)
	w.pool.Spec.Replicas = new(int32(30))
	for range 10 {
		plan := w.step()
		if len(plan.Deletes)+len(plan.Updates)+len(plan.Drains) > 0 {
			t.Fatalf("touches what is there: %+v", plan)
		}
	}
	if w.made != 20 || len(w.members) != 30 {
		t.Errorf("made %d, %d exist", w.made, len(w.members))
	}
}

// Replacing 18 proxies with a quota of 20: what the provider refuses waits for quota, is not given up for that, and no more
// are asked for meanwhile.
func TestT5_RolloutWithinAQuota(t *testing.T) {
	const quota = 20
	w := newWorld(18, 0)
	w.pool.Spec.Template.Spec.Port = 8080
	w.pool.Generation++
	served := func() {
		running := w.count(func(px *v1alpha1.Proxy) bool {
			return meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned)
		})
		for _, px := range w.members {
			if meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) || !px.DeletionTimestamp.IsZero() {
				continue
			}
			if running >= quota {
				meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{
					Type: v1alpha1.ConditionProvisioned, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWaitingForCapacity,
				})
				continue
			}
			running++
			w.makeReady(px)
		}
	}
	waited := false
	for i := range 60 {
		before := w.count(func(px *v1alpha1.Proxy) bool { return waitsForCapacity(px) && px.DeletionTimestamp.IsZero() })
		plan := w.step()
		if before > 0 && len(plan.Creates) > 0 {
			t.Fatalf("%d wait and %d more are made", before, len(plan.Creates))
		}
		for _, d := range plan.Deletes {
			if waitsForCapacity(d.Proxy) {
				t.Fatalf("%s waits for quota and is given up", d.Proxy.Name)
			}
		}
		if n := w.count(isAvailable); n < 18-4 {
			t.Fatalf("%d available", n)
		}
		if c := conditionOf(plan, v1alpha1.ConditionQuotaExceeded); (c.Status == metav1.ConditionTrue) != (before > 0) {
			t.Fatalf("%d wait and QuotaExceeded is %+v", before, c)
		}
		waited = waited || before > 0
		if i%3 == 2 {
			// What is being deleted counts for the quota until it is gone.
			w.gone()
		}
		served()
	}
	w.gone()
	if plan := w.plan(); plan.acts() || plan.Status.Updated != 18 || w.made != 18 || !waited {
		t.Errorf("made %d for 18, waited %v: %+v", w.made, waited, plan.Status)
	}
}
