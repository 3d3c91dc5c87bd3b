// Package virtxml writes and reads what libvirt takes and gives as XML: definitions of machines and volumes. Everything goes
// through encoding/xml, so that no name or label can end an element.
package virtxml

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// Metadata says whose a machine is. It is written into the definition and read back exactly.
type Metadata struct {
	// Provider is the type that made the machine, kvm or kvm2; each has an XML namespace of its own.
	Provider  string
	Class     string
	ClusterID string
	Namespace string
	Name      string
	UID       string
	Hash      string
	Attempt   string
	CreatedAt time.Time
}

// Domain is a machine.
type Domain struct {
	Name, UUID string
	// Type is kvm or qemu.
	Type        string
	CPUs        int
	MemoryBytes int64
	// Pool holds the volumes Disk and Seed.
	Pool, Disk, Seed string
	// Network of libvirt or Bridge of the host, one of them.
	Network, Bridge string
	MAC             string
	Metadata        Metadata
}

// NamespacePrefix and the type of the provider are the XML namespace of Metadata.
const NamespacePrefix = "https://crawl.example.com/libvirt/"

// emulatedCPU is much cheaper to emulate than the default.
const emulatedCPU = "qemu64"

type domainXML struct {
	XMLName    xml.Name     `xml:"domain"`
	Type       string       `xml:"type,attr"`
	Name       string       `xml:"name"`
	UUID       string       `xml:"uuid"`
	Metadata   metadataXML  `xml:"metadata"`
	Memory     bytesXML     `xml:"memory"`
	VCPU       int          `xml:"vcpu"`
	OS         osXML        `xml:"os"`
	Features   *featuresXML `xml:"features"`
	CPU        *cpuXML      `xml:"cpu"`
	Clock      *offsetXML   `xml:"clock"`
	OnPoweroff string       `xml:"on_poweroff,omitempty"`
	OnReboot   string       `xml:"on_reboot,omitempty"`
	OnCrash    string       `xml:"on_crash,omitempty"`
	Devices    devicesXML   `xml:"devices"`
}

type metadataXML struct {
	Owners []ownerXML `xml:",any"`
}

type ownerXML struct {
	XMLName xml.Name
	// Domain is the UUID of the domain itself. What copies a machine copies this, and the copy is nobody's.
	Domain    string `xml:"domain"`
	Class     string `xml:"class"`
	ClusterID string `xml:"cluster"`
	Namespace string `xml:"namespace"`
	Name      string `xml:"name"`
	UID       string `xml:"uid"`
	Hash      string `xml:"hash"`
	Attempt   string `xml:"attempt"`
	CreatedAt string `xml:"createdAt"`
}

type bytesXML struct {
	Unit  string `xml:"unit,attr"`
	Value int64  `xml:",chardata"`
}

type osXML struct {
	Type string `xml:"type"`
	Boot struct {
		Dev string `xml:"dev,attr"`
	} `xml:"boot"`
}

type featuresXML struct {
	ACPI *struct{} `xml:"acpi"`
	APIC *struct{} `xml:"apic"`
}

type cpuXML struct {
	Mode  string `xml:"mode,attr,omitempty"`
	Match string `xml:"match,attr,omitempty"`
	Model string `xml:"model,omitempty"`
}

type offsetXML struct {
	Offset string `xml:"offset,attr"`
}

type devicesXML struct {
	Disks      []diskXML      `xml:"disk"`
	Interfaces []interfaceXML `xml:"interface"`
	Serial     *serialXML     `xml:"serial"`
	Console    *serialXML     `xml:"console"`
	Channels   []channelXML   `xml:"channel"`
	RNG        *rngXML        `xml:"rng"`
}

type diskXML struct {
	Type   string    `xml:"type,attr"`
	Device string    `xml:"device,attr"`
	Driver driverXML `xml:"driver"`
	Source struct {
		Pool   string `xml:"pool,attr,omitempty"`
		Volume string `xml:"volume,attr,omitempty"`
	} `xml:"source"`
	Target struct {
		Dev string `xml:"dev,attr"`
		Bus string `xml:"bus,attr"`
	} `xml:"target"`
	ReadOnly *struct{} `xml:"readonly"`
}

type driverXML struct {
	Name    string `xml:"name,attr"`
	Type    string `xml:"type,attr"`
	Discard string `xml:"discard,attr,omitempty"`
}

type interfaceXML struct {
	Type string `xml:"type,attr"`
	MAC  struct {
		Address string `xml:"address,attr"`
	} `xml:"mac"`
	Source struct {
		Network string `xml:"network,attr,omitempty"`
		Bridge  string `xml:"bridge,attr,omitempty"`
	} `xml:"source"`
	Model struct {
		Type string `xml:"type,attr"`
	} `xml:"model"`
}

type serialXML struct {
	Type string `xml:"type,attr"`
}

type channelXML struct {
	Type   string `xml:"type,attr"`
	Target struct {
		Type string `xml:"type,attr"`
		Name string `xml:"name,attr,omitempty"`
	} `xml:"target"`
}

type rngXML struct {
	Model   string `xml:"model,attr"`
	Backend struct {
		Model string `xml:"model,attr"`
		Value string `xml:",chardata"`
	} `xml:"backend"`
}

// Marshal writes the definition. Disk and seed are virtio disks: cloud kernels see neither SATA nor an IDE CD-ROM.
func (d Domain) Marshal() (string, error) {
	x := domainXML{
		Type: d.Type, Name: d.Name, UUID: d.UUID, Memory: bytesXML{"bytes", d.MemoryBytes}, VCPU: d.CPUs,
		Features: &featuresXML{ACPI: &struct{}{}, APIC: &struct{}{}}, Clock: &offsetXML{"utc"},
		CPU:        &cpuXML{Mode: "host-passthrough"},
		OnPoweroff: "destroy", OnReboot: "restart", OnCrash: "destroy",
	}
	if d.Type == "qemu" {
		x.CPU = &cpuXML{Mode: "custom", Match: "exact", Model: emulatedCPU}
	}
	m := d.Metadata
	x.Metadata.Owners = []ownerXML{{
		XMLName: xml.Name{Space: NamespacePrefix + m.Provider, Local: "owner"},
		Domain:  d.UUID, Class: m.Class, ClusterID: m.ClusterID, Namespace: m.Namespace, Name: m.Name, UID: m.UID, Hash: m.Hash, Attempt: m.Attempt,
		CreatedAt: m.CreatedAt.UTC().Format(time.RFC3339Nano),
	}}
	x.OS.Type, x.OS.Boot.Dev = "hvm", "hd"
	x.Devices.Disks = []diskXML{volumeDisk(d.Pool, d.Disk, "qcow2", "vda"), volumeDisk(d.Pool, d.Seed, "raw", "vdb")}
	x.Devices.Disks[0].Driver.Discard = "unmap"
	x.Devices.Disks[1].ReadOnly = &struct{}{}
	nic := interfaceXML{Type: "network"}
	if d.Bridge != "" {
		nic.Type = "bridge"
	}
	nic.MAC.Address, nic.Source.Network, nic.Source.Bridge, nic.Model.Type = d.MAC, d.Network, d.Bridge, "virtio"
	x.Devices.Interfaces = []interfaceXML{nic}
	x.Devices.Serial, x.Devices.Console = &serialXML{"pty"}, &serialXML{"pty"}
	agent := channelXML{Type: "unix"}
	agent.Target.Type, agent.Target.Name = "virtio", "org.qemu.guest_agent.0"
	x.Devices.Channels = []channelXML{agent}
	x.Devices.RNG = &rngXML{Model: "virtio"}
	x.Devices.RNG.Backend.Model, x.Devices.RNG.Backend.Value = "random", "/dev/urandom"
	return encode("domain", x)
}

// encode writes a definition. A character that XML cannot hold is an error: the encoder would put another in its place, and
// something else would be defined than was asked for.
func encode(what string, definition any) (string, error) {
	out, err := xml.MarshalIndent(definition, "", "  ")
	if err == nil && bytes.ContainsRune(out, utf8.RuneError) {
		err = errors.New("a value has a character that XML cannot hold")
	}
	if err != nil {
		return "", fmt.Errorf("write the definition of a %s: %w", what, err)
	}
	return string(out), nil
}

func volumeDisk(pool, volume, format, target string) diskXML {
	disk := diskXML{Type: "volume", Device: "disk", Driver: driverXML{Name: "qemu", Type: format}}
	disk.Source.Pool, disk.Source.Volume = pool, volume
	disk.Target.Dev, disk.Target.Bus = target, "virtio"
	return disk
}

// ParseDomain reads a definition, of whatever machine; what is not there is empty. Of one without our metadata, Metadata is
// zero.
func ParseDomain(text string) (Domain, error) {
	var x domainXML
	if err := xml.Unmarshal([]byte(text), &x); err != nil {
		return Domain{}, fmt.Errorf("read the definition of a domain: %w", err)
	}
	d := Domain{Name: x.Name, UUID: x.UUID, Type: x.Type, CPUs: x.VCPU, MemoryBytes: x.Memory.Value * unitOf(x.Memory.Unit)}
	for _, disk := range x.Devices.Disks {
		switch disk.Target.Dev {
		case "vda":
			d.Pool, d.Disk = disk.Source.Pool, disk.Source.Volume
		case "vdb":
			d.Seed = disk.Source.Volume
		}
	}
	if len(x.Devices.Interfaces) > 0 {
		nic := x.Devices.Interfaces[0]
		d.MAC, d.Network = nic.MAC.Address, nic.Source.Network
		if nic.Type == "bridge" {
			d.Bridge = nic.Source.Bridge
		}
	}
	d.Metadata = x.Metadata.owner(d.UUID)
	return d, nil
}

// owner reads whose a domain is. What does not say so beyond doubt is no licence to touch the machine, and no reason to hide
// the others of the host: it is read as nobody's.
func (x metadataXML) owner(uuid string) (m Metadata) {
	for _, o := range x.Owners {
		provider, ours := providerOf(o.XMLName)
		if !ours {
			continue
		}
		created, err := time.Parse(time.RFC3339Nano, o.CreatedAt)
		if m != (Metadata{}) || err != nil || !strings.EqualFold(o.Domain, uuid) {
			return Metadata{}
		}
		m = Metadata{
			Provider: provider, Class: o.Class, ClusterID: o.ClusterID, Namespace: o.Namespace, Name: o.Name, UID: o.UID,
			Hash: o.Hash, Attempt: o.Attempt, CreatedAt: created,
		}
	}
	return m
}

func providerOf(name xml.Name) (string, bool) {
	if name.Local != "owner" || len(name.Space) <= len(NamespacePrefix) || name.Space[:len(NamespacePrefix)] != NamespacePrefix {
		return "", false
	}
	return name.Space[len(NamespacePrefix):], true
}

// unitOf is libvirt's unit of memory in bytes. KiB is what it writes.
func unitOf(unit string) int64 {
	switch unit {
	case "b", "bytes":
		return 1
	case "KB":
		return 1000
	case "MB":
		return 1000 * 1000
	case "GB":
		return 1000 * 1000 * 1000
	case "M", "MiB":
		return 1 << 20
	case "G", "GiB":
		return 1 << 30
	case "T", "TiB":
		return 1 << 40
	}
	return 1 << 10
}
