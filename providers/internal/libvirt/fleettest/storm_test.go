package fleettest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

const (
	// stormProxies is how many Proxies there are, stormRounds how often something is changed and broken meanwhile.
	stormProxies = 50
	stormRounds  = 20
	// roundTime is how long each round lasts.
	roundTime = 1500 * time.Millisecond
)

// TestStormLeavesOneMachineForEachProxy: fifty Proxies on two hosts come, change and go, while calls are cut before and after
// they are carried out, are refused or get no answer, connections break, libvirtd hangs, machines are stopped and undefined by
// hand, and managers follow one another. In the end there is one machine for each Proxy with its two volumes, nothing else,
// and no owner ever had two machines that ran.
func TestStormLeavesOneMachineForEachProxy(t *testing.T) {
	for name, factory := range map[string]func() *libvirt.Factory{"kvm": kvm.NewFactory, "kvm2": kvm2.NewFactory} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			storm(t, factory())
		})
	}
}

func storm(t *testing.T, f *libvirt.Factory) {
	b := newBed(t, f, 2)
	seed := uint64(time.Now().UnixNano())
	t.Logf("the seed is %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	begin := time.Now()
	stopTwins := b.watchTwins()
	for n := range stormProxies {
		b.must(b.env.Client.Create(t.Context(), b.proxy(fmt.Sprintf("px-%02d", n))))
	}
	stop := b.start()
	made := stormProxies
	for n := range stormRounds {
		for range 3 {
			made += b.change(rng, made)
		}
		restore := b.trouble(rng)
		<-time.After(roundTime)
		restore()
		if n%5 == 4 {
			stop()
			stop = b.start()
		}
	}
	b.settle()
	for _, twins := range stopTwins() {
		t.Errorf("two machines at once: %s", twins)
	}
	if n := len(b.proxies()); n != stormProxies {
		t.Errorf("%d Proxies, want %d", n, stormProxies)
	}
	calls, downloads := 0, b.Downloads.Load()
	for _, h := range b.Hosts {
		calls += len(h.Frames.Calls())
	}
	t.Logf("settled after %s: %d machines of %d Proxies; %d calls, %d downloads", time.Since(begin).Round(time.Second), len(b.machines()), made, calls, downloads)
}

// trouble is one of the ways in which a host is not at its best, for a while.
func (b *bed) trouble(rng *rand.Rand) (restore func()) {
	h := b.Hosts[rng.IntN(len(b.Hosts))]
	switch rng.IntN(4) {
	case 0:
		h.Link.Cut()
		return func() {}
	case 1:
		h.Libvirtd.Freeze()
		return h.Libvirtd.Thaw
	}
	var mu sync.Mutex
	dice := rand.New(rand.NewPCG(rng.Uint64(), 0))
	faults := []libvirttest.Fault{
		{Action: libvirttest.CutBefore}, {Action: libvirttest.CutAfter}, {Action: libvirttest.Stall}, {Action: libvirttest.Hold},
		{Action: libvirttest.Fail, Code: rpc.InternalError, Message: "something is wrong"},
		{Action: libvirttest.Fail, Code: rpc.SystemError, Message: "cannot write: No space left on device"},
	}
	h.Frames.Decide(func(libvirttest.Call) libvirttest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if dice.IntN(20) > 0 {
			return libvirttest.Fault{}
		}
		return faults[dice.IntN(len(faults))]
	})
	return func() { h.Frames.Decide(nil) }
}

// change does something to one Proxy or its machine. It gives how many Proxies it has made.
func (b *bed) change(rng *rand.Rand, made int) int {
	b.t.Helper()
	proxies := b.proxies()
	px := &proxies[rng.IntN(len(proxies))]
	switch rng.IntN(4) {
	case 0:
		// One goes and another one comes.
		if !px.DeletionTimestamp.IsZero() {
			return 0
		}
		b.must(client.IgnoreNotFound(b.env.Client.Delete(b.t.Context(), px)))
		b.must(b.env.Client.Create(b.t.Context(), b.proxy(fmt.Sprintf("px-%02d", made))))
		return 1
	case 1:
		patch := client.MergeFrom(px.DeepCopy())
		px.Spec.Port = int32(3128 + rng.IntN(100))
		b.must(client.IgnoreNotFound(b.env.Client.Patch(b.t.Context(), px, patch)))
	case 2:
		b.byHand(rng)
	}
	return 0
}

// byHand stops a machine, or has libvirt forget it, as a person at the host may.
func (b *bed) byHand(rng *rand.Rand) {
	machines := b.machines()
	if len(machines) == 0 {
		return
	}
	m := machines[rng.IntN(len(machines))]
	err := m.host.Conn().DomainDestroy(b.t.Context(), m.domain)
	if err == nil && rng.IntN(2) == 0 {
		err = m.host.Conn().DomainUndefine(b.t.Context(), m.domain)
	}
	if code := rpc.CodeOf(err); err != nil && code != rpc.NoDomain && code != rpc.OperationInvalid {
		b.must(err)
	}
}

// watchTwins notes machines of one owner that run beside each other.
func (b *bed) watchTwins() (stop func() []string) {
	var (
		found []string
		group sync.WaitGroup
		end   = make(chan struct{})
	)
	group.Go(func() {
		for {
			running := map[string]machine{}
			for _, m := range b.machines() {
				state, _, err := m.host.Conn().DomainState(b.t.Context(), m.domain)
				if err != nil || golibvirt.DomainState(state) != golibvirt.DomainRunning {
					continue
				}
				if other, twice := running[m.Metadata.UID]; twice && other.UUID != m.UUID {
					found = append(found, fmt.Sprintf("%s on %s and %s", m.Name, other.host.Name, m.host.Name))
				}
				running[m.Metadata.UID] = m
			}
			select {
			case <-end:
				return
			case <-time.After(pollPeriod):
			}
		}
	})
	return func() []string { close(end); group.Wait(); return found }
}
