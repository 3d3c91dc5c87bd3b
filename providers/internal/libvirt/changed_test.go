package libvirt_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
)

// holding lets the RPCs that a test picks reach libvirtd only when they are released.
type holding struct {
	arrived chan libvirttest.Procedure
	release func()
}

func (b *bed) hold(pick func(libvirttest.Call) bool) *holding {
	b.t.Helper()
	until := make(chan struct{})
	h := &holding{arrived: make(chan libvirttest.Procedure, 10), release: sync.OnceFunc(func() { close(until) })}
	b.t.Cleanup(h.release)
	b.Hosts[0].Frames.Reset()
	b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
		if !pick(c) {
			return libvirttest.Fault{}
		}
		h.arrived <- c.Procedure
		return libvirttest.Fault{Until: until}
	})
	return h
}

// begin makes a machine on the side: kvm waits for it.
func (b *bed) begin(p providers.Provider, req providers.CreateRequest) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	var wg sync.WaitGroup
	b.t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() { _, _ = p.Create(ctx, req) })
}

// unowned are volumes of a name whose machine is gone.
func (b *bed) unowned(name string) []string {
	b.t.Helper()
	domains, volumes := b.traces(b.Hosts[0], name)
	if len(domains) > 0 {
		return nil
	}
	return volumes
}

// TestClassChangedInTheMiddleOfACreate: at each RPC of a creation the class is changed, and the changed one deletes the machine
// before that RPC is carried out. What the closed one makes late is taken back before its Close returns.
func TestClassChangedInTheMiddleOfACreate(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		b.settle(b.request("first"))
		late := 0
		for k, over := 0, false; !over; k++ {
			old := b.open(b.Factory, cluster, b.Class("a", 1))
			b.must(old.Check(t.Context()))
			req := b.request(fmt.Sprint("px-", k))
			held := b.hold(func(c libvirttest.Call) bool { return c.N == k })
			b.begin(old, req)
			var procedure libvirttest.Procedure
			select {
			case procedure = <-held.arrived:
			case <-time.After(15 * time.Second):
				// There are not so many.
				over = true
			}
			changed := b.open(b.Factory, cluster, b.Class("a", 1))
			closed := make(chan error, 1)
			go func() { closed <- old.Close() }()
			err := changed.Delete(t.Context(), refOf(req))
			held.release()
			b.must(<-closed)
			if err == nil {
				late++
			}
			if left := b.unowned(req.Name); len(left) > 0 {
				t.Errorf("RPC %d, %v: left are %v", k, procedure, left)
			}
			b.whole()
			b.remove(req)
			if domains, volumes := b.traces(b.Hosts[0], req.Name); len(domains)+len(volumes) > 0 {
				t.Errorf("RPC %d, %v: in the end there are %v %v", k, procedure, domains, volumes)
			}
			b.must(changed.Close())
		}
		if late < 4 {
			t.Errorf("only %d machines were deleted under their creation", late)
		}
	})
}

// TestVolumesThatAppearAfterTheClassWasClosed: the calls are carried out when nobody waits for them any more. The class's next
// look at the host takes them away.
func TestVolumesThatAppearAfterTheClassWasClosed(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		b.settle(b.request("first"))
		old := b.open(b.Factory, cluster, b.Class("a", 1))
		b.must(old.Check(t.Context()))
		// The disk of the first machine, the seed of the second.
		held := b.hold(func(c libvirttest.Call) bool {
			return c.Procedure == libvirttest.StorageVolCreateXML && c.Nth != 1
		})
		reqs := []providers.CreateRequest{b.request("disk"), b.request("seed")}
		for _, req := range reqs {
			b.begin(old, req)
			<-held.arrived
		}
		changed := b.open(b.Factory, cluster, b.Class("a", 1))
		b.must(old.Close())
		for _, req := range reqs {
			b.must(changed.Delete(t.Context(), refOf(req)))
		}
		held.release()
		b.eventually("the volumes appear late", func() bool { return len(b.unowned(reqs[0].Name)) == 1 && len(b.unowned(reqs[1].Name)) == 1 })
		b.must(changed.Check(t.Context()))
		for _, req := range reqs {
			if left := b.unowned(req.Name); len(left) > 0 {
				t.Errorf("left are %v", left)
			}
		}
	})
}
