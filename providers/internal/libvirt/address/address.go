// Package address finds the addresses of a machine by what its host knows.
package address

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"strings"

	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// Max is how many addresses a machine is given, by the contract of providers.
const Max = 8

// Source asks a host for the addresses of a machine; *rpc.Conn is one. source is a libvirt.DomainInterfaceAddressesSource.
type Source interface {
	DomainAddresses(ctx context.Context, d libvirt.Domain, source uint32) ([]libvirt.DomainInterface, error)
}

// sources in the order they are asked. The lease is the cheapest, and answers nothing on a plain bridge; there the guest's
// agent knows, and the host's ARP table as a last resort.
var sources = []libvirt.DomainInterfaceAddressesSource{
	libvirt.DomainInterfaceAddressesSrcLease, libvirt.DomainInterfaceAddressesSrcAgent, libvirt.DomainInterfaceAddressesSrcArp,
}

// Find gives the addresses of a machine's interface by its hardware address, IPv4 first. None and no error means that none is
// known yet: a source that fails hides no other, and a guest need not have an agent. Only what says that the host does not
// answer is an error.
func Find(ctx context.Context, s Source, d libvirt.Domain, mac string) ([]string, error) {
	for _, source := range sources {
		interfaces, err := s.DomainAddresses(ctx, d, uint32(source))
		if err != nil {
			if source != libvirt.DomainInterfaceAddressesSrcAgent && rpc.IsLost(err) || ctx.Err() != nil {
				return nil, err
			}
			continue
		}
		if found := usable(interfaces, mac); len(found) > 0 {
			return found, nil
		}
	}
	return nil, nil
}

// usable are the addresses of the interface that others can reach: those of the guest's own networks, such as a container
// bridge, have other hardware addresses.
func usable(interfaces []libvirt.DomainInterface, mac string) []string {
	var found []netip.Addr
	for _, i := range interfaces {
		if len(i.Hwaddr) > 0 && !strings.EqualFold(i.Hwaddr[0], mac) {
			continue
		}
		if len(i.Hwaddr) == 0 && mac != "" {
			continue
		}
		for _, a := range i.Addrs {
			addr, err := netip.ParseAddr(a.Addr)
			if err != nil || addr.IsLoopback() || addr.IsLinkLocalUnicast() || addr.IsMulticast() || addr.IsUnspecified() {
				continue
			}
			if addr = addr.Unmap().WithZone(""); !slices.Contains(found, addr) {
				found = append(found, addr)
			}
		}
	}
	// The order of libvirt's answer changes from call to call; a change of the answer is a write.
	slices.SortFunc(found, func(a, b netip.Addr) int {
		return cmp.Or(cmp.Compare(a.BitLen(), b.BitLen()), a.Compare(b))
	})
	out := make([]string, 0, len(found))
	for _, a := range found[:min(len(found), Max)] {
		out = append(out, a.String())
	}
	return out
}
