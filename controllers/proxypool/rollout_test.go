package proxypool

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

func progressing(plan Plan) metav1.Condition {
	if c := meta.FindStatusCondition(plan.Status.Conditions, v1alpha1.ConditionProgressing); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// world is a pool with members that do what real ones do, only faster.
type world struct {
	pool    *v1alpha1.ProxyPool
	members []*v1alpha1.Proxy
	leases  map[types.UID]int
	reports map[types.UID][]Report
	now     time.Time
	made    int
}

func (w *world) plan() Plan {
	return MakePlan(Input{
		Pool: w.pool, Members: w.members, Now: w.now, Leases: func(uid types.UID) int { return w.leases[uid] },
		Reports: func(uid types.UID) []Report { return w.reports[uid] },
	})
}

// step does what the plan says. Deleted members stay as leaving ones until gone removes them.
func (w *world) step() Plan {
	plan := w.plan()
	for _, d := range plan.Deletes {
		d.Proxy.DeletionTimestamp = new(metav1.NewTime(w.now))
	}
	for _, d := range plan.Drains {
		d.Proxy.Spec.DrainRequests = d.Ops[0].Value.([]v1alpha1.DrainRequest)
	}
	for _, d := range plan.Undrains {
		d.Proxy.Spec.DrainRequests, _ = d.Ops[0].Value.([]v1alpha1.DrainRequest)
	}
	for _, name := range plan.Creates {
		px := newProxy(w.pool, name, plan.Status.UpdateRevision)
		w.made++
		px.UID, px.CreationTimestamp = types.UID(name+"-"+time.Duration(w.made).String()), metav1.NewTime(w.now)
		w.members = append(w.members, px)
	}
	w.pool.Status = plan.Status
	w.now = w.now.Add(time.Second)
	return plan
}

func (w *world) gone() {
	w.members = slices.DeleteFunc(w.members, func(px *v1alpha1.Proxy) bool { return !px.DeletionTimestamp.IsZero() })
}

func (w *world) makeReady(px *v1alpha1.Proxy) {
	ready(px)
	meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady).LastTransitionTime = metav1.NewTime(w.now)
}

func (w *world) count(is func(*v1alpha1.Proxy) bool) int {
	n := 0
	for _, px := range w.members {
		if is(px) {
			n++
		}
	}
	return n
}

func isAvailable(px *v1alpha1.Proxy) bool {
	return px.DeletionTimestamp.IsZero() && len(px.Spec.DrainRequests) == 0 && meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady)
}

func newWorld(replicas int32, leasesEach int) *world {
	pool := newPool(replicas)
	w := &world{pool: pool, members: members(pool, int(replicas), ready), leases: map[types.UID]int{}, reports: map[types.UID][]Report{}, now: start}
	for _, px := range w.members {
		w.leases[px.UID] = leasesEach
	}
	return w
}

func TestP5_RolloutUnderLeasesCompletes(t *testing.T) {
	w := newWorld(8, 1)
	w.pool.Spec.Template.Spec.Port = 8080
	w.pool.Generation++
	for range 40 {
		w.step()
		if got := w.count(isAvailable); got < 6 {
			t.Fatalf("%d proxies available during the rollout, want at least 6", got)
		}
		if got := len(w.members); got > 8+2+2 {
			t.Fatalf("%d proxies exist, want at most 12", got)
		}
		w.gone()
		for _, px := range w.members {
			if !isAvailable(px) {
				w.makeReady(px)
				w.leases[px.UID] = 1
				break
			}
		}
	}
	plan := w.step()
	if plan.Status.Updated != 8 || plan.Status.Replicas != 8 || plan.Status.CurrentRevision != plan.Status.UpdateRevision {
		t.Errorf("the rollout did not complete: %+v", plan.Status)
	}
	if c := progressing(plan); c.Reason != v1alpha1.ReasonComplete {
		t.Errorf("Progressing is %+v, want Complete", c)
	}
}

func TestA42_P6_BrokenTemplateStopsAtTheBudgetAndRollsBack(t *testing.T) {
	w := newWorld(8, 0)
	good := w.pool.Spec.Template.Spec.DeepCopy()
	w.pool.Spec.Template.Spec.Port = 8080
	w.pool.Generation++
	for range 30 {
		w.step()
		w.gone()
	}
	if got := w.count(isAvailable); got != 6 {
		t.Errorf("%d old proxies are left available, want 6", got)
	}
	w.now = w.now.Add(DefaultProgressDeadline)
	if c := progressing(w.step()); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonProgressDeadline {
		t.Errorf("Progressing is %+v, want ProgressDeadlineExceeded", c)
	}

	w.pool.Spec.Template.Spec = *good
	w.pool.Generation++
	for range 10 {
		w.step()
		w.gone()
		for _, px := range w.members {
			if px.Spec.Port == 3128 && !isAvailable(px) {
				w.makeReady(px)
			}
		}
	}
	plan := w.step()
	if plan.Status.Updated != 8 || plan.Status.Replicas != 8 || plan.Status.Available != 8 {
		t.Errorf("after the rollback: %+v", plan.Status)
	}
	if w.made > 4+2 {
		t.Errorf("rolling forth and back made %d proxies", w.made)
	}
}

func TestPausedPoolScalesAndDoesNotRoll(t *testing.T) {
	w := newWorld(3, 0)
	w.pool.Spec.Paused = new(true)
	w.pool.Spec.Template.Spec.Port = 8080
	plan := w.step()
	if plan.acts() {
		t.Errorf("a paused pool rolls: %v %v", plan.Creates, deletedNames(plan))
	}
	if c := progressing(plan); c.Reason != v1alpha1.ReasonPaused {
		t.Errorf("Progressing is %+v, want Paused", c)
	}
	w.pool.Spec.Replicas = new(int32(5))
	if plan := w.step(); len(plan.Creates) != 2 {
		t.Errorf("a paused pool makes %d of 2", len(plan.Creates))
	}
}

func TestP8_OutOfDateMembersShareTheBudget(t *testing.T) {
	w := newWorld(20, 0)
	for _, px := range w.members {
		condition(v1alpha1.ConditionUpToDate, metav1.ConditionFalse)(px)
		meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionUpToDate).Reason = v1alpha1.ReasonSpecChanged
	}
	for range 60 {
		w.step()
		if got := w.count(isAvailable); got < 15 {
			t.Fatalf("%d available, want at least 15", got)
		}
		w.gone()
		for _, px := range w.members {
			if !isAvailable(px) {
				w.makeReady(px)
			}
		}
	}
	if plan := w.step(); plan.Status.Updated != 20 || plan.acts() {
		t.Errorf("not all were replaced: %+v", plan.Status)
	}
}

func TestRolloutAfterTimeReplacesWhatIsOlder(t *testing.T) {
	w := newWorld(2, 0)
	w.pool.Spec.Rollout = &v1alpha1.PoolRollout{AfterTime: new(metav1.NewTime(start.Add(time.Hour)))}
	if plan := w.plan(); plan.acts() {
		t.Error("a time in the future replaces something")
	}
	w.pool.Spec.Rollout.AfterTime = new(metav1.NewTime(start))
	for range 10 {
		w.step()
		w.gone()
		for _, px := range w.members {
			if !isAvailable(px) {
				w.makeReady(px)
			}
		}
	}
	if plan := w.plan(); w.made != 2 || plan.acts() {
		t.Errorf("made %d proxies, want 2, and then nothing", w.made)
	}
}

func TestMinReadySeconds(t *testing.T) {
	pool := newPool(1)
	pool.Spec.MinReadySeconds = new(int32(90))
	list := members(pool, 1, ready) // for a minute
	plan := MakePlan(Input{Pool: pool, Members: list, Now: start})
	if plan.Status.Ready != 1 || plan.Status.Available != 0 || plan.Recheck != 30*time.Second {
		t.Errorf("ready %d, available %d, recheck in %s; want 1, 0, 30s", plan.Status.Ready, plan.Status.Available, plan.Recheck)
	}
	plan = MakePlan(Input{Pool: pool, Members: list, Now: start.Add(30 * time.Second)})
	if plan.Status.Available != 1 {
		t.Errorf("available %d after 90 s, want 1", plan.Status.Available)
	}
}

// Whatever happens in whatever order: never more proxies than replicas, surge and leaving ones allow, never fewer available
// than the budget says because of the pool, and in the end what was asked for.
func TestPlanHoldsItsBudget(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drainingWorld(int32(rapid.IntRange(0, 12).Draw(t, "replicas")), 0)
		if rapid.Bool().Draw(t, "on release") {
			w.pool.Spec.Strategy = &v1alpha1.PoolStrategy{Type: v1alpha1.StrategyOnRelease}
		}
		w.pool.Spec.Remediation = &v1alpha1.PoolRemediation{UnhealthyTimeoutSeconds: new(int32(rapid.IntRange(1, 20).Draw(t, "unhealthy for")))}
		if rapid.Bool().Draw(t, "recycle") {
			w.pool.Spec.Recycle = &v1alpha1.PoolRecycle{
				MaxAgeSeconds: new(int32(3600 + 10)), AfterReports: &v1alpha1.RecycleReports{Count: 1, DistinctHolders: new(int32(1))},
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0:
				w.pool.Spec.Replicas = new(int32(rapid.IntRange(0, 12).Draw(t, "scale")))
				w.pool.Generation++
			case 1:
				w.pool.Spec.Template.Spec.Port = int32(rapid.IntRange(3128, 3130).Draw(t, "port"))
				w.pool.Generation++
			case 2:
				w.gone()
			case 3, 4:
				for _, px := range w.members {
					if !isAvailable(px) && rapid.Bool().Draw(t, "becomes ready") {
						w.makeReady(px)
					}
				}
			case 5:
				for _, px := range w.members {
					if rapid.IntRange(0, 9).Draw(t, "falls") == 0 {
						sick(0)(px)
					}
					w.leases[px.UID] = rapid.IntRange(0, 2).Draw(t, "leases")
				}
			case 6:
				for _, px := range w.members {
					if rapid.IntRange(0, 3).Draw(t, "is reported") == 0 {
						w.reports[px.UID] = []Report{{Holder: "h", Time: w.now}}
					}
				}
			case 7:
				w.pool.Spec.Paused = new(rapid.Bool().Draw(t, "paused"))
			case 8:
				for _, px := range w.members {
					switch rapid.IntRange(0, 9).Draw(t, "somebody drains") {
					case 0:
						drainedBy("somebody")(px)
					case 1:
						w.somebodyIsDone(px)
					}
				}
			}
			checkStep(t, w)
		}
		clear(w.leases)
		clear(w.reports)
		w.pool.Spec.Paused = nil
		for _, px := range w.members {
			w.somebodyIsDone(px)
		}
		for range 90 {
			checkStep(t, w)
			w.gone()
			for _, px := range w.members {
				if !isAvailable(px) {
					w.makeReady(px)
				}
			}
		}
		for _, px := range w.members {
			if len(px.Spec.DrainRequests) > 0 {
				t.Fatalf("%s is left with a drain request", px.Name)
			}
		}
		if plan := w.plan(); plan.acts() || plan.Status.Updated != *w.pool.Spec.Replicas || plan.Status.Replicas != *w.pool.Spec.Replicas {
			t.Fatalf("no rest: %v, deletes %v, %+v", plan.Creates, deletedNames(plan), plan.Status)
		}
	})
}

// somebodyIsDone takes back the drain request of somebody else.
func (w *world) somebodyIsDone(px *v1alpha1.Proxy) {
	px.Spec.DrainRequests = slices.DeleteFunc(slices.Clone(px.Spec.DrainRequests), func(r v1alpha1.DrainRequest) bool { return r.Requester == "somebody" })
}

func checkStep(t *rapid.T, w *world) {
	p := newPlanner(Input{Pool: w.pool, Now: w.now})
	availableBefore, existed := w.count(isAvailable), len(w.members)
	foreign := map[*v1alpha1.Proxy]int{}
	for _, px := range w.members {
		foreign[px] = len((&member{Proxy: px}).foreignRequests())
	}
	plan := w.step()
	for px, n := range foreign {
		if len((&member{Proxy: px}).foreignRequests()) != n {
			t.Fatalf("a drain request of somebody on %s was lifted", px.Name)
		}
	}
	for _, d := range plan.Deletes {
		works := meta.IsStatusConditionTrue(d.Proxy.Status.Conditions, v1alpha1.ConditionReady)
		if works && p.paused() && d.Reason != reasonScaleDown && foreign[d.Proxy] == 0 {
			t.Fatalf("a paused pool finished the replacement of %s, which works: %s", d.Proxy.Name, describe(plan))
		}
		request := (&member{Proxy: d.Proxy}).drainedByPool()
		if works && p.onRelease() && w.leases[d.Proxy.UID] > 0 && d.Reason == reasonRollout && (request == nil || request.DeadlineTime == nil) {
			t.Fatalf("%s goes with its leases: %s", d.Proxy.Name, describe(plan))
		}
	}
	if limit := p.limit(); len(w.members) > max(limit, existed) {
		t.Fatalf("%d proxies exist, the limit is %d", len(w.members), limit)
	}
	least := p.replicas - p.unavailable
	for _, d := range plan.Deletes {
		if d.Reason != reasonScaleDown && len(d.Proxy.Spec.DrainRequests) == 0 && w.count(isAvailable) < min(least, availableBefore) {
			t.Fatalf("replacing for %s left %d available of %d, want at least %d: %s", d.Reason, w.count(isAvailable), availableBefore, least, describe(plan))
		}
	}
	for _, d := range plan.Drains {
		if d.Reason != reasonScaleDown && len(d.Proxy.Spec.DrainRequests) == 0 && w.count(isAvailable) < min(least, availableBefore) {
			t.Fatalf("draining for %s left %d available of %d, want at least %d", d.Reason, w.count(isAvailable), availableBefore, least)
		}
	}
	if got := w.count(func(px *v1alpha1.Proxy) bool { return px.DeletionTimestamp.IsZero() }); got < p.replicas && slices.ContainsFunc(plan.Deletes, func(d Delete) bool {
		// A drain that ends takes no replica away.
		return d.Reason == reasonScaleDown && len(d.Proxy.Spec.DrainRequests) == 0
	}) {
		t.Fatalf("scaling down left %d of %d", got, p.replicas)
	}
}

// describe tells what a plan does.
func describe(plan Plan) string {
	text := fmt.Sprintf("makes %d", len(plan.Creates))
	for _, d := range plan.Deletes {
		text += fmt.Sprintf("; deletes %s (%s, available %v, draining %v)", d.Proxy.Name, d.Reason, meta.IsStatusConditionTrue(d.Proxy.Status.Conditions, v1alpha1.ConditionReady), len(d.Proxy.Spec.DrainRequests) > 0)
	}
	for _, d := range plan.Drains {
		text += fmt.Sprintf("; drains %s (%s)", d.Proxy.Name, d.Reason)
	}
	return text
}
