package instance

import (
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// The instances are made and stay out of sight for five minutes. Whatever asks for them again meets their names.
func TestT2_InstancesThatAreLongInvisibleAreMadeOnceEach(t *testing.T) {
	s := newBed(t, fake.Behaviour{Visible: 5 * time.Minute})
	names := []string{"a", "b", "c"}
	for _, name := range names {
		s.running(name)
	}
	s.wantInstances(len(names))
	if n := s.cloud.Count(fake.MethodDelete); n != 0 {
		t.Errorf("%d deletions", n)
	}
}

// The cloud tells nobody of what happens in it.
func TestT32_AnInstanceThatSomebodyDeletesIsMadeAnew(t *testing.T) {
	s := newBed(t, fake.Behaviour{Wakes: false})
	px := s.running("px")
	s.run(px, 3*time.Hour, nil)
	lost := px.Status.Instance
	s.cloud.Remove(lost.Name)
	s.run(px, time.Hour, func() bool { return s.provisioned(px)() && s.get(px).Status.Instance.ID != lost.ID })
	if now := s.get(px).Status.Instance; now.Name != lost.Name || len(now.Addresses) != 1 || s.cloud.Count(fake.MethodDelete) != 0 {
		t.Errorf("got %+v instead of %+v, after %d deletions", now, lost, s.cloud.Count(fake.MethodDelete))
	}
	s.wantInstances(1)
}
