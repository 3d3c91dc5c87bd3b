package instance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider/class"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
	"crawl.example.com/egress-proxies-operator/providers/guard"
)

// newGuarded makes the controllers of a provider manager, of Proxies and of classes, with the guard of production.
func (s *bed) newGuarded(q *queue) (*Reconciler, *class.Reconciler) {
	c := clockOfWorkers{s.clock, q.waiting}
	factory := &fake.Factory{Cloud: s.cloud}
	set := providers.NewSet(factory, providers.Runtime{ClusterID: "cluster", Clock: c}, guard.ForSet(factory, c, nil))
	instances := NewReconciler(s.client, s.client, &events.FakeRecorder{}, Options{
		Set: set, Clock: c, ClusterID: "cluster", ControllerName: v1alpha1.DefaultControllerName,
	})
	classes := class.NewReconciler(s.client, &events.FakeRecorder{}, class.Options{Set: set, Clock: c, ControllerName: v1alpha1.DefaultControllerName})
	return instances, classes
}

// proxies stores Proxies at the same time.
func (s *bed) proxies(prefix string, n int) []*v1alpha1.Proxy {
	s.t.Helper()
	made := make([]*v1alpha1.Proxy, n)
	var group sync.WaitGroup
	slots := make(chan struct{}, queueWorkers)
	for i := range n {
		slots <- struct{}{}
		group.Go(func() {
			made[i] = s.proxy(fmt.Sprintf("%s-%03d", prefix, i))
			<-slots
		})
	}
	group.Wait()
	return made
}

// ladder is how many calls a Proxy would make within a time that retries on its own.
func ladder(within time.Duration) int {
	calls := 0
	for at, wait := time.Duration(0), retryMin; at <= within; at, wait = at+wait, min(2*wait, retryMax) {
		calls++
	}
	return calls
}

// mostWithin is the largest number of times within any span.
func mostWithin(times []time.Time, span time.Duration) int {
	slices.SortFunc(times, time.Time.Compare)
	most, first := 0, 0
	for last := range times {
		for times[last].Sub(times[first]) >= span {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

func TestA29_AnOutageUnderFiveHundredProxies(t *testing.T) {
	const (
		all, fresh, leaving = 500, 10, 10
		outage              = 10 * time.Minute
	)
	s := newBed(t, fake.Behaviour{})
	q, _ := s.newQueue()
	s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.MaxConcurrentCreates = new(int32(1000)) })
	old := s.proxies("old", all-fresh)
	// The fleet comes up without the guard, which has its own pace.
	q.run("the fleet runs", time.Hour, func() bool { return s.every(isProvisioned) })

	instances, classes := s.newGuarded(q)
	q.start(s, instances)
	q.reconcilers[inClass] = classes
	q.add(inClass, client.ObjectKeyFromObject(s.class))
	ready := func() metav1.Condition {
		now := &v1alpha1.ProviderClass{}
		s.must(s.client.Get(context.Background(), client.ObjectKeyFromObject(s.class), now))
		if c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			return *c
		}
		return metav1.Condition{}
	}
	q.run("", 20*time.Minute, nil)
	if c := ready(); c.Status != metav1.ConditionTrue {
		t.Fatalf("the class is %+v", c)
	}

	// The provider goes away; users go on.
	before := map[string]string{}
	for _, px := range s.known() {
		before[px.Name] = px.ResourceVersion
	}
	down := s.clock.Now()
	truth, mutations, calls := s.cloud.Instances(), s.cloud.Mutations(), len(s.cloud.Calls())
	s.cloud.Down(providers.NewError(providers.Unavailable, "", "", nil))
	s.proxies("new", fresh)
	for _, px := range old[:leaving] {
		s.must(s.client.Delete(t.Context(), px))
	}
	q.run("", outage, nil)

	var checks, others int
	for _, call := range s.cloud.Calls()[calls:] {
		if call.Method == fake.MethodCheck {
			checks++
		} else {
			others++
		}
	}
	// Until the breaker opens, which those do not know that are under way; then one call whenever it lets one try.
	bound := guard.BreakerThreshold + queueWorkers - 1 + int(outage/guard.BreakerOpenFor) + 1
	if others > bound {
		t.Errorf("%d calls for Proxies, want at most %d", others, bound)
	}
	if bound := int(outage/class.RecheckPeriod) + 2; checks > bound {
		t.Errorf("%d checks of the class, want at most %d", checks, bound)
	}
	if alone := all * ladder(outage); others*50 > alone {
		t.Errorf("%d calls, and %d would be made by Proxies on their own: want a fiftieth at most", others, alone)
	}
	t.Logf("%d calls and %d checks; %d Proxies on their own would make %d calls", others, checks, all, all*ladder(outage))
	if c := ready(); c.Status != metav1.ConditionFalse || c.LastTransitionTime.Sub(down) > 2*class.CheckPeriod {
		t.Errorf("the class is %+v, the provider is down since %v", c, down)
	}
	if n := s.cloud.Mutations() - mutations; n != 0 {
		t.Errorf("%d Creates and Deletes", n)
	}
	for _, px := range s.known() {
		provisioned := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionProvisioned)
		switch {
		case strings.HasPrefix(px.Name, "new"):
			if provisioned == nil || provisioned.Status != metav1.ConditionUnknown || provisioned.Reason != v1alpha1.ReasonProviderUnreachable {
				t.Errorf("%s: Provisioned is %+v", px.Name, provisioned)
			}
		case !px.DeletionTimestamp.IsZero():
			blocked := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionCleanupBlocked)
			if blocked == nil || blocked.Status != metav1.ConditionTrue || blocked.Reason != v1alpha1.ReasonProviderUnreachable || !strings.Contains(blocked.Message, v1alpha1.AnnotationSkipCleanup) {
				t.Errorf("%s: CleanupBlocked is %+v", px.Name, blocked)
			}
		case px.ResourceVersion != before[px.Name]:
			t.Errorf("%s was written during the outage: %+v", px.Name, px.Status)
		}
	}

	// It is back.
	calls = len(s.cloud.Calls())
	back := s.clock.Now()
	s.cloud.Down(nil)
	asked := func() map[string]time.Time {
		first := map[string]time.Time{}
		for _, call := range s.cloud.Calls()[calls:] {
			if _, known := first[call.Name]; !known && call.Name != "" {
				first[call.Name] = call.Time
			}
		}
		return first
	}
	q.run("every Proxy was looked at, what was asked for is there and what was to go is gone", 30*time.Minute, func() bool {
		return len(s.known()) == all-leaving && s.every(isProvisioned) && len(asked()) == all
	})
	if c := ready(); c.Status != metav1.ConditionTrue || c.LastTransitionTime.Sub(back) > 2*class.RecheckPeriod {
		t.Errorf("the class is %+v, the provider is back since %v", c, back)
	}
	var times []time.Time
	for _, call := range s.cloud.Calls()[calls:] {
		times = append(times, call.Time)
	}
	if most, bound := mostWithin(times, time.Second), providers.DefaultBurst+providers.DefaultCallsPerSecond; most > bound {
		t.Errorf("%d calls within a second, want at most %d", most, bound)
	}
	first := asked()
	last := slices.MaxFunc(slices.Collect(maps.Values(first)), time.Time.Compare)
	if took, least := last.Sub(back), time.Duration(all-providers.DefaultBurst)*time.Second/providers.DefaultCallsPerSecond; took < least || took > 4*least {
		t.Errorf("all were looked at within %v, want between %v and %v", took, least, 4*least)
	}
	t.Logf("%d calls; all Proxies were looked at within %v, at most %d calls within a second", len(times), last.Sub(back), mostWithin(times, time.Second))

	// Nothing was replaced, lost or made twice.
	byID := map[string]providers.Instance{}
	for _, i := range s.cloud.Instances() {
		byID[i.ID] = i
	}
	kept := 0
	for _, i := range truth {
		if _, ok := byID[i.ID]; ok {
			kept++
		}
	}
	if kept != all-fresh-leaving || len(byID) != all-leaving {
		t.Errorf("%d of %d instances were kept, and there are %d", kept, len(truth), len(byID))
	}
	if n := s.cloud.Mutations() - mutations; n != fresh+leaving {
		t.Errorf("%d Creates and Deletes, want one for each Proxy that came or went: %d", n, fresh+leaving)
	}
}
