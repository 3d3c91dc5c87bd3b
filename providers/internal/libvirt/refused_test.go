package libvirt_test

import (
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// TestRefusalByPolkitNamesTheGroup: sshd lets the user at the socket, and libvirt asks polkit.
func TestRefusalByPolkitNamesTheGroup(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		for _, code := range []int{rpc.AuthFailed, rpc.AuthCancelled, rpc.AccessDenied, rpc.AuthUnavailable} {
			b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
				if c.Procedure == libvirttest.ConnectOpen {
					return libvirttest.Fault{Action: libvirttest.Fail, Code: code, Message: "no polkit agent available"}
				}
				return libvirttest.Fault{}
			})
			b.clock.Step(host.MaxBackoff)
			if err := b.Check(t.Context()); providers.ReasonOf(err) != providers.Auth || !strings.Contains(providers.StableMessage(err), "group libvirt") {
				t.Errorf("code %d: %v, want Auth naming the group", code, providers.RawText(err))
			}
		}
		b.whole()
		b.must(b.Check(t.Context()))
	})
}

// TestFilesThatTheHostKeepsFromQEMU: the machine is taken back, and what to look at is said.
func TestFilesThatTheHostKeepsFromQEMU(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		b.settle(b.request("first"))
		b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
			if c.Procedure == libvirttest.DomainCreate {
				return libvirttest.Fault{Action: libvirttest.Fail, Code: rpc.InternalError, Message: "internal error: process exited while connecting to monitor: Could not open '/x': Permission denied"}
			}
			return libvirttest.Fault{}
		})
		req := b.request("px")
		receipt, err := b.Create(t.Context(), req)
		if err == nil {
			ref := refOf(req)
			ref.Operation = receipt.Operation
			b.eventually("it comes to nothing", func() bool { _, err = b.Get(t.Context(), ref); return providers.IsNotFound(err) })
		}
		if providers.ReasonOf(err) != providers.Capacity && providers.OutcomeOf(err) != providers.Capacity || !strings.Contains(providers.StableMessage(err), "AppArmor") {
			t.Errorf("%v, want Capacity naming AppArmor", providers.RawText(err))
		}
		if domains, volumes := b.traces(b.Hosts[0], req.Name); len(domains)+len(volumes) > 0 {
			t.Errorf("left are %v %v", domains, volumes)
		}
		b.whole()
		b.settle(req)
	})
}
