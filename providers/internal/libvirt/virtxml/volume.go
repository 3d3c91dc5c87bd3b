package virtxml

import (
	"encoding/xml"
	"errors"
	"fmt"
)

// Formats of volumes.
const (
	FormatQCOW2 = "qcow2"
	FormatRaw   = "raw"
)

// Volume is a volume of a storage pool. Sizes are in bytes.
type Volume struct {
	Name string
	// Path on the host; libvirt chooses it.
	Path string
	// Format is qcow2 or raw; libvirt knows more, which are read as they are.
	Format string
	// BackingPath and BackingFormat of the volume below; both or neither.
	BackingPath, BackingFormat string
	// Capacity is what the guest sees, Allocation what is taken from the pool, Physical the length of the file. Physical is
	// only read; 0 where the driver does not tell.
	Capacity, Allocation, Physical int64
}

type volumeXML struct {
	XMLName    xml.Name        `xml:"volume"`
	Name       string          `xml:"name"`
	Capacity   *quantity       `xml:"capacity"`
	Allocation *quantity       `xml:"allocation"`
	Physical   *quantity       `xml:"physical"`
	Target     volumeTargetXML `xml:"target"`
	Backing    *backingXML     `xml:"backingStore"`
}

type volumeTargetXML struct {
	Path   string    `xml:"path,omitempty"`
	Format formatXML `xml:"format"`
}

type backingXML struct {
	Path   string    `xml:"path"`
	Format formatXML `xml:"format"`
}

type formatXML struct {
	Type string `xml:"type,attr"`
}

// Marshal writes what StorageVolCreateXML wants; Path and Physical are left out. A backing volume without its format is
// refused: libvirt would guess it from bytes that a guest has written.
func (v Volume) Marshal() (string, error) {
	switch {
	case v.Name == "", v.Format == "":
		return "", errors.New("write the XML of a volume: name or format is missing")
	case (v.BackingPath == "") != (v.BackingFormat == ""):
		return "", errors.New("write the XML of a volume: path and format of the volume below belong together")
	case v.Capacity < 0, v.Allocation < 0:
		return "", errors.New("write the XML of a volume: negative size")
	}
	if err := checkTexts(text{"the name", v.Name}, text{"the format", v.Format}, text{"the path below", v.BackingPath},
		text{"the format below", v.BackingFormat}); err != nil {
		return "", fmt.Errorf("write the XML of a volume: %w", err)
	}
	x := volumeXML{
		Name: v.Name, Capacity: bytesOf(v.Capacity), Allocation: bytesOf(v.Allocation),
		Target: volumeTargetXML{Format: formatXML{v.Format}},
	}
	if v.BackingPath != "" {
		x.Backing = &backingXML{Path: v.BackingPath, Format: formatXML{v.BackingFormat}}
	}
	return encode("volume", x)
}

// ParseVolume reads what StorageVolGetXMLDesc says.
func ParseVolume(description string) (Volume, error) {
	var x volumeXML
	if err := xml.Unmarshal([]byte(description), &x); err != nil {
		return Volume{}, fmt.Errorf("read the XML of a volume: %w", err)
	}
	if x.Name == "" {
		return Volume{}, errors.New("read the XML of a volume: name is missing")
	}
	v := Volume{Name: x.Name, Path: x.Target.Path, Format: x.Target.Format.Type}
	if x.Backing != nil {
		v.BackingPath, v.BackingFormat = x.Backing.Path, x.Backing.Format.Type
	}
	for _, size := range []struct {
		what string
		from *quantity
		to   *int64
	}{
		{"capacity of a volume", x.Capacity, &v.Capacity},
		{"allocation of a volume", x.Allocation, &v.Allocation},
		{"physical size of a volume", x.Physical, &v.Physical},
	} {
		var err error
		if *size.to, err = size.from.bytes(size.what, "bytes"); err != nil {
			return Volume{}, err
		}
	}
	return v, nil
}

// HostUUID reads the UUID of the host from its capabilities.
func HostUUID(capabilities string) (string, error) {
	var x struct {
		XMLName xml.Name `xml:"capabilities"`
		UUID    string   `xml:"host>uuid"`
	}
	if err := xml.Unmarshal([]byte(capabilities), &x); err != nil {
		return "", fmt.Errorf("read the capabilities of the host: %w", err)
	}
	if x.UUID == "" {
		return "", errors.New("read the capabilities of the host: no UUID")
	}
	return x.UUID, nil
}
