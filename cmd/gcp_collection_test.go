package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider/orphangc"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

const (
	liveVMs, liveZones = 1200, 30
	// gcpOrphans are VMs of the class without a Proxy: as many as one sweep deletes.
	gcpOrphans = orphangc.DefaultMaxDeletes
	gcpCluster = "cluster-1"
)

// yard is a class with many VMs in many zones, all of them with Proxies but a few.
type yard struct {
	*computetest.Server
	t         *testing.T
	env       *testenv.Env
	namespace string
	clock     *clocktesting.FakeClock
	class     *v1alpha1.ProviderClass
	zones     []string
	set       *providers.Set
	runner    *orphangc.Runner
	alive     map[types.UID]bool
}

func newYard(t *testing.T) *yard {
	t.Helper()
	env := testenv.New(t)
	y := &yard{t: t, env: env, namespace: env.Namespace(t), clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), alive: map[types.UID]bool{}}
	for n := range liveZones {
		y.zones = append(y.zones, fmt.Sprintf("region%d-%c", n/3, 'a'+n%3))
	}
	computetest.Isolate(t)
	y.Server = computetest.New(t, computetest.Options{Clock: y.clock, Token: gcpToken, Zones: y.zones, Projects: []string{gcpProject}})
	account := computetest.NewServiceAccount(t, gcpToken)
	key := filepath.Join(t.TempDir(), "key.json")
	account.WriteFile(key)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", key)

	y.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: "yard-" + y.namespace},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderGCP, ControllerName: "crawl.example.com/" + y.namespace,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll}, GCP: &v1alpha1.GCPClass{Project: gcpProject, Zones: y.zones},
		},
	}
	y.must(env.Client.Create(t.Context(), y.class))
	next := y.class.Status.DeepCopy()
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Test"})
	y.must(statusapply.Whole(t.Context(), env.Client, v1alpha1.ManagerProvider(v1alpha1.ProviderGCP), y.class, &y.class.Status, next))

	y.set = y.newSet(gcpCluster)
	y.runner = y.newRunner(0)
	y.fill()
	y.clock.Step(2 * orphangc.DefaultMinAge)
	return y
}

// newRunner makes the collection; a timeout of 0 means the default.
func (y *yard) newRunner(timeout time.Duration) *orphangc.Runner {
	y.t.Helper()
	runner, err := orphangc.NewRunner(y.env.Client, y.env.Client, events.NewFakeRecorder(1000), orphangc.Options{
		Set: y.set, Clock: y.clock, ClusterID: gcpCluster, ControllerName: y.class.Spec.ControllerName, SweepTimeout: timeout,
	})
	y.must(err)
	return runner
}

func (y *yard) newSet(clusterID string) *providers.Set {
	set := providers.NewSet(&gcp.Factory{Endpoint: y.URL}, providers.Runtime{ClusterID: clusterID, Clock: y.clock}, nil)
	y.t.Cleanup(set.Close)
	return set
}

func (y *yard) must(err error) {
	y.t.Helper()
	if err != nil {
		y.t.Fatal(err)
	}
}

// fill makes Proxies with their VMs.
func (y *yard) fill() {
	y.t.Helper()
	proxies := make([]*v1alpha1.Proxy, liveVMs)
	group, ctx := errgroup.WithContext(y.t.Context())
	group.SetLimit(8)
	for n := range proxies {
		group.Go(func() error {
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: y.namespace, Name: fmt.Sprint("px-", n)}}
			px.Spec.Provider = y.class.Name
			proxies[n] = px
			if err := y.env.Client.Create(ctx, px); err != nil {
				return err
			}
			return y.create(ctx, y.set, gcpCluster, px.Name, px.UID, n)
		})
	}
	y.must(group.Wait())
	for _, px := range proxies {
		y.alive[px.UID] = true
	}
}

func (y *yard) create(ctx context.Context, set *providers.Set, clusterID, name string, uid types.UID, n int) error {
	p, err := set.Open(ctx, y.class)
	if err != nil {
		return err
	}
	request := providers.CreateRequest{
		Name: providers.InstanceName(clusterID, name, uid), Zone: y.zones[n%len(y.zones)],
		Owner: providers.Owner{ClusterID: clusterID, Namespace: y.namespace, Name: name, UID: uid},
	}
	request.Spec.Placement = &v1alpha1.Placement{MachineType: "e2-micro", Image: gcpImage}
	_, err = p.Create(ctx, request)
	return err
}

// left counts the VMs that are not on their way out: those with a Proxy, and all others by the UID of their owner.
func (y *yard) left() (alive int, others map[string]int) {
	others = map[string]int{}
	for _, vm := range y.VMs() {
		switch uid := vm.Labels[uidLabel]; {
		case vm.Deleting:
		case y.alive[types.UID(uid)]:
			alive++
		default:
			others[uid]++
		}
	}
	return alive, others
}

func (y *yard) sweep(times int) (err error) {
	for range times {
		err = errors.Join(err, y.runner.SweepAll(y.t.Context()))
		y.clock.Step(orphangc.DefaultPeriod)
	}
	return err
}

func (y *yard) reason() string {
	y.t.Helper()
	class := &v1alpha1.ProviderClass{}
	y.must(y.env.Client.Get(y.t.Context(), client.ObjectKeyFromObject(y.class), class))
	if c := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionGarbageCollection); c != nil {
		return c.Reason
	}
	return ""
}

// TestT30_GT10_G35_CollectionDeletesNothingThatLives: 1200 machines in 30 zones. As long as anything of the list is missing
// nothing is concluded; then the orphans go, and neither what is young nor what is other people's.
func TestT30_GT10_G35_CollectionDeletesNothingThatLives(t *testing.T) {
	y := newYard(t)
	for n := range gcpOrphans {
		y.must(y.create(t.Context(), y.set, gcpCluster, fmt.Sprint("gone-", n), types.UID(fmt.Sprint("gone-", n)), n))
	}
	y.must(y.create(t.Context(), y.newSet("cluster-2"), "cluster-2", "theirs", "theirs", 0))
	y.Seed(computetest.Seed{Project: gcpProject, Zone: y.zones[0], Name: "a-person", Age: time.Hour})
	y.clock.Step(2 * orphangc.DefaultMinAge)
	for name, trouble := range map[string]func() (restore func()){
		"a zone is down": func() func() {
			y.SetUnreachable(y.zones[7], true)
			return func() { y.SetUnreachable(y.zones[7], false) }
		},
		"a page fails": func() func() {
			return y.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: 2, Answer: computetest.BackendError(http.StatusServiceUnavailable)})
		},
		"the account is refused": func() func() {
			return y.Fail(computetest.Fault{Call: computetest.AggregatedList, Answer: computetest.Forbidden("compute.instances.list", gcpProject)})
		},
	} {
		restore := trouble()
		if err := y.sweep(3); err == nil || y.reason() != v1alpha1.ReasonListFailed {
			t.Errorf("%s: %v, %s", name, err, y.reason())
		}
		restore()
	}
	restore := y.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: 1, Hang: true})
	patient := y.runner
	y.runner = y.newRunner(time.Second)
	if err := y.sweep(3); err == nil || y.reason() != v1alpha1.ReasonListFailed {
		t.Errorf("a page hangs: %v, %s", err, y.reason())
	}
	y.runner = patient
	restore()
	for range 3 {
		// A zone goes down behind the first pages. Its machines are on the last one.
		restore := y.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: 3, Down: y.zones[liveZones-1]})
		if err := y.sweep(1); err == nil || y.reason() != v1alpha1.ReasonListFailed {
			t.Errorf("a zone goes down while the list is read: %v, %s", err, y.reason())
		}
		restore()
		y.SetUnreachable(y.zones[liveZones-1], false)
	}
	if n := y.Count(computetest.Delete); n != 0 {
		t.Fatalf("%d deletions although the list was not complete", n)
	}
	// One that is as young as a machine whose Proxy does not show yet.
	y.must(y.sweep(1))
	y.must(y.create(t.Context(), y.set, gcpCluster, "young", "young", 0))
	y.must(y.sweep(1))
	alive, others := y.left()
	if alive != liveVMs {
		t.Errorf("%d of %d machines with a Proxy are left", alive, liveVMs)
	}
	if len(others) != 3 || others["theirs"] != 1 || others["young"] != 1 || others[""] != 1 {
		t.Errorf("left without a Proxy: %v; want the young one and those of others", others)
	}
	if n := y.Count(computetest.Delete); n != gcpOrphans {
		t.Errorf("%d deletions of %d orphans", n, gcpOrphans)
	}
}
