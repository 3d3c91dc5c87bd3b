package host_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	testingclock "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// watched is a Host with its watchdog, on a clock of the test's.
func watched(t *testing.T, rig *libvirttest.Host) (*host.Host, *credentials, *testingclock.FakeClock) {
	t.Helper()
	clock := testingclock.NewFakeClock(time.Now())
	h, credentials := connect(t, rig, host.Options{Clock: clock})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	libvirttest.Await(t, func() error {
		if !clock.HasWaiters() {
			return errors.New("the watchdog does not wait yet")
		}
		return nil
	})
	return h, credentials, clock
}

// TestV6_EveryCallEndsInTimeWhenTheFarSideStalls: the network drops all, or libvirtd hangs behind an sshd that is
// fine. The watchdog frees the callers long before their calls' own limits. Nothing is left behind.
func TestV6_EveryCallEndsInTimeWhenTheFarSideStalls(t *testing.T) {
	for name, test := range map[string]struct {
		stall, resume func(*libvirttest.Host)
	}{
		"network":  {func(r *libvirttest.Host) { r.Link.Stall() }, func(r *libvirttest.Host) { r.Link.Resume() }},
		"libvirtd": {func(r *libvirttest.Host) { r.Libvirtd.Freeze() }, func(r *libvirttest.Host) { r.Libvirtd.Thaw() }},
	} {
		t.Run(name, func(t *testing.T) {
			rig := libvirttest.Start(t, 1)[0]
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			t.Run("stall", func(t *testing.T) {
				h, _, clock := watched(t, rig)
				if err := ask(t, h); err != nil {
					t.Fatal(err)
				}
				test.stall(rig)
				var stuck sync.WaitGroup
				var under atomic.Int64
				for range host.MaxCalls {
					stuck.Go(func() {
						err := h.Do(t.Context(), func(c *rpc.Conn) error {
							under.Add(1)
							_, err := c.Domains(t.Context())
							return err
						})
						if err == nil {
							t.Error("a call was answered")
						}
					})
				}
				libvirttest.Await(t, func() error {
					if under.Load() < host.MaxCalls {
						return errors.New("no calls under way")
					}
					return nil
				})
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					stuck.Wait()
				}()
				start := time.Now()
				libvirttest.Await(t, func() error {
					select {
					case <-ended:
						return nil
					default:
						// The look's own limit is on the same clock.
						clock.Step(time.Second)
						return errors.New("there are calls that have not ended")
					}
				})
				// On the machine's clock, where each call has its own, far longer limit.
				if took := time.Since(start); took > rpc.DefaultCallTimeout/2 {
					t.Errorf("the last call ended after %v", took)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if err := h.Do(ctx, func(*rpc.Conn) error { return nil }); err == nil {
					t.Error("there is a connection to what is stalled")
				}
				test.resume(rig)
				libvirttest.Await(t, func() error {
					err := ask(t, h)
					if err != nil {
						clock.Step(host.MaxBackoff)
					}
					return err
				})
				if err := h.Close(); err != nil {
					t.Error(err)
				}
				noneLeft(t, rig)
			})
		})
	}
}

// TestDaemonsRestartUnderAFleet: the operator dials again by itself, and the machines are as they were.
func TestDaemonsRestartUnderAFleet(t *testing.T) {
	rig := libvirttest.Start(t, 1)[0]
	h, _, clock := watched(t, rig)
	fleet := func() (n int, err error) {
		err = h.Do(t.Context(), func(c *rpc.Conn) error {
			domains, err := c.Domains(t.Context())
			n = len(domains)
			return err
		})
		return n, err
	}
	// back waits for the watchdog's dial.
	back := func(after string, dials, want int) {
		t.Helper()
		libvirttest.Await(t, func() error {
			if rig.Link.Opened() <= dials {
				// Only until it dials: the limit of its next look is on the same clock.
				clock.Step(host.WatchPeriod)
				return fmt.Errorf("after %s: not dialled again", after)
			}
			_, err := h.State()
			return err
		})
		if n, err := fleet(); err != nil || n != want {
			t.Errorf("after %s: %d machines, %v, want %d", after, n, err, want)
		}
	}
	err := h.Do(t.Context(), func(c *rpc.Conn) error {
		for i := range 5 {
			if _, err := c.DomainDefine(t.Context(), fmt.Sprintf("<domain type='test'><name>px-%d</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>", i)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	before, err := fleet()
	if err != nil || before != 6 {
		t.Fatalf("%d machines, %v", before, err)
	}
	// sshd restarts: its sessions go on. Nothing is noticed.
	rig.SSHD.Restart(t)
	if n, err := fleet(); err != nil || n != before || rig.Link.Opened() != 1 {
		t.Errorf("after a restart of sshd: %d machines, %v, %d dials", n, err, rig.Link.Opened())
	}
	// sshd is away and takes its sessions with it.
	rig.SSHD.Kill()
	rig.Link.Cut()
	libvirttest.Await(t, func() error {
		if _, err := fleet(); sshdial.KindOf(err) != sshdial.Unreachable {
			return errors.Join(errors.New("sshd is gone, but this was the answer"), err)
		}
		return nil
	})
	dials := rig.Link.Opened()
	rig.SSHD.Start(t)
	back("a restart of sshd with its sessions", dials, before)
	// The same seen from libvirt: the connection breaks under sshd.
	dials = rig.Link.Opened()
	rig.Frames.Cut()
	back("a break behind sshd", dials, before)
	// A restart of libvirtd. The test driver forgets its machines with it, unlike real ones.
	rig.Libvirtd.Kill()
	libvirttest.Await(t, func() error {
		if _, err := fleet(); err == nil {
			return errors.New("it answers without libvirtd")
		}
		return nil
	})
	rig.Libvirtd.Start(t)
	dials = rig.Link.Opened()
	back("a restart of libvirtd", dials, 1)
}

// TestV34_CredentialsChangeUnderThreeHostsInUse: a new key of the operator's and new keys of the hosts'. No call may fail but
// those that are under way when a connection is cut.
func TestV34_CredentialsChangeUnderThreeHostsInUse(t *testing.T) {
	rigs := libvirttest.Start(t, 3)
	key := libvirttest.NewKey(t, libvirttest.ED25519)
	var wg sync.WaitGroup
	for _, rig := range rigs {
		wg.Go(func() {
			h, credentials := connect(t, rig, host.Options{})
			stop := make(chan struct{})
			var calls, lost, unexpected atomic.Int64
			var users sync.WaitGroup
			for range host.MaxCalls {
				users.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						err := ask(t, h)
						calls.Add(1)
						if rpc.IsLost(err) {
							lost.Add(1)
						} else if err != nil {
							unexpected.Add(1)
							t.Errorf("%s: %v", rig.Name, err)
						}
					}
				})
			}
			some := func() {
				until := calls.Load() + 50
				libvirttest.Await(t, func() error {
					if calls.Load() < until && unexpected.Load() == 0 {
						return errors.New("too few calls")
					}
					return nil
				})
			}
			some()
			// Both keys are good for a while, as one rotates keys.
			rig.Authorize(t, rig.Key.AuthorizedKey(libvirttest.SafeOptions), key.AuthorizedKey(libvirttest.SafeOptions))
			credentials.set(sshdial.Auth{Key: key.Private, KnownHosts: rig.KnownHosts()})
			some()
			rig.Authorize(t, key.AuthorizedKey(libvirttest.SafeOptions))
			some()
			if rig.Link.Opened() != 1 {
				t.Errorf("%s: %d dials for a change of the key", rig.Name, rig.Link.Opened())
			}
			if lost.Load() > 0 {
				t.Errorf("%s: %d calls were lost to a change of the key", rig.Name, lost.Load())
			}
			rig.Link.Cut()
			some()
			// The host's keys: known_hosts has old and new while they change.
			old := rig.KnownHosts()
			rig.WriteHostKeys(t, libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ECDSA))
			credentials.set(sshdial.Auth{Key: key.Private, KnownHosts: append(old, rig.KnownHosts()...)})
			rig.SSHD.Restart(t)
			rig.Link.Cut()
			some()
			close(stop)
			users.Wait()
			// Two cuts, and what is under way is at most a call of each user.
			if lost.Load() > 2*host.MaxCalls {
				t.Errorf("%s: %d calls were lost to two cuts", rig.Name, lost.Load())
			}
			if credentials.reads.Load() != int64(rig.Link.Opened()) {
				t.Errorf("%s: credentials were read %d times for %d dials", rig.Name, credentials.reads.Load(), rig.Link.Opened())
			}
		})
	}
	wg.Wait()
}
