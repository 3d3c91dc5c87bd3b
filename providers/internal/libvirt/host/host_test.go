package host_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
	testingclock "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// TestV8_FiftyCallersDialOnceAndKeepToTheLimit: also those who come when the connection was just lost.
func TestV8_FiftyCallersDialOnceAndKeepToTheLimit(t *testing.T) {
	rig := libvirttest.Start(t, 1)[0]
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	h, credentials := connect(t, rig, host.Options{})
	rig.Frames.Reset()
	var inside, most atomic.Int64
	storm := func() (failed int64) {
		var wg sync.WaitGroup
		var count atomic.Int64
		for range 50 {
			wg.Go(func() {
				err := h.Do(t.Context(), func(c *rpc.Conn) error {
					now := inside.Add(1)
					defer inside.Add(-1)
					for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
					}
					_, err := c.Domains(t.Context())
					return err
				})
				if err != nil {
					count.Add(1)
				}
			})
		}
		wg.Wait()
		return count.Load()
	}
	if failed := storm(); failed > 0 {
		t.Errorf("%d calls failed", failed)
	}
	if dials, reads := rig.Link.Opened(), credentials.reads.Load(); dials != 1 || reads != 1 {
		t.Errorf("%d dials, and credentials were read %d times, want 1", dials, reads)
	}
	if most.Load() > host.MaxCalls || rig.Frames.MostInFlight() > host.MaxCalls {
		t.Errorf("%d callers and %d calls at once, want at most %d", most.Load(), rig.Frames.MostInFlight(), host.MaxCalls)
	}
	rig.Link.Cut()
	libvirttest.Await(t, func() error {
		if _, err := h.State(); err == nil {
			return errors.New("the loss is not seen")
		}
		return nil
	})
	if failed := storm(); failed > 0 {
		t.Errorf("%d calls failed after a loss that was known", failed)
	}
	if dials := rig.Link.Opened(); dials != 2 {
		t.Errorf("%d dials, want 2", dials)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	noneLeft(t, rig)
	if err := ask(t, h); !errors.Is(err, host.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestHostThatIsDownIsAskedWithGrowingPauses: in between callers are told the cause at once.
func TestHostThatIsDownIsAskedWithGrowingPauses(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	clock := testingclock.NewFakeClock(time.Now())
	cause := errors.New("no credentials")
	reads := 0
	h := host.New(host.Config{Name: "h1"}, func(context.Context) (sshdial.Auth, error) {
		reads++
		return sshdial.Auth{}, cause
	}, host.Options{Clock: clock})
	defer func() { _ = h.Close() }()
	if checked, err := h.State(); checked || err != nil {
		t.Errorf("before any call: %v, %v", checked, err)
	}
	for attempt := range 10 {
		if err := ask(t, h); !errors.Is(err, cause) || reads != attempt+1 {
			t.Fatalf("attempt %d: %v after %d dials", attempt, err, reads)
		}
		if checked, err := h.State(); !checked || !errors.Is(err, cause) {
			t.Errorf("state %v, %v", checked, err)
		}
		pause := min(host.MinBackoff<<attempt, host.MaxBackoff)
		// A quarter less, for those that went down together.
		clock.Step(pause*3/4 - time.Millisecond)
		if err := ask(t, h); !errors.Is(err, cause) || reads != attempt+1 {
			t.Errorf("in the pause after attempt %d: %v, %d dials", attempt, err, reads)
		}
		if _, err := h.Dedicated(t.Context()); !errors.Is(err, cause) || reads != attempt+1 {
			t.Errorf("dedicated, in the pause after attempt %d: %v, %d dials", attempt, err, reads)
		}
		clock.Step(pause/4 + time.Millisecond)
	}
}

// TestAnotherMachineUnderTheNameIsAnError: nothing it says is believed.
func TestAnotherMachineUnderTheNameIsAnError(t *testing.T) {
	rig := libvirttest.Start(t, 1)[0]
	clock := testingclock.NewFakeClock(time.Now())
	h, _ := connect(t, rig, host.Options{Clock: clock})
	first := uuid.NewString()
	rig.Frames.Identify(first)
	if err := ask(t, h); err != nil || h.UUID() != first {
		t.Fatalf("%v, UUID %q", err, h.UUID())
	}
	rig.Frames.Identify(uuid.NewString())
	rig.Link.Cut()
	libvirttest.Await(t, func() error {
		if err := ask(t, h); !errors.Is(err, host.ErrOtherMachine) {
			return errors.Join(errors.New("not told as another machine"), err)
		}
		return nil
	})
	if _, err := h.State(); !errors.Is(err, host.ErrOtherMachine) || h.UUID() != first {
		t.Errorf("state %v, UUID %q", err, h.UUID())
	}
	clock.Step(host.MaxBackoff)
	if _, err := h.Dedicated(t.Context()); !errors.Is(err, host.ErrOtherMachine) {
		t.Errorf("dedicated: %v", err)
	}
	rig.Frames.Identify(first)
	clock.Step(host.MaxBackoff)
	if err := ask(t, h); err != nil {
		t.Errorf("the first machine again: %v", err)
	}
}

// TestDedicatedConnectionsAreApart: one that is stuck or ends leaves the shared one alone.
func TestDedicatedConnectionsAreApart(t *testing.T) {
	rig := libvirttest.Start(t, 1)[0]
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	h, _ := connect(t, rig, host.Options{})
	if err := ask(t, h); err != nil {
		t.Fatal(err)
	}
	own, err := h.Dedicated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kept, err := h.Dedicated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rig.Link.Opened() != 3 {
		t.Errorf("%d connections, want 3", rig.Link.Opened())
	}
	own.Abort(errors.New("stuck"))
	if err := ask(t, h); err != nil || rig.Link.Opened() != 3 {
		t.Errorf("%v, %d connections", err, rig.Link.Opened())
	}
	if err := h.Close(); err != nil || !kept.Lost() {
		t.Errorf("%v; the caller's own is lost: %v", err, kept.Lost())
	}
	noneLeft(t, rig)
}

// TestCallerWhoGivesUpDoesNotEndTheDialOfTheOthers: the dial belongs to all who wait for it.
func TestCallerWhoGivesUpDoesNotEndTheDialOfTheOthers(t *testing.T) {
	rig := libvirttest.Start(t, 1)[0]
	h, _ := connect(t, rig, host.Options{})
	rig.Link.Stall()
	ctx, cancel := context.WithCancel(t.Context())
	impatient := make(chan error, 1)
	go func() { impatient <- h.Do(ctx, func(*rpc.Conn) error { return nil }) }()
	libvirttest.Await(t, func() error {
		if rig.Link.Opened() == 0 {
			return errors.New("not dialled yet")
		}
		return nil
	})
	patient := make(chan error, 1)
	go func() { patient <- ask(t, h) }()
	cancel()
	if err := <-impatient; !errors.Is(err, context.Canceled) {
		t.Errorf("the impatient: %v", err)
	}
	rig.Link.Resume()
	if err := <-patient; err != nil || rig.Link.Opened() != 1 {
		t.Errorf("the patient: %v, %d dials", err, rig.Link.Opened())
	}
}
