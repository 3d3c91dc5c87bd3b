// Package kvm provides proxies that are virtual machines on libvirt hypervisors of one's own, reached over SSH: the first
// generation. Its Create waits until the machine was started, credentials are read once and again when they are refused, all calls
// to a host share one connection, and machines are not started with their host.
//
// All that is common with kvm2 is in providers/internal/libvirt; neither sees the other's machines.
package kvm

import (
	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/vm"
)

// NewFactory makes the Factory of the type kvm.
func NewFactory() *libvirt.Factory { return &libvirt.Factory{Policy: policy()} }

func policy() libvirt.Policy {
	return libvirt.Policy{
		Type:  v1alpha1.ProviderKVM,
		Block: func(class *v1alpha1.ProviderClass) *v1alpha1.LibvirtClass { return class.Spec.KVM },
		VM:    vm.Policy{WaitForStart: true},
	}
}
