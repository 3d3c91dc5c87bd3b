package main

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider/orphangc"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

const (
	stormVMs = 50
	// stormBudget is how many VMs of the class may be on their way at once.
	stormBudget = 5
)

// fleet makes Proxies and lets them run.
func (b *bed) fleet(n int) []*v1alpha1.Proxy {
	b.t.Helper()
	var all []*v1alpha1.Proxy
	for i := range n {
		all = append(all, b.proxy(fmt.Sprintf("px-%02d", i)))
	}
	b.until("all run", time.Hour, b.settled(all))
	b.pass(time.Hour)
	return all
}

// settled tells whether all Proxies have their VM and there is no other one. It reads the VMs first, which is cheap.
func (b *bed) settled(all []*v1alpha1.Proxy) func() bool {
	return func() bool {
		vms := b.VMs()
		if len(vms) != len(all) {
			return false
		}
		for _, vm := range vms {
			if vm.Deleting || vm.NatIP == "" {
				return false
			}
		}
		return b.provisioned(all...)()
	}
}

// incarnations are the ids of the VMs that are there.
func (b *bed) incarnations() map[uint64]bool {
	ids := map[uint64]bool{}
	for _, vm := range b.VMs() {
		ids[vm.ID] = true
	}
	return ids
}

// TestGT8_PreemptionWithinTheBudget: SPOT machines that are preempted, one and then fifty at once, come back as new machines,
// and never more of them are on their way than the class allows.
func TestGT8_PreemptionWithinTheBudget(t *testing.T) {
	b := newBed(t, func(s *v1alpha1.ProviderClassSpec) {
		s.GCP.ProvisioningModel, s.MaxConcurrentCreates = "SPOT", ptr.To[int32](stormBudget)
	})
	all := b.fleet(stormVMs)
	one := b.vmOf(all[0])
	b.Preempt(one.Project, one.Zone, one.Name)
	b.until("the preempted one is replaced", 15*time.Minute, func() bool { return !b.incarnations()[one.ID] && b.settled(all)() })

	before, inserts := b.incarnations(), b.Count(computetest.Insert)
	for _, vm := range b.VMs() {
		b.Preempt(vm.Project, vm.Zone, vm.Name)
	}
	most := 0
	b.until("all are replaced", 2*time.Hour, func() bool {
		coming := 0
		for _, vm := range b.VMs() {
			if before[vm.ID] && !vm.Deleting {
				t.Fatalf("%s came back", vm.Name)
			}
			if !before[vm.ID] && vm.NatIP == "" {
				coming++
			}
		}
		most = max(most, coming)
		return b.settled(all)()
	})
	t.Logf("up to %d machines on their way at once, %d inserts", most, b.Count(computetest.Insert)-inserts)
	if most > stormBudget || most == 0 {
		t.Errorf("up to %d machines were on their way at once, the class allows %d", most, stormBudget)
	}
	if n := b.Count(computetest.Insert) - inserts; n != stormVMs {
		t.Errorf("%d inserts for %d machines", n, stormVMs)
	}
	if n := b.Count(computetest.Delete); n != 0 {
		t.Errorf("%d deletions of what Compute Engine takes away itself", n)
	}
}

// TestG17_SilentCloud: while nothing answers, nothing is made anew and nothing is taken down, however long it lasts; whoever
// came meanwhile gets one machine afterwards; and what was left behind is collected.
func TestG17_SilentCloud(t *testing.T) {
	b := newBed(t)
	all := b.fleet(8)
	before := b.incarnations()
	for name, fault := range map[string]computetest.Fault{"no answer": {Drop: true}, "errors": {Answer: computetest.BackendError(503)}} {
		begun := len(b.Requests())
		restore := b.Fail(fault)
		for range 3 {
			all = append(all, b.proxy(fmt.Sprintf("px-%02d", len(all))))
		}
		b.pass(time.Hour)
		for _, r := range b.Requests()[begun:] {
			if r.Call == computetest.Insert || r.Call == computetest.Delete {
				t.Errorf("%s: %s of %s while nothing answers", name, r.Call, r.Name)
			}
		}
		if lost := missing(before, b.incarnations()); lost > 0 || len(b.VMs()) != len(before) {
			t.Errorf("%s: %d machines were lost, there are %d", name, lost, len(b.VMs()))
		}
		restore()
		b.until("all run", 30*time.Minute, b.settled(all))
		if lost := missing(before, b.incarnations()); lost > 0 {
			t.Errorf("%s: %d machines were made anew", name, lost)
		}
		before = b.incarnations()
	}

	// A machine without a Proxy, as one that was given up during such a time.
	p, err := b.set.Open(t.Context(), b.class)
	b.must(err)
	request := providers.CreateRequest{
		Name: providers.InstanceName(gcpCluster, "gone", "gone"), Zone: bedZone,
		Owner: providers.Owner{ClusterID: gcpCluster, Namespace: b.namespace, Name: "gone", UID: "gone"},
	}
	request.Spec.Placement = &v1alpha1.Placement{MachineType: "e2-micro", Image: gcpImage}
	_, err = p.Create(t.Context(), request)
	b.must(err)
	runner := b.collector()
	b.pass(2 * orphangc.DefaultMinAge)
	for range 3 {
		b.must(runner.SweepAll(t.Context()))
		b.pass(orphangc.DefaultPeriod)
	}
	if now := b.incarnations(); missing(before, now) > 0 || len(now) != len(all) {
		t.Errorf("%d machines after the collection, %d of the fleet are missing", len(now), missing(before, now))
	}
}

// missing is how many are not there any more.
func missing(before, now map[uint64]bool) (n int) {
	for id := range before {
		if !now[id] {
			n++
		}
	}
	return n
}

// collector is the orphan collection of the class.
func (b *bed) collector() *orphangc.Runner {
	b.t.Helper()
	b.must(b.client.Get(b.t.Context(), client.ObjectKeyFromObject(b.class), b.class))
	next := b.class.Status.DeepCopy()
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: "Test"})
	b.must(statusapply.Whole(b.t.Context(), b.client, v1alpha1.ManagerProvider(v1alpha1.ProviderGCP), b.class, &b.class.Status, next))
	runner, err := orphangc.NewRunner(b.client, b.client, events.NewFakeRecorder(1000), orphangc.Options{
		Set: b.set, Clock: b.clock, ClusterID: gcpCluster, ControllerName: b.class.Spec.ControllerName,
	})
	b.must(err)
	return runner
}

// TestGT10_GcloudsMachineIsLeftAlone: what a person makes with gcloud in the same project is never touched, and that program
// shows the operator's machines as what they are.
func TestGT10_GcloudsMachineIsLeftAlone(t *testing.T) {
	b := newBed(t)
	gcloud := func(args ...string) string {
		// It has no token, and waits by its own clock until what it asks for is done.
		b.SetToken("")
		b.SetTiming(computetest.Timing{})
		defer func() { b.SetToken(gcpToken); b.SetTiming(computetest.DefaultTiming) }()
		return computetest.Gcloud(t, b.Server, gcpProject, append([]string{"compute", "instances"}, args...)...)
	}
	gcloud("create", "by-hand", "--zone="+bedZone, "--machine-type=e2-micro", "--image-family=debian-12", "--image-project=debian-cloud", "--labels=owner=me")
	px, vm := b.running("px", pinned)

	if got := gcloud("list", "--filter=labels.egress-proxy-class="+b.class.Name, "--format=value(name,status,networkInterfaces[0].accessConfigs[0].natIP)"); got != vm.Name+"\tRUNNING\t"+vm.NatIP {
		t.Errorf("gcloud lists %q", got)
	}
	if got := gcloud("describe", vm.Name, "--zone="+bedZone, "--format=value(labels.egress-proxy-uid,tags.items[0],scheduling.provisioningModel)"); got != string(px.UID)+"\tegress-proxy\tSTANDARD" {
		t.Errorf("gcloud describes %q", got)
	}

	b.must(b.client.Patch(t.Context(), b.get(px), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))))
	b.must(b.client.Delete(t.Context(), b.get(px)))
	runner := b.collector()
	other, _ := b.running("other")
	for range 4 {
		b.must(runner.SweepAll(t.Context()))
		b.pass(orphangc.DefaultPeriod)
	}
	if _, ok := b.VM(gcpProject, bedZone, vm.Name); ok {
		t.Error("the machine without a Proxy was not collected")
	}
	byHand, ok := b.VM(gcpProject, bedZone, "by-hand")
	if !ok || byHand.Deleting || byHand.Status != "RUNNING" || b.vmOf(other) == nil {
		t.Errorf("left are %+v", b.VMs())
	}
}
