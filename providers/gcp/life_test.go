package gcp

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// TestGT3_G25_LifeOfAMachine through all its states, with an address that comes late.
func TestGT3_G25_LifeOfAMachine(t *testing.T) {
	r := newRig(t)
	ref := r.create(newRequest("px", zoneA))
	for _, step := range []struct {
		after     time.Duration
		state     providers.State
		addresses int
	}{
		{0, providers.StatePending, 0},               // PROVISIONING
		{3 * time.Second, providers.StatePending, 0}, // STAGING
		{8 * time.Second, providers.StatePending, 0}, // RUNNING, G25 without address
		{2 * time.Second, providers.StateRunning, 1},
	} {
		r.clock.Step(step.after)
		i, err := r.look(ref)
		if err != nil || i.State != step.state || len(i.Addresses) != step.addresses {
			t.Fatalf("after %v more: got %+v, %v; want %s with %d addresses", step.after, i, err, step.state, step.addresses)
		}
		for _, address := range i.Addresses {
			if address == "" {
				t.Error("an empty address")
			}
		}
	}
	running, _ := r.look(ref)
	for status, want := range map[string]providers.State{
		"PENDING": providers.StatePending, "PROVISIONING": providers.StatePending, "STAGING": providers.StatePending,
		"RUNNING": providers.StateRunning, "REPAIRING": providers.StateRunning, "TIME_TRAVEL": providers.StateRunning,
		"STOPPING": providers.StateTerminating, "PENDING_STOP": providers.StateTerminating, "DEPROVISIONING": providers.StateTerminating,
		"TERMINATED": providers.StateStopped, "STOPPED": providers.StateStopped, "SUSPENDING": providers.StateStopped, "SUSPENDED": providers.StateStopped,
	} {
		r.SetStatus(testProject, zoneA, ref.Name, status)
		i, err := r.look(ref)
		if err != nil || i.State != want || i.ID != running.ID || i.Owner != running.Owner || !i.CreatedAt.Equal(running.CreatedAt) {
			t.Errorf("%s: got %+v, %v; want %s", status, i, err, want)
		}
	}
}

// TestG29_UnknownStateChangesNothing: neither the state nor the address.
func TestG29_UnknownStateChangesNothing(t *testing.T) {
	r := newRig(t)
	ref := r.create(newRequest("px", zoneA))
	before := r.runs(ref)
	r.SetStatus(testProject, zoneA, ref.Name, "TIME_TRAVEL")
	after, err := r.look(ref)
	if err != nil || after.State != before.State || len(after.Addresses) != 1 || after.Addresses[0] != before.Addresses[0] {
		t.Errorf("got %+v, %v; before %+v", after, err, before)
	}
}

// TestG47_G53_IDSaysWhere: project, zone and name, and the zone of the reference decides.
func TestG47_G53_IDSaysWhere(t *testing.T) {
	r := newRig(t)
	ref := r.create(newRequest("px", zoneB))
	i := r.runs(ref)
	if want := "gce://" + testProject + "/" + zoneB + "/" + ref.Name; i.ProviderID != want || i.Zone != zoneB {
		t.Errorf("got %s in %s, want %s", i.ProviderID, i.Zone, want)
	}
	// Of another class, which names other zones, and after the status was lost.
	other := openProvider(t, r.URL, r.clock, newClass("a", func(s *v1alpha1.ProviderClassSpec) { s.GCP.Zones = []string{zoneC} }))
	lost := ref
	lost.Zone = ""
	if found, err := other.Get(t.Context(), lost); err != nil || found.ID != i.ID {
		t.Errorf("without a zone: %+v, %v", found, err)
	}
	if err := other.Delete(t.Context(), i.Ref); err != nil {
		t.Errorf("delete: %v", err)
	}
}

// TestG18_DisksGoWithTheirMachine, and one that was left over is neither an obstacle nor what the next machine starts from: it
// would have the old image.
func TestG18_DisksGoWithTheirMachine(t *testing.T) {
	r := newRig(t)
	req := newRequest("px", zoneA)
	ref := r.create(req)
	i := r.runs(ref)
	if err := r.Delete(t.Context(), i.Ref); err != nil {
		t.Fatal(err)
	}
	r.clock.Step(time.Hour)
	if _, err := r.look(ref); !providers.IsNotFound(err) || r.HasDisk(testProject, zoneA, ref.Name) {
		t.Errorf("%v; its disk is there: %v", err, r.HasDisk(testProject, zoneA, ref.Name))
	}
	first := r.disk(req)
	for _, name := range []string{ref.Name, first} {
		r.AddDisk(testProject, zoneA, name)
	}
	req.Attempt = "1700003600-1"
	r.runs(r.create(req))
	if vm, _ := r.VM(testProject, zoneA, ref.Name); vm.AttachedLeftDisk || r.disk(req) == first {
		t.Error("the machine starts from the disk that was left over")
	}
	// Names of full length leave room for disks with names of their own, each attempt another one.
	names := map[string]bool{}
	for _, length := range []int{1, 53, 54, 55, 62, 63} {
		for n := range 20 {
			req.Name, req.Attempt = "p"+strings.Repeat("x", length-1), fmt.Sprint("1700000000-", n)
			name := r.disk(req)
			if !label1035.MatchString(name) || name == req.Name || names[name] {
				t.Errorf("%q is no name for a disk of %q", name, req.Name)
			}
			names[name] = true
		}
	}
}

// disk is the name of the disk that is asked for.
func (r *rig) disk(req providers.CreateRequest) string {
	return newInsert(r.settings, req).GetInstanceResource().GetDisks()[0].GetInitializeParams().GetDiskName()
}

// TestGT7_Deletion: a machine is looked at first, a stopping one is waited for, and one call is made.
func TestGT7_Deletion(t *testing.T) {
	r := newRig(t)
	ref := r.create(newRequest("px", zoneA))
	i := r.runs(ref)
	for range 3 {
		if err := r.Delete(t.Context(), i.Ref); err != nil {
			t.Fatal(err)
		}
		if now, err := r.look(ref); err != nil || now.State != providers.StateTerminating {
			t.Fatalf("got %+v, %v", now, err)
		}
	}
	if n := r.Count(computetest.Delete); n != 1 {
		t.Errorf("%d deletions were sent", n)
	}
	r.clock.Step(time.Hour)
	if err := r.Delete(t.Context(), i.Ref); !providers.IsNotFound(err) {
		t.Errorf("delete of what is gone: %v", err)
	}

	if err := r.Delete(t.Context(), refOf(newRequest("never-was", zoneA))); !providers.IsNotFound(err) {
		t.Errorf("delete of what never was: %v", err)
	}

	t.Run("somebody was faster", func(t *testing.T) {
		r := newRig(t)
		i := r.runs(r.create(newRequest("px", zoneA)))
		restore := r.Fail(computetest.Fault{Call: computetest.Delete, Commit: true, Times: 1, Answer: computetest.RateLimitExceeded()})
		defer restore()
		if err := r.Delete(t.Context(), i.Ref); err != nil {
			t.Errorf("got %v although it is stopping", err)
		}
	})
	t.Run("it fails for good", func(t *testing.T) {
		r := newRig(t)
		i := r.runs(r.create(newRequest("px", zoneA)))
		for answer, want := range map[*computetest.ErrorAnswer]providers.Reason{
			computetest.BackendError(http.StatusServiceUnavailable): providers.Unavailable, computetest.RateLimitExceeded(): providers.RateLimited,
			computetest.Forbidden("compute.instances.delete", testProject): providers.Auth,
		} {
			restore := r.Fail(computetest.Fault{Call: computetest.Delete, Answer: answer})
			if err := r.Delete(t.Context(), i.Ref); providers.ReasonOf(err) != want {
				t.Errorf("got %v, want %s", err, want)
			}
			restore()
		}
	})
	t.Run("another incarnation takes the name in between", func(t *testing.T) {
		r := newRig(t)
		req := newRequest("px", zoneA)
		first := r.runs(r.create(req))
		r.Remove(testProject, zoneA, req.Name)
		req.Attempt = "1700003600-1"
		second := r.runs(r.create(req))
		if err := r.Delete(t.Context(), first.Ref); !providers.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
		if now, err := r.look(second.Ref); err != nil || now.State != providers.StateRunning {
			t.Errorf("the other incarnation: %+v, %v", now, err)
		}
	})
}

// TestG38_G39_G51_PreemptedIsDead: a SPOT machine that is preempted is deleted by Compute Engine, and one that has merely stopped
// counts as dead.
func TestG38_G39_G51_PreemptedIsDead(t *testing.T) {
	r := newRig(t, func(s *v1alpha1.ProviderClassSpec) { s.GCP.ProvisioningModel = modelSpot })
	var refs []providers.Ref
	for n := range 50 {
		refs = append(refs, r.create(newRequest(fmt.Sprint("px-", n), zoneA)))
	}
	r.clock.Step(time.Minute)
	for _, ref := range refs {
		r.Preempt(testProject, zoneA, ref.Name)
	}
	for _, ref := range refs {
		if i, err := r.look(ref); err != nil || i.State != providers.StateTerminating {
			t.Fatalf("got %+v, %v", i, err)
		}
	}
	r.clock.Step(time.Hour)
	for _, ref := range refs {
		if _, err := r.look(ref); !providers.IsNotFound(err) || providers.OutcomeOf(err) != "" {
			t.Fatalf("got %v", err)
		}
	}
	again := newRequest("px-0", zoneA)
	again.Attempt = "1700003600-1"
	ref := r.create(again)
	r.runs(ref)
	r.SetStatus(testProject, zoneA, ref.Name, "TERMINATED")
	if i, err := r.look(ref); err != nil || i.State != providers.StateStopped || len(i.Addresses) != 0 {
		t.Errorf("got %+v, %v", i, err)
	}
	// It is not inserted again.
	if _, err := r.Create(t.Context(), again); err != nil && !providers.IsAlreadyExists(err) {
		t.Errorf("create: %v", err)
	}
	if n := len(r.VMs()); n != 1 {
		t.Errorf("%d VMs", n)
	}
}

// TestGT4_G3_InsertsThatBreakOff: before the call, after it, and with an answer that is lost; then the same attempt again, by
// another process. There is one machine in the end.
func TestGT4_G3_InsertsThatBreakOff(t *testing.T) {
	for name, fault := range map[string]computetest.Fault{
		"never sent":            {Call: computetest.Insert, Drop: true, Times: 1},
		"sent, no answer":       {Call: computetest.Insert, Drop: true, Commit: true, Times: 1},
		"sent, a wrong answer":  {Call: computetest.Insert, Answer: computetest.BackendError(503), Commit: true, Times: 1},
		"refused once":          {Call: computetest.Insert, Answer: computetest.BackendError(503), Times: 1},
		"the look fails":        {Call: computetest.Get, Answer: computetest.BackendError(503), Times: 1},
		"nothing breaks":        {Call: computetest.Get, Skip: 1000, Drop: true},
		"the operation is lost": {Call: computetest.GetOperation, Drop: true},
	} {
		for _, key := range []string{"1700000000-1", ""} {
			t.Run(name+" "+key, func(t *testing.T) {
				r := newRig(t)
				req := newRequest("px", zoneA)
				req.Attempt = key
				restore := r.Fail(fault)
				_, first := r.Create(t.Context(), req)
				other := openProvider(t, r.URL, r.clock, newClass("a"))
				_, second := other.Create(t.Context(), req)
				if providers.ReasonOf(second) == providers.Unavailable {
					_, second = other.Create(t.Context(), req)
				}
				if second != nil && !providers.IsAlreadyExists(second) {
					t.Errorf("first %v, then %v", first, second)
				}
				if n := len(r.VMs()); n != 1 {
					t.Errorf("%d VMs", n)
				}
				restore()
				r.runs(refOf(req))
			})
		}
	}
}

// TestG33_OursIsAdopted, and what is somebody else's is a conflict.
func TestG33_OursIsAdopted(t *testing.T) {
	r := newRig(t)
	req := newRequest("px", zoneA)
	r.create(req)
	req.Attempt = "1700000060-2"
	if _, err := r.Create(t.Context(), req); !providers.IsAlreadyExists(err) {
		t.Errorf("ours: %v", err)
	}
	req.Owner.UID = "another"
	if _, err := r.Create(t.Context(), req); providers.ReasonOf(err) != providers.Conflict {
		t.Errorf("another owner's: %v", err)
	}
	// G11: who it is cannot be told while the look fails.
	defer r.Fail(computetest.Fault{Call: computetest.Get, Answer: computetest.BackendError(503)})()
	if _, err := r.Create(t.Context(), req); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("while the look fails: %v", err)
	}
}

// TestG40_FirewallsAreNotTouched, nor anything else: a whole life makes five kinds of calls.
func TestG40_FirewallsAreNotTouched(t *testing.T) {
	r := newRig(t)
	if err := r.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	ref := r.create(newRequest("px", zoneA))
	i := r.runs(ref)
	if _, err := r.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), i.Ref); err != nil {
		t.Fatal(err)
	}
	r.clock.Step(time.Hour)
	if _, err := r.look(ref); !providers.IsNotFound(err) {
		t.Fatal(err)
	}
	known := map[string]bool{
		computetest.Insert: true, computetest.Get: true, computetest.Delete: true, computetest.AggregatedList: true, computetest.GetOperation: true,
	}
	for _, request := range r.Requests() {
		if !known[request.Call] {
			t.Errorf("%s %s", request.Method, request.URI)
		}
	}
}
