package instance

import (
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// A NotFound that was asked for early and came late is no second look: what was on its way meanwhile could be missed.
func TestAnAnswerIsAsOldAsItsQuestion(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	s.must(s.client.Delete(t.Context(), px))
	missing := func() bool { now := s.get(px); return now != nil && now.Status.Instance.MissingTime != nil }
	s.run(px, time.Hour, missing)

	s.cloud.Hook(fake.MethodGet, func(fake.Call) { s.clock.Step(2 * s.Timing.Confirm) })
	result, err := s.Reconcile(t.Context(), requestFor(px))
	s.must(err)
	if s.get(px) == nil {
		t.Fatal("released by an answer that is older than the time to confirm")
	}
	if result.RequeueAfter <= 0 || result.RequeueAfter > time.Minute {
		t.Errorf("looks again after %v", result.RequeueAfter)
	}
	s.cloud.Hook(fake.MethodGet, nil)
	s.run(px, time.Minute, s.gone(px))
}
