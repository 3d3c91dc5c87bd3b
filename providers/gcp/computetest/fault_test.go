package computetest

import (
	"net/http"
	"testing"
	"time"
)

// TestFaults: which calls fail, how often, and whether they took effect.
func TestFaults(t *testing.T) {
	c := newClient(t, Options{})
	restore := c.s.Fail(Fault{Call: Insert, Zone: zoneA, Name: "px-2", Skip: 1, Times: 1, Answer: BackendError(http.StatusServiceUnavailable).Retry(7)})
	c.create(zoneA, "px-1")
	c.create(zoneB, "px-2")
	c.create(zoneA, "px-2")
	code, answer := c.insert(zoneA, asked(zoneA, "px-2"), "")
	wants(t, "after one that passed", code, answer, http.StatusServiceUnavailable, "backendError")
	code, answer = c.insert(zoneA, asked(zoneA, "px-2"), "")
	wants(t, "when it is used up", code, answer, http.StatusConflict, "alreadyExists")
	restore()
	restore()

	for name, f := range map[string]Fault{
		"answer": {Call: Insert, Answer: BackendError(500), Commit: true}, "drop": {Call: Insert, Drop: true, Commit: true}, "nothing": {Call: Insert, Drop: true},
	} {
		restore := c.s.Fail(f)
		code, _ := c.insert(zoneA, asked(zoneA, "px-"+name), "")
		restore()
		if _, there := c.s.VM(project, zoneA, "px-"+name); there != f.Commit || (f.Drop && code != 0) {
			t.Errorf("%s: answer %d, VM there: %t", name, code, there)
		}
	}
}

// TestHang: until the client gives up or the fault is taken back; other calls go on.
func TestHang(t *testing.T) {
	c := newClient(t, Options{})
	c.create(zoneA, "px-1")
	restore := c.s.Fail(Fault{Call: AggregatedList, Hang: true})
	ended := make(chan int)
	go func() {
		code, _ := c.do(http.MethodGet, "aggregated/instances", nil, nil)
		ended <- code
	}()
	waitFor(t, func() bool { return c.s.Count(AggregatedList) == 1 })
	if code, _ := c.get(zoneA, "px-1"); code != http.StatusOK {
		t.Errorf("another call meanwhile: %d", code)
	}
	restore()
	if code := <-ended; code != 0 {
		t.Errorf("the hanging call was answered with %d", code)
	}
	c.s.Fail(Fault{Call: Get, Hang: true})
	c.http.Timeout = 20 * time.Millisecond
	if code, _ := c.get(zoneA, "px-1"); code != 0 {
		t.Errorf("a call with a time limit was answered with %d", code)
	}
}

// waitFor waits for what another goroutine does.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for range 10000 {
		if holds() {
			return
		}
		<-ticker.C
	}
	t.Fatal("not within ten seconds")
}

// TestTokens: a call needs the token of the moment.
func TestTokens(t *testing.T) {
	c := newClient(t, Options{Token: "good"})
	code, answer := c.get(zoneA, "px-1")
	wants(t, "no token", code, answer, http.StatusUnauthorized, "authError")
	c.token = "good"
	code, answer = c.get(zoneA, "px-1")
	wants(t, "the right one", code, answer, http.StatusNotFound, "notFound")
	c.s.SetToken("newer")
	code, answer = c.get(zoneA, "px-1")
	wants(t, "revoked", code, answer, http.StatusUnauthorized, "authError")
}

// TestProjects: a project that is not there has nothing.
func TestProjects(t *testing.T) {
	c := newClient(t, Options{Projects: []string{"another-project"}})
	code, answer := c.do(http.MethodGet, "aggregated/instances", nil, nil)
	wants(t, "list", code, answer, http.StatusNotFound, "notFound")
}

// TestErrorTexts: the two meanings of an exceeded quota differ in reason, not in status.
func TestErrorTexts(t *testing.T) {
	c := newClient(t, Options{})
	for want, answer := range map[string]*ErrorAnswer{
		"quotaExceeded": QuotaExceeded("IN_USE_ADDRESSES", "europe-west3"), "rateLimitExceeded": RateQuotaExceeded(), "forbidden": Forbidden("compute.instances.create", project),
		"accessNotConfigured": APIDisabled(project),
	} {
		restore := c.s.Fail(Fault{Call: Insert, Answer: answer})
		code, got := c.insert(zoneA, asked(zoneA, "px-1"), "")
		wants(t, want, code, got, http.StatusForbidden, want)
		inner := got["error"].(obj)
		if details, _ := inner["details"].([]any); (len(details) == 1) != (answer.ErrorInfo != "") || (inner["status"] == "PERMISSION_DENIED") != (answer.ErrorInfo != "") {
			t.Errorf("%s: the newer form is there or lacks something: %v", want, inner)
		}
		restore()
	}
}
