package virtxml

import (
	"encoding/xml"
	"fmt"
)

// Volume is a file of a storage pool. Sizes are in bytes.
type Volume struct {
	Name string
	// Path on the host; read only.
	Path string
	// Format is qcow2 or raw.
	Format string
	// BackingPath and BackingFormat are the base of a thin clone.
	BackingPath, BackingFormat string
	// Capacity is what the guest sees, Allocation what is used, Physical the length of the file.
	Capacity, Allocation, Physical int64
}

type volumeXML struct {
	XMLName    xml.Name    `xml:"volume"`
	Name       string      `xml:"name"`
	Allocation *bytesXML   `xml:"allocation"`
	Capacity   bytesXML    `xml:"capacity"`
	Physical   *bytesXML   `xml:"physical"`
	Target     targetXML   `xml:"target"`
	Backing    *backingXML `xml:"backingStore"`
}

type targetXML struct {
	Path   string    `xml:"path,omitempty"`
	Format formatXML `xml:"format"`
}

type formatXML struct {
	Type string `xml:"type,attr"`
}

type backingXML struct {
	Path   string    `xml:"path"`
	Format formatXML `xml:"format"`
}

// Marshal writes the definition of a volume that is to be made. Nothing is allocated in advance.
func (v Volume) Marshal() (string, error) {
	x := volumeXML{Name: v.Name, Allocation: &bytesXML{"bytes", 0}, Capacity: bytesXML{"bytes", v.Capacity}}
	x.Target.Format.Type = v.Format
	if v.BackingPath != "" {
		x.Backing = &backingXML{Path: v.BackingPath, Format: formatXML{v.BackingFormat}}
	}
	return encode("volume", x)
}

// ParseVolume reads what libvirt says of a volume. Physical is the Allocation where libvirt does not tell it.
func ParseVolume(text string) (Volume, error) {
	var x volumeXML
	if err := xml.Unmarshal([]byte(text), &x); err != nil {
		return Volume{}, fmt.Errorf("read the description of a volume: %w", err)
	}
	size := func(b *bytesXML) int64 {
		if b == nil {
			return 0
		}
		return b.Value * volumeUnit(b.Unit)
	}
	v := Volume{
		Name: x.Name, Path: x.Target.Path, Format: x.Target.Format.Type, Capacity: size(&x.Capacity), Allocation: size(x.Allocation),
	}
	v.Physical = v.Allocation
	if x.Physical != nil {
		v.Physical = size(x.Physical)
	}
	if x.Backing != nil {
		v.BackingPath, v.BackingFormat = x.Backing.Path, x.Backing.Format.Type
	}
	return v, nil
}

// volumeUnit is like unitOf, but a size without a unit is in bytes.
func volumeUnit(unit string) int64 {
	if unit == "" {
		return 1
	}
	return unitOf(unit)
}

// HostUUID reads the identity of a host from its capabilities.
func HostUUID(capabilities string) (string, error) {
	var x struct {
		Host struct {
			UUID string `xml:"uuid"`
		} `xml:"host"`
	}
	if err := xml.Unmarshal([]byte(capabilities), &x); err != nil {
		return "", fmt.Errorf("read the capabilities of a host: %w", err)
	}
	return x.Host.UUID, nil
}
