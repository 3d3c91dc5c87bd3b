package libvirt_test

import (
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// TestMachineUndefinedByHandLeavesNoVolumes: libvirt forgets a machine with all that says whose its volumes are. What the
// operator has recorded of it tells, also to another process; and a machine that only has another name keeps them.
func TestMachineUndefinedByHandLeavesNoVolumes(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		h := b.Hosts[0]
		for what, p := range map[string]providers.Provider{"the same process": b.Provider, "another process": b.another(factory)} {
			req := b.request("px")
			old := b.settle(req)
			b.undefine(req.Name)
			ref := refOf(req)
			ref.ProviderID = old.ProviderID
			if _, err := p.Get(t.Context(), ref); !providers.IsNotFound(err) {
				t.Fatalf("%s: %v, want NotFound", what, err)
			}
			b.must(p.Check(t.Context()))
			if domains, volumes := b.traces(h, req.Name); len(domains)+len(volumes) > 0 {
				t.Errorf("%s: left are %v %v", what, domains, volumes)
			}
			if i := b.settle(req); i.ID == old.ID {
				t.Errorf("%s: it is the old one", what)
			}
			b.must(p.Check(t.Context()))
			if domains, volumes := b.traces(h, req.Name); len(domains) != 1 || len(volumes) != 2 {
				t.Errorf("%s: in the end there are %v %v", what, domains, volumes)
			}
			b.remove(req)
		}
		req := b.request("renamed")
		i := b.settle(req)
		ref := refOf(req)
		// What is asked for is another name; the incarnation is there.
		ref.Name, ref.ProviderID = "px-other", i.ProviderID
		if _, err := b.Get(t.Context(), ref); !providers.IsNotFound(err) {
			t.Fatal(err)
		}
		b.must(b.Check(t.Context()))
		if domains, volumes := b.traces(h, req.Name); len(domains) != 1 || len(volumes) != 2 {
			t.Errorf("a machine with another name has lost %v %v", domains, volumes)
		}
		// Where nobody knows on which host it is, another one may share the pool.
		b.undefine(req.Name)
		ref = providers.Ref{Namespace: ref.Namespace, Name: req.Name, ProviderID: i.ProviderID, Operation: i.ID}
		if _, err := b.Get(t.Context(), ref); !providers.IsNotFound(err) {
			t.Fatal(err)
		}
		b.must(b.Check(t.Context()))
		if _, volumes := b.traces(h, req.Name); len(volumes) != 2 {
			t.Errorf("left are %v", volumes)
		}
	})
}

// TestVolumeThatCannotBeRemovedDoesNotTakeTheHostAway: it is tried again with each look.
func TestVolumeThatCannotBeRemovedDoesNotTakeTheHostAway(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		req := b.request("px")
		i, ref := b.settle(req), refOf(req)
		ref.ProviderID = i.ProviderID
		b.undefine(i.Name)
		b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
			if c.Procedure == libvirttest.StorageVolDelete {
				return libvirttest.Fault{Action: libvirttest.Fail, Code: rpc.SystemError, Message: "Input/output error"}
			}
			return libvirttest.Fault{}
		})
		if _, err := b.Get(t.Context(), ref); !providers.IsNotFound(err) {
			t.Fatal(err)
		}
		b.must(b.Check(t.Context()))
		if _, volumes := b.traces(b.Hosts[0], i.Name); len(volumes) != 2 {
			t.Fatalf("left are %v: nothing is shown", volumes)
		}
		b.whole()
		b.must(b.Check(t.Context()))
		if _, volumes := b.traces(b.Hosts[0], i.Name); len(volumes) != 0 {
			t.Errorf("left are %v", volumes)
		}
	})
}

// another opens the class as another process does.
func (b *bed) another(factory func() *libvirt.Factory) providers.Provider {
	b.t.Helper()
	f := factory()
	f.Root = b.Factory.Root
	return b.open(f, cluster, b.Class("a", 1))
}

// undefine has libvirt forget a machine, as a person at the host may: destroy and undefine.
func (b *bed) undefine(name string) {
	b.t.Helper()
	c := b.Hosts[0].Conn()
	d, err := c.DomainLookupByName(b.t.Context(), name)
	b.must(err)
	if err := c.DomainDestroy(b.t.Context(), d); err != nil && rpc.CodeOf(err) != rpc.OperationInvalid {
		b.must(err)
	}
	b.must(c.DomainUndefine(b.t.Context(), d))
}
