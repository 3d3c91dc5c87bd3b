package libvirttest_test

import (
	"testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// dial opens a connection through everything that a host has.
func dial(t *testing.T, h *libvirttest.Host) *rpc.Conn {
	t.Helper()
	stream, err := sshdial.Dial(t.Context(), h.Target(), h.Auth())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Open(t.Context(), stream, libvirttest.URI, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestHostsAreApartAndKeepTheirState(t *testing.T) {
	hosts := libvirttest.Start(t, 2)
	first := dial(t, hosts[0])
	domain, err := first.DomainLookupByName(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := first.DomainDestroy(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	if err := first.DomainUndefine(t.Context(), domain); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, hosts[0]).DomainLookupByName(t.Context(), "test"); rpc.CodeOf(err) != rpc.NoDomain {
		t.Errorf("after the connection that undefined it: %v, want no domain", err)
	}
	if _, err := dial(t, hosts[1]).DomainLookupByName(t.Context(), "test"); err != nil {
		t.Errorf("on the other host: %v", err)
	}
}
