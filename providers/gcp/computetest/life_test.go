package computetest

import (
	"net/http"
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
