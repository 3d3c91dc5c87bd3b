package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// ErrAddressNotAllowed is wrapped by every refusal of an address policy.
var ErrAddressNotAllowed = errors.New("address is not allowed")

// metadataAddresses are where clouds serve instance metadata outside the link-local ranges: AWS (IPv6), Google (IPv6),
// Alibaba, Azure's wire server and Oracle. 169.254.169.254 is link-local already.
var metadataAddresses = []netip.Addr{
	netip.MustParseAddr("fd00:ec2::254"),
	netip.MustParseAddr("fd20:ce::254"),
	netip.MustParseAddr("100.100.100.200"),
	netip.MustParseAddr("168.63.129.16"),
	netip.MustParseAddr("192.0.0.192"),
}

var (
	thisNetwork    = netip.MustParsePrefix("0.0.0.0/8")
	broadcast      = netip.MustParseAddr("255.255.255.255")
	sharedAddress  = netip.MustParsePrefix("100.64.0.0/10")
	nat64WellKnown = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour      = netip.MustParsePrefix("2002::/16")
	v4Compatible   = netip.MustParsePrefix("::/96")
)

// AddressPolicy says which addresses may be used. The zero value denies unspecified, loopback, link-local, multicast
// and metadata addresses, also when they are spelled as IPv4-mapped, NAT64 or 6to4 addresses.
type AddressPolicy struct {
	// Allow opens ranges that would be denied otherwise.
	Allow []netip.Prefix
	// DenyPrivate also denies private ranges (RFC 1918, RFC 4193, RFC 6598). Proxies inside the cluster have private
	// addresses, so the dial policy leaves it off; literal addresses in target URLs have it on.
	DenyPrivate bool
}

// Check returns nil when the address may be used, or an error that wraps ErrAddressNotAllowed and names the kind of
// address.
func (p AddressPolicy) Check(addr netip.Addr) error {
	plain := addr.Unmap()
	if plain.Zone() != "" {
		return fmt.Errorf("%w: %s has a zone", ErrAddressNotAllowed, plain)
	}
	if slices.ContainsFunc(p.Allow, func(prefix netip.Prefix) bool { return prefix.Contains(plain) }) {
		return nil
	}
	if kind := p.deniedKind(plain); kind != "" {
		return fmt.Errorf("%w: %s is %s", ErrAddressNotAllowed, plain, kind)
	}
	if inner, ok := embedded(plain); ok {
		if err := p.Check(inner); err != nil {
			return fmt.Errorf("%s embeds another address: %w", plain, err)
		}
	}
	return nil
}

func (p AddressPolicy) deniedKind(a netip.Addr) string {
	switch {
	case !a.IsValid():
		return "not an address"
	case slices.Contains(metadataAddresses, a) || a == netip.MustParseAddr("169.254.169.254"):
		return "a metadata address"
	case a.IsUnspecified() || thisNetwork.Contains(a):
		return "an unspecified address"
	case a.IsLoopback():
		return "a loopback address"
	case a.IsLinkLocalUnicast():
		return "a link-local address"
	case a.IsMulticast() || a == broadcast:
		return "a multicast or broadcast address"
	case p.DenyPrivate && (a.IsPrivate() || sharedAddress.Contains(a)):
		return "a private address"
	}
	return ""
}

// embedded returns the IPv4 address that an IPv6 transition address leads to.
func embedded(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	switch {
	case nat64WellKnown.Contains(a):
		return netip.AddrFrom4([4]byte(b[12:16])), true
	case sixToFour.Contains(a):
		return netip.AddrFrom4([4]byte(b[2:6])), true
	case v4Compatible.Contains(a) && binary.BigEndian.Uint32(b[12:16]) > 1: // not :: and ::1
		return netip.AddrFrom4([4]byte(b[12:16])), true
	}
	return netip.Addr{}, false
}

// CheckTargetHost checks what can be known about a target's host before a proxy resolves it: a literal address against
// the policy, and the names that always mean this host or its metadata service. Other names are the proxy's to
// resolve, and its own rules decide there.
func (p AddressPolicy) CheckTargetHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return p.Check(addr)
	}
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	switch {
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		if p.Check(netip.AddrFrom4([4]byte{127, 0, 0, 1})) == nil {
			return nil
		}
		return fmt.Errorf("%w: %s is a loopback name", ErrAddressNotAllowed, host)
	case name == "metadata.google.internal" || name == "metadata.goog" || name == "metadata":
		return fmt.Errorf("%w: %s is a metadata service", ErrAddressNotAllowed, host)
	case looksNumeric(name):
		// 127.1, 0x7f.1 and 2130706433 are addresses for some resolvers.
		return fmt.Errorf("%w: %s is neither a name nor a whole IP address", ErrAddressNotAllowed, host)
	}
	return nil
}

// looksNumeric reports whether the last label of a name is a number, which no public name ends in.
func looksNumeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if last == "" {
		return true
	}
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// ParsePrefixes parses the values of a flag that takes CIDRs; a bare address means that address alone. The error
// names the flag and the value.
func ParsePrefixes(flag string, values []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, v := range values {
		v = strings.TrimSpace(v)
		if prefix, err := netip.ParsePrefix(v); err == nil {
			out = append(out, prefix.Masked())
			continue
		}
		addr, err := netip.ParseAddr(v)
		if err != nil || addr.Zone() != "" {
			return nil, fmt.Errorf("%s: %q is neither a CIDR nor an IP address", flag, v)
		}
		out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return out, nil
}
