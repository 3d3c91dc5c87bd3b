package kvm2

import (
	"testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
)

// TestConformance: the provider keeps the contract, on two hosts with a real libvirtd behind a real sshd.
func TestConformance(t *testing.T) { libvirtcheck.Conformance(t, NewFactory) }
