package rpc

import (
	"context"

	"github.com/digitalocean/go-libvirt"
)

// LibVersion is the version of the daemon, major*1000000 + minor*1000 + micro. It is the cheapest question.
func (c *Conn) LibVersion(ctx context.Context) (uint64, error) {
	return call(ctx, c, "ConnectGetLibVersion", func(l *libvirt.Libvirt) (uint64, error) { return l.ConnectGetLibVersion() })
}

// Capabilities describes the host.
func (c *Conn) Capabilities(ctx context.Context) (xml string, err error) {
	return call(ctx, c, "ConnectGetCapabilities", func(l *libvirt.Libvirt) (string, error) { return l.ConnectGetCapabilities() })
}

// DomainCapabilities describes what domains of virtType ("kvm", "qemu") can have; it fails when the host cannot run any.
func (c *Conn) DomainCapabilities(ctx context.Context, virtType string) (xml string, err error) {
	return call(ctx, c, "ConnectGetDomainCapabilities", func(l *libvirt.Libvirt) (string, error) {
		return l.ConnectGetDomainCapabilities(nil, nil, nil, libvirt.OptString{virtType}, 0)
	})
}

// DomainLookupByName finds a domain. Code NoDomain says that there is none, and nothing else does.
func (c *Conn) DomainLookupByName(ctx context.Context, name string) (libvirt.Domain, error) {
	return call(ctx, c, "DomainLookupByName", func(l *libvirt.Libvirt) (libvirt.Domain, error) { return l.DomainLookupByName(name) })
}

// DomainDefine defines a domain, or anew one of the same name and UUID. The XML is checked against libvirt's schema.
func (c *Conn) DomainDefine(ctx context.Context, xml string) (libvirt.Domain, error) {
	return call(ctx, c, "DomainDefineXMLFlags", func(l *libvirt.Libvirt) (libvirt.Domain, error) {
		return l.DomainDefineXMLFlags(xml, libvirt.DomainDefineValidate)
	})
}

// DomainCreate starts a domain.
func (c *Conn) DomainCreate(ctx context.Context, d libvirt.Domain) error {
	return do(ctx, c, "DomainCreate", func(l *libvirt.Libvirt) error { return l.DomainCreate(d) })
}

// DomainDestroy stops a domain without asking it. Code OperationInvalid says that it does not run.
func (c *Conn) DomainDestroy(ctx context.Context, d libvirt.Domain) error {
	return do(ctx, c, "DomainDestroy", func(l *libvirt.Libvirt) error { return l.DomainDestroy(d) })
}

// undefineFlags are tried one after the other. The first is everything that libvirt keeps beside a definition and that would keep it from being undefined. Drivers and
// versions that do not have one of these refuse the flag.
var undefineFlags = []libvirt.DomainUndefineFlagsValues{
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineCheckpointsMetadata | libvirt.DomainUndefineNvram,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata | libvirt.DomainUndefineNvram,
	libvirt.DomainUndefineManagedSave | libvirt.DomainUndefineSnapshotsMetadata,
	0,
}

// DomainUndefine removes a definition with everything that libvirt keeps beside it. A domain that runs goes on without one.
func (c *Conn) DomainUndefine(ctx context.Context, d libvirt.Domain) (err error) {
	for _, flags := range undefineFlags {
		err = do(ctx, c, "DomainUndefineFlags", func(l *libvirt.Libvirt) error { return l.DomainUndefineFlags(d, flags) })
		if code := CodeOf(err); code != InvalidArg && code != NoSupport && code != ArgumentUnsupported {
			return err
		}
	}
	return err
}

// DomainState is the state of a domain and its reason, as libvirt numbers them.
func (c *Conn) DomainState(ctx context.Context, d libvirt.Domain) (state, reason int32, err error) {
	both, err := call(ctx, c, "DomainGetState", func(l *libvirt.Libvirt) ([2]int32, error) {
		state, reason, err := l.DomainGetState(d, 0)
		return [2]int32{state, reason}, err
	})
	return both[0], both[1], err
}

// DomainXML is the definition of a domain, without passwords.
func (c *Conn) DomainXML(ctx context.Context, d libvirt.Domain) (string, error) {
	return call(ctx, c, "DomainGetXMLDesc", func(l *libvirt.Libvirt) (string, error) { return l.DomainGetXMLDesc(d, 0) })
}

// Domains are all domains of the host, whoever made them, running or not.
func (c *Conn) Domains(ctx context.Context) ([]libvirt.Domain, error) {
	return call(ctx, c, "ConnectListAllDomains", func(l *libvirt.Libvirt) ([]libvirt.Domain, error) {
		domains, _, err := l.ConnectListAllDomains(1, libvirt.ConnectListDomainsActive|libvirt.ConnectListDomainsInactive)
		return domains, err
	})
}

// DomainAddresses are the interfaces of a running domain as source knows them: libvirt's numbers for lease, agent and ARP.
func (c *Conn) DomainAddresses(ctx context.Context, d libvirt.Domain, source uint32) ([]libvirt.DomainInterface, error) {
	return call(ctx, c, "DomainInterfaceAddresses", func(l *libvirt.Libvirt) ([]libvirt.DomainInterface, error) {
		return l.DomainInterfaceAddresses(d, source, 0)
	})
}

// DomainSetAutostart says whether a domain starts with its host.
func (c *Conn) DomainSetAutostart(ctx context.Context, d libvirt.Domain, on bool) error {
	value := int32(0)
	if on {
		value = 1
	}
	return do(ctx, c, "DomainSetAutostart", func(l *libvirt.Libvirt) error { return l.DomainSetAutostart(d, value) })
}

// NetworkActive tells whether a network of libvirt is up. Code NoNetwork says that there is none of the name.
func (c *Conn) NetworkActive(ctx context.Context, name string) (bool, error) {
	network, err := call(ctx, c, "NetworkLookupByName", func(l *libvirt.Libvirt) (libvirt.Network, error) { return l.NetworkLookupByName(name) })
	if err != nil {
		return false, err
	}
	active, err := call(ctx, c, "NetworkIsActive", func(l *libvirt.Libvirt) (int32, error) { return l.NetworkIsActive(network) })
	return active == 1, err
}

// do is call for procedures without a result.
func do(ctx context.Context, c *Conn, procedure string, f func(*libvirt.Libvirt) error) error {
	_, err := call(ctx, c, procedure, func(l *libvirt.Libvirt) (none, error) { return none{}, f(l) })
	return err
}
