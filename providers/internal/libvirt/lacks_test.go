package libvirt_test

import (
	"strings"
	"testing"

	golibvirt "github.com/digitalocean/go-libvirt"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
)

// TestPoolOrNetworkIsNotThere: the host says which of them, makes nothing and is not chosen; what runs is not called gone; and
// when it is there again, machines are made.
func TestPoolOrNetworkIsNotThere(t *testing.T) {
	const poolXML = "<pool type='dir'><name>" + libvirttest.Pool + "</name><target><path>/" + libvirttest.Pool + "</path></target></pool>"
	const networkXML = "<network><name>" + libvirttest.Network + "</name><forward mode='nat'/><ip address='192.168.122.1' netmask='255.255.255.0'/></network>"
	pool := func(do ...func(*golibvirt.Libvirt, golibvirt.StoragePool) error) func(*golibvirt.Libvirt) error {
		return func(l *golibvirt.Libvirt) error {
			p, err := l.StoragePoolLookupByName(libvirttest.Pool)
			for _, d := range do {
				if err == nil {
					err = d(l, p)
				}
			}
			return err
		}
	}
	network := func(do ...func(*golibvirt.Libvirt, golibvirt.Network) error) func(*golibvirt.Libvirt) error {
		return func(l *golibvirt.Libvirt) error {
			n, err := l.NetworkLookupByName(libvirttest.Network)
			for _, d := range do {
				if err == nil {
					err = d(l, n)
				}
			}
			return err
		}
	}
	stopPool, startPool := (*golibvirt.Libvirt).StoragePoolDestroy, func(l *golibvirt.Libvirt, p golibvirt.StoragePool) error { return l.StoragePoolCreate(p, 0) }
	definePool := func(l *golibvirt.Libvirt) error { _, err := l.StoragePoolDefineXML(poolXML, 0); return err }
	defineNetwork := func(l *golibvirt.Libvirt) error { _, err := l.NetworkDefineXML(networkXML); return err }
	for what, lack := range map[string]struct {
		says      string
		take, put []func(*golibvirt.Libvirt) error
	}{
		"pool stopped":      {"storage pool", []func(*golibvirt.Libvirt) error{pool(stopPool)}, []func(*golibvirt.Libvirt) error{pool(startPool)}},
		"pool undefined":    {"storage pool", []func(*golibvirt.Libvirt) error{pool(stopPool, (*golibvirt.Libvirt).StoragePoolUndefine)}, []func(*golibvirt.Libvirt) error{definePool, pool(startPool)}},
		"network stopped":   {"network", []func(*golibvirt.Libvirt) error{network((*golibvirt.Libvirt).NetworkDestroy)}, []func(*golibvirt.Libvirt) error{network((*golibvirt.Libvirt).NetworkCreate)}},
		"network undefined": {"network", []func(*golibvirt.Libvirt) error{network((*golibvirt.Libvirt).NetworkDestroy, (*golibvirt.Libvirt).NetworkUndefine)}, []func(*golibvirt.Libvirt) error{defineNetwork, network((*golibvirt.Libvirt).NetworkCreate)}},
	} {
		t.Run(what, func(t *testing.T) {
			bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
				b := newBed(t, factory, 2)
				h := b.Hosts[0]
				runs := b.request("runs")
				b.settle(runs)
				for _, do := range lack.take {
					h.ByHand(t, do)
				}
				// The test driver starts machines without their network; QEMU's says this.
				if lack.says == "network" {
					h.Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
						if c.Procedure == libvirttest.DomainCreate {
							return libvirttest.Fault{Action: libvirttest.Fail, Code: 55, Message: "Requested operation is not valid: network 'default' is not active"}
						}
						return libvirttest.Fault{}
					})
				}
				// The other host keeps the class up.
				b.must(b.Check(t.Context()))
				for _, state := range b.hostStates() {
					if lacks := state.Name == h.Name; lacks != (state.Err != nil) || lacks && !strings.Contains(providers.StableMessage(state.Err), lack.says) {
						t.Errorf("%s: %v", state.Name, state.Err)
					}
				}
				spec := libvirtcheck.Spec()
				for owner := range 32 {
					if zone, err := b.Place(&spec, types.UID(rune('a'+owner)), nil); err != nil || zone == h.Name {
						t.Errorf("chosen is %s, %v", zone, err)
					}
				}
				if i, err := b.Get(t.Context(), refOf(runs)); err != nil || i.State != providers.StateRunning {
					t.Errorf("what runs: %+v, %v", i, err)
				}
				req := b.request("px")
				receipt, err := b.Create(t.Context(), req)
				if err == nil {
					// kvm2 says it when it is asked.
					ref := refOf(req)
					ref.Operation = receipt.Operation
					b.eventually("it comes to nothing", func() bool { _, err = b.Get(t.Context(), ref); return providers.IsNotFound(err) })
				}
				if reason := providers.OutcomeOf(err); providers.ReasonOf(err) != providers.Capacity && reason != providers.Capacity || !strings.Contains(providers.StableMessage(err), lack.says) {
					t.Errorf("a new machine: %v, want Capacity", providers.RawText(err))
				}
				h.Frames.Decide(nil)
				for _, do := range lack.put {
					h.ByHand(t, do)
				}
				if domains, volumes := b.traces(h, req.Name); len(domains)+len(volumes) > 0 {
					t.Errorf("left are %v %v", domains, volumes)
				}
				b.must(b.Check(t.Context()))
				for _, state := range b.hostStates() {
					if state.Err != nil {
						t.Errorf("%s, after it was mended: %v", state.Name, state.Err)
					}
				}
				b.settle(req)
			})
		})
	}
}

func (b *bed) hostStates() []providers.HostState { return b.Provider.(providers.HostReporter).Hosts() }
