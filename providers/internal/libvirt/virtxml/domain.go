package virtxml

import (
	"encoding/xml"
	"errors"
	"fmt"
	"strings"
)

// Types of domains that get a CPU of their own; any other, such as the test driver's, gets the driver's default.
const (
	// TypeKVM runs on the host's CPU, which it sees as it is.
	TypeKVM = "kvm"
	// TypeQEMU is emulated. The plain model costs the least: emulating the newest one took half as much time again.
	TypeQEMU = "qemu"
)

// Domain is a virtual machine: a disk and a seed, both volumes of one pool, and one network interface.
type Domain struct {
	// Name is at most 63 characters here; UUID is that of this incarnation.
	Name, UUID string
	// Type is kvm or qemu.
	Type        string
	CPUs        int
	MemoryBytes int64
	// Pool holds the volumes Disk (qcow2) and Seed (raw, read-only). Both are virtio disks: the kernels of cloud images see no
	// SATA CD-ROM.
	Pool, Disk, Seed string
	// Network of libvirt or Bridge of the host; exactly one.
	Network, Bridge string
	// MAC of the interface, in lower case with colons.
	MAC      string
	Metadata Metadata
}

type domainXML struct {
	XMLName    xml.Name     `xml:"domain"`
	Type       string       `xml:"type,attr"`
	Name       string       `xml:"name"`
	UUID       string       `xml:"uuid"`
	Metadata   *metadataXML `xml:"metadata"`
	Memory     *quantity    `xml:"memory"`
	CPUs       int          `xml:"vcpu"`
	OS         osXML        `xml:"os"`
	Features   *featuresXML `xml:"features"`
	CPU        *cpuXML      `xml:"cpu"`
	Clock      *clockXML    `xml:"clock"`
	OnPoweroff string       `xml:"on_poweroff,omitempty"`
	OnReboot   string       `xml:"on_reboot,omitempty"`
	OnCrash    string       `xml:"on_crash,omitempty"`
	Devices    devicesXML   `xml:"devices"`
}

type osXML struct {
	// Type without a machine: the host's libvirt knows which one it has.
	Type string `xml:"type"`
	Boot []struct {
		Dev string `xml:"dev,attr"`
	} `xml:"boot"`
}

type featuresXML struct {
	ACPI struct{} `xml:"acpi"`
	APIC struct{} `xml:"apic"`
}

type cpuXML struct {
	Mode  string `xml:"mode,attr"`
	Match string `xml:"match,attr,omitempty"`
	Model string `xml:"model,omitempty"`
}

type clockXML struct {
	Offset string `xml:"offset,attr"`
}

type devicesXML struct {
	Disks      []diskXML      `xml:"disk"`
	Interfaces []interfaceXML `xml:"interface"`
	Serials    []serialXML    `xml:"serial"`
	Channels   []channelXML   `xml:"channel"`
	RNGs       []rngXML       `xml:"rng"`
}

type diskXML struct {
	Type     string     `xml:"type,attr"`
	Device   string     `xml:"device,attr"`
	Driver   driverXML  `xml:"driver"`
	Source   sourceXML  `xml:"source"`
	Target   targetXML  `xml:"target"`
	ReadOnly *emptyElem `xml:"readonly"`
}

type emptyElem struct{}

type driverXML struct {
	Name        string `xml:"name,attr"`
	Type        string `xml:"type,attr"`
	Discard     string `xml:"discard,attr,omitempty"`
	ErrorPolicy string `xml:"error_policy,attr,omitempty"`
}

type sourceXML struct {
	Pool    string `xml:"pool,attr,omitempty"`
	Volume  string `xml:"volume,attr,omitempty"`
	Network string `xml:"network,attr,omitempty"`
	Bridge  string `xml:"bridge,attr,omitempty"`
}

type targetXML struct {
	Dev  string `xml:"dev,attr,omitempty"`
	Bus  string `xml:"bus,attr,omitempty"`
	Type string `xml:"type,attr,omitempty"`
	Name string `xml:"name,attr,omitempty"`
}

type interfaceXML struct {
	Type   string    `xml:"type,attr"`
	MAC    macXML    `xml:"mac"`
	Source sourceXML `xml:"source"`
	Model  modelXML  `xml:"model"`
}

type macXML struct {
	Address string `xml:"address,attr"`
}

type modelXML struct {
	Type string `xml:"type,attr"`
}

type serialXML struct {
	Type string `xml:"type,attr"`
}

type channelXML struct {
	Type   string    `xml:"type,attr"`
	Target targetXML `xml:"target"`
}

type rngXML struct {
	Model   string     `xml:"model,attr"`
	Backend backendXML `xml:"backend"`
}

type backendXML struct {
	Model string `xml:"model,attr"`
	Path  string `xml:",chardata"`
}

// Marshal writes the definition. It fails for a domain that is incomplete and for text that XML cannot hold.
func (d Domain) Marshal() (string, error) {
	if err := d.check(); err != nil {
		return "", fmt.Errorf("write the XML of the domain: %w", err)
	}
	x := domainXML{
		Type: d.Type, Name: d.Name, UUID: d.UUID, Memory: bytesOf(d.MemoryBytes), CPUs: d.CPUs,
		OS:       osXML{Type: "hvm"},
		Features: &featuresXML{}, CPU: cpuOf(d.Type), Clock: &clockXML{Offset: "utc"},
		// A guest that ends stays ended: it is replaced, not revived in an unknown state.
		OnPoweroff: "destroy", OnReboot: "restart", OnCrash: "destroy",
		Devices: devicesXML{
			Disks: []diskXML{
				// A full host pauses the machine, so that it shows. Blocks that the guest frees are given back.
				volumeDisk("vda", sourceXML{Pool: d.Pool, Volume: d.Disk}, driverXML{Type: "qcow2", Discard: "unmap", ErrorPolicy: "stop"}),
				volumeDisk("vdb", sourceXML{Pool: d.Pool, Volume: d.Seed}, driverXML{Type: "raw"}),
			},
			Interfaces: []interfaceXML{d.nic()},
			Serials:    []serialXML{{Type: "pty"}},
			Channels:   []channelXML{{Type: "unix", Target: targetXML{Type: "virtio", Name: "org.qemu.guest_agent.0"}}},
			// Without it a guest may wait for entropy before its first TLS or SSH key.
			RNGs: []rngXML{{Model: "virtio", Backend: backendXML{Model: "random", Path: "/dev/urandom"}}},
		},
	}
	x.OS.Boot = append(x.OS.Boot, struct {
		Dev string `xml:"dev,attr"`
	}{"hd"})
	x.Devices.Disks[1].ReadOnly = &emptyElem{}
	if d.Metadata != (Metadata{}) {
		x.Metadata = d.Metadata.element(d.UUID)
	}
	return encode("domain", x)
}

func (d Domain) check() error {
	for _, t := range []text{
		{"the name", d.Name}, {"the UUID", d.UUID}, {"the type", d.Type}, {"the pool", d.Pool}, {"the disk", d.Disk},
		{"the seed", d.Seed}, {"the MAC address", d.MAC},
	} {
		if t.value == "" {
			return fmt.Errorf("%s is missing", t.name)
		}
		if err := checkTexts(t); err != nil {
			return err
		}
	}
	if (d.Network == "") == (d.Bridge == "") {
		return errors.New("exactly one of network and bridge is needed")
	}
	if d.CPUs < 1 || d.MemoryBytes < 1 {
		return errors.New("CPUs and memory must be positive")
	}
	if d.Metadata != (Metadata{}) && d.Metadata.Provider == "" {
		return errors.New("the provider is missing")
	}
	return checkTexts(append(d.Metadata.texts(), text{"the network", d.Network}, text{"the bridge", d.Bridge})...)
}

func cpuOf(domainType string) *cpuXML {
	switch domainType {
	case TypeKVM:
		return &cpuXML{Mode: "host-passthrough"}
	case TypeQEMU:
		return &cpuXML{Mode: "custom", Match: "exact", Model: "qemu64"}
	}
	return nil
}

func volumeDisk(dev string, source sourceXML, driver driverXML) diskXML {
	driver.Name = "qemu"
	return diskXML{Type: "volume", Device: "disk", Driver: driver, Source: source, Target: targetXML{Dev: dev, Bus: "virtio"}}
}

func (d Domain) nic() interfaceXML {
	nic := interfaceXML{Type: "network", MAC: macXML{d.MAC}, Source: sourceXML{Network: d.Network}, Model: modelXML{"virtio"}}
	if d.Bridge != "" {
		nic.Type, nic.Source = "bridge", sourceXML{Bridge: d.Bridge}
	}
	return nic
}

// ParseDomain reads the definition of any domain. Of one that is not ours Metadata is zero and, where it is made otherwise,
// other fields are as well. Only what is not a domain is an error: one strange machine must not hide all others of a host.
func ParseDomain(definition string) (Domain, error) {
	var x domainXML
	if err := xml.Unmarshal([]byte(definition), &x); err != nil {
		return Domain{}, fmt.Errorf("read the XML of a domain: %w", err)
	}
	if x.Name == "" || x.UUID == "" {
		return Domain{}, errors.New("read the XML of a domain: name or UUID is missing")
	}
	d := Domain{Name: x.Name, UUID: x.UUID, Type: x.Type, CPUs: x.CPUs, Metadata: x.Metadata.metadata(x.UUID)}
	var err error
	if d.MemoryBytes, err = x.Memory.bytes("memory of a domain", "KiB"); err != nil {
		return Domain{}, err
	}
	for _, disk := range x.Devices.Disks {
		switch {
		case disk.Type != "volume" || disk.Device != "disk":
		case disk.ReadOnly != nil && d.Seed == "":
			d.Seed = disk.Source.Volume
		case disk.ReadOnly == nil && d.Disk == "":
			d.Pool, d.Disk = disk.Source.Pool, disk.Source.Volume
		}
	}
	if len(x.Devices.Interfaces) > 0 {
		nic := x.Devices.Interfaces[0]
		d.MAC = strings.ToLower(nic.MAC.Address)
		switch nic.Type {
		case "network":
			d.Network = nic.Source.Network
		case "bridge":
			d.Bridge = nic.Source.Bridge
		}
	}
	return d, nil
}
