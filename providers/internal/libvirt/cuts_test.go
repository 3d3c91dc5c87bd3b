package libvirt_test

import (
	"fmt"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
)

// TestV9_CreateThatIsCutAnywhereConverges: the connection is cut before and after each RPC between Create and a machine that
// runs. What follows finishes it, or makes it anew, with one machine and its two volumes, and a deletion leaves nothing.
func TestV9_CreateThatIsCutAnywhereConverges(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		// The image is there first.
		first := b.request("first")
		b.settle(first)
		sample := b.request("sample")
		n := b.calls(func() { b.settle(sample) })
		if n < 8 {
			t.Fatalf("only %d RPCs: is this a creation?", n)
		}
		for k := range n {
			for _, action := range []libvirttest.Action{libvirttest.CutBefore, libvirttest.CutAfter} {
				req := b.request(fmt.Sprintf("cut-%d-%d", k, action))
				b.cut(k, action)
				b.settle(req)
				b.whole()
				if domains, volumes := b.traces(b.Hosts[0], req.Name); len(domains) != 1 || len(volumes) != 2 {
					t.Errorf("cut at RPC %d, %v: domains %v, volumes %v", k, action, domains, volumes)
				}
				b.remove(req)
				// What was late is taken away by the next looks at the host.
				b.eventually("nothing left", func() bool {
					_ = b.Check(t.Context())
					domains, volumes := b.traces(b.Hosts[0], req.Name)
					return len(domains)+len(volumes) == 0
				})
			}
		}
	})
}

// TestV10_DeleteThatIsCutAnywhereLeavesNothing: the same for a deletion.
func TestV10_DeleteThatIsCutAnywhereLeavesNothing(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		sample := b.request("sample")
		b.settle(sample)
		n := b.calls(func() { b.remove(sample) })
		if n < 6 {
			t.Fatalf("only %d RPCs: is this a deletion?", n)
		}
		for k := range n {
			for _, action := range []libvirttest.Action{libvirttest.CutBefore, libvirttest.CutAfter} {
				req := b.request(fmt.Sprintf("cut-%d-%d", k, action))
				b.settle(req)
				b.cut(k, action)
				b.remove(req)
				b.whole()
				if domains, volumes := b.traces(b.Hosts[0], req.Name); len(domains)+len(volumes) != 0 {
					t.Errorf("cut at RPC %d, %v: left %v, %v", k, action, domains, volumes)
				}
			}
		}
	})
}

// TestV11_OnlyTheLookUpSaysNotFound: whatever code any RPC of Get answers with, and when there is no answer, the machine is
// not called gone.
func TestV11_OnlyTheLookUpSaysNotFound(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		req := b.request("px")
		b.settle(req)
		procedures := map[libvirttest.Procedure]bool{}
		b.Hosts[0].Frames.Reset()
		if _, err := b.Get(t.Context(), refOf(req)); err != nil {
			t.Fatal(err)
		}
		for _, p := range b.Hosts[0].Frames.Calls() {
			procedures[p] = true
		}
		for p := range procedures {
			for _, code := range []int{1, 9, 38, 42, 43, 49, 50, 55, 80, 86} {
				b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
					if c.Procedure == p {
						return libvirttest.Fault{Action: libvirttest.Fail, Code: code, Message: "made up"}
					}
					return libvirttest.Fault{}
				})
				_, err := b.Get(t.Context(), refOf(req))
				gone := code == 42 && p != libvirttest.DomainInterfaceAddresses
				if providers.IsNotFound(err) != gone {
					t.Errorf("%v answers %d: %v", p, code, err)
				}
			}
			for _, action := range []libvirttest.Action{libvirttest.CutBefore, libvirttest.CutAfter} {
				b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
					if c.Procedure == p {
						return libvirttest.Fault{Action: action}
					}
					return libvirttest.Fault{}
				})
				if _, err := b.Get(t.Context(), refOf(req)); providers.IsNotFound(err) {
					t.Errorf("%v gets no answer: %v", p, err)
				}
				b.whole()
			}
		}
		lost := refOf(req)
		lost.Zone = "elsewhere"
		if _, err := b.Get(t.Context(), lost); providers.ReasonOf(err) != providers.Unavailable {
			t.Errorf("a host that the class does not name: %v", err)
		}
	})
}
