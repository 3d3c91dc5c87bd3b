package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// instanceFinalizer holds a Proxy until its VM is gone.
var instanceFinalizer = v1alpha1.FinalizerInstance(v1alpha1.ProviderGCP)

// TestG2_DeletionLooksWaitsAndLooksAgain: a machine is looked at before it is deleted, one deletion is sent, a stopping machine
// is waited for, and the finalizer goes after two NotFound.
func TestG2_DeletionLooksWaitsAndLooksAgain(t *testing.T) {
	b := newBed(t)
	px, vm := b.running("px")
	b.ForgetRequests()
	b.remove(px)
	stopping := false
	b.until("it is gone", 10*time.Minute, func() bool {
		gone := b.get(px) == nil
		if gone && b.calls(computetest.Get, http.StatusNotFound) < 2 {
			t.Error("it was released before the machine was not found twice")
		}
		if left, ok := b.VM(gcpProject, vm.Zone, vm.Name); ok {
			stopping = stopping || left.Deleting
			if gone {
				t.Error("it was released although its machine is there")
			}
		}
		return gone
	})
	if n := b.Count(computetest.Delete); n != 1 || !stopping {
		t.Errorf("%d deletions; it was seen to stop: %v", n, stopping)
	}
	if first := b.Requests()[0]; first.Call != computetest.Get {
		t.Errorf("it begins with %s", first.Call)
	}
}

// TestG4_WithoutAMachineItCanBeDeleted: whatever kept it from getting one; and it can be corrected.
func TestG4_WithoutAMachineItCanBeDeleted(t *testing.T) {
	for name, fault := range map[string]computetest.Fault{
		"refused":       {Call: computetest.Insert, Answer: computetest.QuotaExceeded("CPUS", "europe-west3")},
		"not permitted": {Call: computetest.Insert, Answer: computetest.Forbidden("compute.instances.create", gcpProject)},
		"never sent":    {Call: computetest.Insert, Drop: true},
		"stock-out":     {Call: computetest.Insert, Operation: computetest.Stockout(bedZone)},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.Fail(fault)
			px := b.proxy("px", pinned)
			b.pass(10 * time.Minute)
			if now := b.get(px); now.Status.Instance != nil && now.Status.Instance.ProviderID != "" {
				t.Errorf("it has a machine: %+v", now.Status.Instance)
			}
			b.remove(px)
			b.until("it is gone", 10*time.Minute, b.gone(px))
			if n := b.Count(computetest.Delete); n != 0 {
				t.Errorf("%d deletions of nothing", n)
			}
		})
	}
	for name, answer := range map[string]func(string) *computetest.ErrorAnswer{"unknown zone": computetest.UnknownZone, "no location": computetest.NoLocation} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.SetUnknownZone(answer)
			elsewhere := func(px *v1alpha1.Proxy) { px.Spec.Placement.Zone = "europe-west9-z" }
			px, other := b.proxy("px", elsewhere), b.proxy("other", elsewhere)
			b.pass(5 * time.Minute)
			if c := b.says(px, v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(c.Message, "spec.placement.zone") {
				t.Errorf("it says %+v", c)
			}
			b.remove(other)
			b.until("it is gone", 10*time.Minute, b.gone(other))
			b.change(px, pinned)
			b.until("the corrected one runs", 10*time.Minute, b.provisioned(px))
		})
	}
}

// TestG11_FailedLookEndsTheAttempt: nothing is inserted as long as nobody can say what there is.
func TestG11_FailedLookEndsTheAttempt(t *testing.T) {
	b := newBed(t)
	old, vm := b.running("old")
	before := b.Count(computetest.Insert)
	restore := []func(){
		b.Fail(computetest.Fault{Call: computetest.AggregatedList, Answer: computetest.BackendError(http.StatusServiceUnavailable)}),
		b.Fail(computetest.Fault{Call: computetest.Get, Answer: computetest.BackendError(http.StatusServiceUnavailable)}),
	}
	b.Remove(gcpProject, vm.Zone, vm.Name)
	fresh := b.proxy("fresh")
	b.wake(old)
	b.pass(time.Hour)
	if n := b.Count(computetest.Insert) - before; n != 0 {
		t.Errorf("%d inserts although every look fails", n)
	}
	if finalizers := b.get(fresh).Finalizers; len(finalizers) != 0 {
		t.Errorf("finalizers %v on a Proxy that has nothing", finalizers)
	}
	for _, f := range restore {
		f()
	}
	b.until("both run", 20*time.Minute, b.provisioned(old, fresh))
	if n := b.Count(computetest.Insert) - before; n != 2 {
		t.Errorf("%d inserts for two machines", n)
	}
}

// TestT9_G12_G23_DeadMachinesGiveWay: a machine that has stopped, was preempted, is suspended or has vanished is replaced by a new incarnation
// with an address of its own. None is started again: the server knows no such call and would fail the test.
func TestT9_G12_G23_DeadMachinesGiveWay(t *testing.T) {
	b := newBed(t)
	px, vm := b.running("px")
	addresses := map[string]bool{vm.NatIP: true}
	for _, state := range []string{"TERMINATED", "STOPPED", "preempted", "SUSPENDED", "SUSPENDING", ""} {
		deletions := b.Count(computetest.Delete)
		switch state {
		case "":
			b.Remove(gcpProject, vm.Zone, vm.Name)
			deletions--
		case "preempted":
			b.Preempt(gcpProject, vm.Zone, vm.Name)
			if left, ok := b.VM(gcpProject, vm.Zone, vm.Name); !ok || left.Status != "TERMINATED" {
				t.Errorf("the preempted machine is %q, and not there as a stopped one", left.Status)
			}
		default:
			b.SetStatus(gcpProject, vm.Zone, vm.Name, state)
		}
		published := false
		b.until("there is another machine after "+state, 20*time.Minute, func() bool {
			now := b.vmOf(px)
			i := b.get(px).Status.Instance
			published = published || (now != nil && now.ID != vm.ID && i.ID == fmt.Sprint(vm.ID) && len(i.Addresses) > 0)
			return now != nil && now.ID != vm.ID && b.provisioned(px)()
		})
		if published {
			t.Errorf("%s: the address of the old machine stands beside the new one", state)
		}
		if n := b.Count(computetest.Delete) - deletions; n != 1 {
			t.Errorf("%s: %d deletions, want 1", state, n)
		}
		vm = *b.vmOf(px)
		if addresses[vm.NatIP] {
			t.Errorf("%s: the address %s came back", state, vm.NatIP)
		}
		addresses[vm.NatIP] = true
		b.pass(time.Hour)
	}
}

// TestG14_QuotaThatIsRaised is noticed, and a changed specification is tried at once.
func TestG14_QuotaThatIsRaised(t *testing.T) {
	b := newBed(t)
	b.SetQuota("europe-west3", 0)
	px := b.proxy("px", pinned)
	b.pass(2 * time.Hour)
	if c := b.says(px, v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonWaitingForCapacity || !strings.Contains(c.Message, "INSTANCES") {
		t.Errorf("it says %+v", c)
	}
	before, now := b.Count(computetest.Insert), b.clock.Now()
	b.change(px, func(px *v1alpha1.Proxy) { px.Spec.Placement.MachineType = "e2-small" })
	b.until("the change is tried", time.Second, func() bool { return b.Count(computetest.Insert) > before })
	if !b.clock.Now().Equal(now) {
		t.Errorf("it was tried after %v", b.clock.Since(now))
	}
	b.pass(2 * time.Hour)
	b.SetQuota("europe-west3", -1)
	b.until("it runs", 15*time.Minute, b.provisioned(px))
}

// TestG15_FinalizerAndIntentComeFirst: before the insert both are stored, and where they cannot be stored nothing is inserted.
func TestG15_FinalizerAndIntentComeFirst(t *testing.T) {
	b := newBed(t)
	b.restart(interceptor.NewClient(b.client, interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return errors.New("no writes today")
		},
	}))
	px := b.proxy("px")
	b.pass(10 * time.Minute)
	if n := b.Count(computetest.Insert); n != 0 {
		t.Fatalf("%d inserts without a stored intent", n)
	}
	// The manager dies in its insert: what is stored tells its successor.
	b.restart(b.client)
	restore := b.Fail(computetest.Fault{Call: computetest.Insert, Drop: true})
	b.until("it is inserted", 10*time.Minute, func() bool { return b.Count(computetest.Insert) > 0 })
	stored := b.get(px)
	if !strings.Contains(strings.Join(stored.Finalizers, " "), instanceFinalizer) || !strings.Contains(stored.Annotations[v1alpha1.AnnotationFirstIntent], string(px.UID)) {
		t.Errorf("at the insert there are the finalizers %v and the annotations %v", stored.Finalizers, stored.Annotations)
	}
	restore()
	b.restart(b.client)
	b.until("it runs", 10*time.Minute, b.provisioned(px))
}

// TestG24_UserDataIsRenderedAnew: the machine that follows a lost one has the user data of now.
func TestG24_UserDataIsRenderedAnew(t *testing.T) {
	b := newBed(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "user-data", Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}}}
	secret.Data = map[string][]byte{"x": []byte("#cloud-config\n# one\n")}
	b.must(b.client.Create(t.Context(), secret))
	px, vm := b.running("px", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: secret.Name, Key: "x"}}
	})
	if got := vm.Metadata["user-data"]; got != "#cloud-config\n# one\n" {
		t.Errorf("user data %q", got)
	}
	b.Remove(gcpProject, vm.Zone, vm.Name)
	b.until("the loss is noticed", 10*time.Minute, b.missed(px))
	secret.Data["x"] = []byte("#cloud-config\n# two\n")
	b.must(b.client.Update(t.Context(), secret))
	b.until("there is another machine", 10*time.Minute, b.provisioned(px))
	if now := b.vmOf(px); now.ID == vm.ID || now.Metadata["user-data"] != "#cloud-config\n# two\n" {
		t.Errorf("%d after %d has the user data %q", now.ID, vm.ID, now.Metadata["user-data"])
	}
}

// TestG28_RunningMachinesAreLookedAt again and again, without any event.
func TestG28_RunningMachinesAreLookedAt(t *testing.T) {
	b := newBed(t)
	px, vm := b.running("px")
	last, longest := b.clock.Now(), time.Duration(0)
	before := b.calls(computetest.Get, http.StatusOK)
	b.pass(12*time.Hour, func() {
		if n := b.calls(computetest.Get, http.StatusOK); n > before {
			longest, last, before = max(longest, b.clock.Since(last)), b.clock.Now(), n
		}
	})
	if limit := providers.DefaultSlow * 6 / 5; longest == 0 || longest > limit {
		t.Errorf("nobody looked for %v", longest)
	}
	b.Remove(gcpProject, vm.Zone, vm.Name)
	b.until("the loss is noticed", providers.DefaultSlow*6/5, b.missed(px))
}
