package computetest

import (
	"net/http"
	"slices"
	"testing"
	"time"
)

// TestLifeOfAVM: PROVISIONING, STAGING, RUNNING without an address, RUNNING with one, STOPPING, gone.
func TestLifeOfAVM(t *testing.T) {
	var running, gone []string
	c := newClient(t, Options{Hooks: Hooks{
		OnRunning: func(v VM) string { running = append(running, v.Name); return "127.0.0.7" },
		OnGone:    func(v VM) { gone = append(gone, v.NatIP) },
	}})
	inserted := c.create(zoneA, "px-1")
	want := func(status, address string) {
		t.Helper()
		code, got := c.get(zoneA, "px-1")
		if code != http.StatusOK || got["status"] != status || natIP(got) != address {
			t.Fatalf("got %d %v with address %q, want %s with %q", code, got["status"], natIP(got), status, address)
		}
	}
	want("PROVISIONING", "")
	c.clock.Step(DefaultTiming.Staging)
	want("STAGING", "")
	if got := c.operation(zoneA, inserted); got["status"] != "RUNNING" {
		t.Errorf("the operation is %v while the VM is staging", got["status"])
	}
	c.clock.Step(DefaultTiming.Running - DefaultTiming.Staging)
	want("RUNNING", "")
	if got := c.operation(zoneA, inserted); got["status"] != "DONE" || got["error"] != nil {
		t.Errorf("the operation is %v", got)
	}
	c.clock.Step(DefaultTiming.Address - DefaultTiming.Running)
	want("RUNNING", "127.0.0.7")
	if code, deleted := c.delete(zoneA, "px-1", ""); code != http.StatusOK || deleted["operationType"] != "delete" {
		t.Fatalf("delete: %d %v", code, deleted)
	}
	want("STOPPING", "127.0.0.7")
	code, answer := c.delete(zoneA, "px-1", "")
	wants(t, "a second delete", code, answer, http.StatusForbidden, "rateLimitExceeded")
	code, answer = c.insert(zoneA, asked(zoneA, "px-1"), "")
	wants(t, "an insert while it stops", code, answer, http.StatusConflict, "alreadyExists")
	c.clock.Step(DefaultTiming.Delete)
	code, answer = c.get(zoneA, "px-1")
	wants(t, "a get at the end", code, answer, http.StatusNotFound, "notFound")
	code, answer = c.delete(zoneA, "px-1", "")
	wants(t, "a delete at the end", code, answer, http.StatusNotFound, "notFound")
	if len(running) != 1 || len(gone) != 1 || gone[0] != "127.0.0.7" {
		t.Errorf("hooks: running %q, gone %q", running, gone)
	}
}

// TestVisibilityDelay: a get soon after the insert may find nothing, and the name is taken all the same.
func TestVisibilityDelay(t *testing.T) {
	c := newClient(t, Options{Timing: &Timing{Visible: time.Second, Running: 2 * time.Second}})
	c.create(zoneA, "px-1")
	code, answer := c.get(zoneA, "px-1")
	wants(t, "a get too soon", code, answer, http.StatusNotFound, "notFound")
	code, answer = c.insert(zoneA, asked(zoneA, "px-1"), "")
	wants(t, "the same name", code, answer, http.StatusConflict, "alreadyExists")
	c.clock.Step(time.Second)
	if code, _ := c.get(zoneA, "px-1"); code != http.StatusOK {
		t.Errorf("a get after the delay: %d", code)
	}
}

// TestPreemption: as the VM's termination action says; a stopped VM keeps its name and loses its address.
func TestPreemption(t *testing.T) {
	for action, want := range map[string]string{"STOP": "TERMINATED", "DELETE": "STOPPING", "": "TERMINATED"} {
		var gone int
		c := newClient(t, Options{Timing: &Timing{Delete: time.Second}, Hooks: Hooks{OnGone: func(VM) { gone++ }}})
		body := asked(zoneA, "px-1")
		scheduling := obj{"provisioningModel": "SPOT"}
		if action != "" {
			scheduling["instanceTerminationAction"] = action
		}
		body["scheduling"] = scheduling
		c.insert(zoneA, body, "")
		if !c.s.Preempt(project, zoneA, "px-1") {
			t.Fatal("there is no VM to preempt")
		}
		if code, got := c.get(zoneA, "px-1"); code != http.StatusOK || got["status"] != want || (natIP(got) != "") != (want == "STOPPING") {
			t.Errorf("%q: got %d %v with address %q", action, code, got["status"], natIP(got))
		}
		c.clock.Step(time.Second)
		code, answer := c.get(zoneA, "px-1")
		if action == "DELETE" {
			wants(t, "afterwards", code, answer, http.StatusNotFound, "notFound")
		} else if answer["status"] != "TERMINATED" {
			t.Errorf("%q: afterwards %d %v", action, code, answer["status"])
		}
		if gone != 1 {
			t.Errorf("%q: OnGone was called %d times", action, gone)
		}
	}
}

// TestStates: every state of the document and one that nobody knows; only a VM that runs keeps its address.
func TestStates(t *testing.T) {
	c := newClient(t, Options{Timing: &Timing{}})
	c.create(zoneA, "px-1")
	states := c.s.doc.Schemas["Instance"].Properties["status"].Enum
	if len(states) < 10 {
		t.Fatalf("the document knows %q", states)
	}
	for _, state := range append(slices.Clip(states), "HIBERNATING") {
		c.s.SetStatus(project, zoneA, "px-1", "")
		c.s.SetStatus(project, zoneA, "px-1", state)
		_, got := c.get(zoneA, "px-1")
		keeps := state == "RUNNING" || state == "STOPPING" || state == "PENDING_STOP" || state == "HIBERNATING"
		if got["status"] != state || (natIP(got) != "") != keeps {
			t.Errorf("%s: got %v with address %q", state, got["status"], natIP(got))
		}
	}
	if c.s.SetStatus(project, zoneA, "px-2", "RUNNING") {
		t.Error("a VM that is not there got a state")
	}
}

// TestMaxRunDuration: the VM ends by itself.
func TestMaxRunDuration(t *testing.T) {
	c := newClient(t, Options{Timing: &Timing{Running: time.Second, Delete: time.Second}})
	body := asked(zoneA, "px-1")
	body["scheduling"] = obj{"maxRunDuration": obj{"seconds": "60"}, "instanceTerminationAction": "DELETE"}
	if code, answer := c.insert(zoneA, body, ""); code != http.StatusOK {
		t.Fatalf("insert: %d %v", code, answer)
	}
	c.clock.Step(60 * time.Second)
	if _, got := c.get(zoneA, "px-1"); got["status"] != "RUNNING" {
		t.Errorf("before its time: %v", got["status"])
	}
	c.clock.Step(time.Second)
	if _, got := c.get(zoneA, "px-1"); got["status"] != "STOPPING" {
		t.Errorf("at its time: %v", got["status"])
	}
	c.clock.Step(time.Second)
	code, answer := c.get(zoneA, "px-1")
	wants(t, "after it", code, answer, http.StatusNotFound, "notFound")
}

// TestIPv6: external addresses of both kinds.
func TestIPv6(t *testing.T) {
	c := newClient(t, Options{Timing: &Timing{}})
	body := asked(zoneA, "px-1")
	body["networkInterfaces"] = []any{obj{"subnetwork": "regions/europe-west3/subnetworks/s", "stackType": "IPV4_IPV6", "ipv6AccessConfigs": []any{obj{"type": "DIRECT_IPV6"}}}}
	c.insert(zoneA, body, "")
	_, got := c.get(zoneA, "px-1")
	nic := got["networkInterfaces"].([]any)[0].(obj)
	if access := nic["ipv6AccessConfigs"].([]any)[0].(obj); text(access["externalIpv6"]) == "" || nic["accessConfigs"] != nil {
		t.Errorf("got %v", nic)
	}
}

// TestDefaultsAreFilledIn: a get shows more than the insert asked, and URLs in full.
func TestDefaultsAreFilledIn(t *testing.T) {
	c := newClient(t, Options{})
	body := asked(zoneA, "px-1")
	body["scheduling"] = obj{"provisioningModel": "SPOT"}
	c.insert(zoneA, body, "")
	_, got := c.get(zoneA, "px-1")
	scheduling := got["scheduling"].(obj)
	disk := got["disks"].([]any)[0].(obj)
	nic := got["networkInterfaces"].([]any)[0].(obj)
	for what, pair := range map[string][2]any{
		"termination action": {scheduling["instanceTerminationAction"], "STOP"}, "preemptible": {scheduling["preemptible"], true},
		"machine type": {got["machineType"], service + "projects/" + project + "/zones/" + zoneA + "/machineTypes/e2-micro"},
		"disk":         {disk["source"], service + "projects/" + project + "/zones/" + zoneA + "/disks/px-1"}, "image": {disk["initializeParams"], nil},
		"network": {nic["network"], service + "projects/" + project + "/global/networks/default"}, "created": {got["creationTimestamp"], "2026-12-01T04:00:00.000-08:00"},
		"tier": {nic["accessConfigs"].([]any)[0].(obj)["networkTier"], "PREMIUM"},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: got %v, want %v", what, pair[0], pair[1])
		}
	}
}

// TestHooksAtTheEnd: whatever stands for a VM ends with the server.
func TestHooksAtTheEnd(t *testing.T) {
	gone := 0
	t.Run("server", func(t *testing.T) {
		c := newClient(t, Options{Hooks: Hooks{OnGone: func(VM) { gone++ }}})
		c.s.Seed(Seed{Project: project, Zone: zoneA, Name: "theirs"})
	})
	if gone != 1 {
		t.Errorf("OnGone was called %d times", gone)
	}
}
