package instance

import (
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// Some clouds accept an instance and say only later, in an operation, that nothing comes of it. A provider that can look
// that up spares the time in which an attempt without an answer settles.

// TestEnded_AnotherPlaceAtOnce: whether the instance was seen meanwhile or not.
func TestEnded_AnotherPlaceAtOnce(t *testing.T) {
	for name, visible := range map[string]time.Duration{"it was seen": 0, "it was never seen": time.Minute} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, fake.Behaviour{Start: time.Minute, Visible: visible, Operations: true, Zones: []string{"a", "b"}})
			px := s.proxy("px")
			s.run(px, time.Minute, func() bool { return len(s.cloud.Instances()) == 1 })
			if visible == 0 {
				s.run(px, time.Minute, func() bool { return stored(s.get(px)).ID != "" })
			}
			first, began := s.cloud.Instances()[0], s.clock.Now()
			s.cloud.End(first.Name, providers.NewError(providers.Capacity, "", "the place is full (FULL)", nil))
			s.run(px, time.Minute, func() bool { return len(s.cloud.Instances()) == 1 })
			if second := s.cloud.Instances()[0]; second.Zone == first.Zone {
				t.Errorf("it was made in %s again", second.Zone)
			}
			if took := s.clock.Since(began); took > 30*time.Second {
				t.Errorf("the other place was tried after %v", took)
			}
			s.run(px, time.Hour, s.provisioned(px))
		})
	}
}

// TestEnded_IsTold: a specification that cannot work says why, is not tried again, and works once it is another one.
func TestEnded_IsTold(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: time.Minute, Operations: true})
	px := s.proxy("px")
	s.run(px, time.Minute, func() bool { return len(s.cloud.Instances()) == 1 })
	s.cloud.End(s.cloud.Instances()[0].Name, providers.InvalidField("spec.placement.machineType", "there is none such (NONE)"))
	s.run(px, time.Hour, nil)
	provisioned := s.condition(px, v1alpha1.ConditionProvisioned)
	if provisioned.Reason != v1alpha1.ReasonInvalidSpec || provisioned.Message != "spec.placement.machineType: there is none such (NONE)" {
		t.Errorf("Provisioned is %+v", provisioned)
	}
	if n := s.cloud.Count(fake.MethodCreate); n != 1 {
		t.Errorf("tried %d times", n)
	}
	s.asks(px, 3129)
	s.run(px, time.Hour, s.provisioned(px))
}

// TestAttempt_IsAKey: the calls of one attempt have one key, other attempts another one.
func TestAttempt_IsAKey(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: time.Second})
	s.cloud.LoseReply(fake.MethodCreate, 1)
	px := s.running("px")
	keys := map[string]bool{}
	note := func() {
		request, _ := s.cloud.Request(s.cloud.Instances()[0].Name)
		keys[request.Attempt] = true
	}
	note()
	if key := attemptKey(stored(s.get(px))); !keys[key] {
		t.Errorf("another process, which reads the record, makes the key %s of %v", key, keys)
	}
	s.cloud.Remove(s.cloud.Instances()[0].Name)
	s.run(px, time.Hour, func() bool { return len(s.cloud.Instances()) == 1 })
	note()
	if len(keys) != 2 || keys[""] {
		t.Errorf("two attempts have the keys %v", keys)
	}
}
