package libvirt

import (
	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/vm"
)

// Policy is all that kvm and kvm2 differ in.
type Policy struct {
	// Type of the provider, and Block its block in a class.
	Type  v1alpha1.ProviderType
	Block func(*v1alpha1.ProviderClass) *v1alpha1.LibvirtClass
	// VM is how machines are made.
	VM vm.Policy
	// FreshCredentials reads the key and the known hosts again on each dial; otherwise only after a host has not taken them.
	FreshCredentials bool
	// SeparateChecks looks at the hosts over connections of their own.
	SeparateChecks bool
	// Spans puts each RPC into a span of its own.
	Spans bool
}
