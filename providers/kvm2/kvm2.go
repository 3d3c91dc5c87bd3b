// Package kvm2 provides proxies that are virtual machines on libvirt hypervisors of one's own, reached over SSH: the second
// generation, built from the provider contract. Its Create returns when the machine is recorded, a pool without room is said
// beforehand as lack of capacity, credentials are read again on each dial, each RPC has a span, looks at hosts have
// connections of their own, and machines start with their host.
//
// All that is common with kvm is in providers/internal/libvirt; neither sees the other's machines.
package kvm2

import (
	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/vm"
)

// NewFactory makes the Factory of the type kvm2.
func NewFactory() *libvirt.Factory { return &libvirt.Factory{Policy: policy()} }

func policy() libvirt.Policy {
	return libvirt.Policy{
		Type:             v1alpha1.ProviderKVM2,
		Block:            func(class *v1alpha1.ProviderClass) *v1alpha1.LibvirtClass { return class.Spec.KVM2 },
		VM:               vm.Policy{CheckSpace: true, Autostart: true},
		FreshCredentials: true,
		SeparateChecks:   true,
		Spans:            true,
	}
}
