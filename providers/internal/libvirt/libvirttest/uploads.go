package libvirttest

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

const (
	// qcow2Magic begins an image, its virtual size is behind it.
	qcow2Magic  = "QFI\xfb"
	qcow2SizeAt = 24
	qcow2Header = 32
	// emptyQCOW2 is about what a new volume of this format takes.
	emptyQCOW2 = 196 << 10
)

// upload is what has been written into a volume.
type upload struct {
	volume string
	head   []byte
	bytes  int64
}

func (u *upload) write(data []byte) {
	u.bytes += int64(len(data))
	u.head = append(u.head, data[:min(len(data), qcow2Header-len(u.head))]...)
}

// virtual is the size that an image says it has; 0 for what is no image.
func (u *upload) virtual() int64 {
	if len(u.head) < qcow2Header || string(u.head[:len(qcow2Magic)]) != qcow2Magic {
		return 0
	}
	return int64(binary.BigEndian.Uint64(u.head[qcow2SizeAt:]))
}

var (
	capacityElement   = regexp.MustCompile(`<capacity unit='bytes'>(\d+)</capacity>`)
	allocationElement = regexp.MustCompile(`<allocation unit='bytes'>\d+</allocation>`)
	formatElement     = regexp.MustCompile(`<format type='(\w+)'/>`)
)

// likeFiles makes the description of a volume what it would be for a file: the test driver has no files and so no physical
// size. u is what was uploaded; nil for nothing.
func likeFiles(xml string, u *upload) string {
	format, capacity := "raw", int64(0)
	if match := formatElement.FindStringSubmatch(xml); match != nil {
		format = match[1]
	}
	if match := capacityElement.FindStringSubmatch(xml); match != nil {
		capacity, _ = strconv.ParseInt(match[1], 10, 64)
	}
	physical := capacity
	if format == "qcow2" {
		physical = emptyQCOW2
		if u != nil {
			physical = u.bytes
			if virtual := u.virtual(); virtual > 0 {
				xml = capacityElement.ReplaceAllString(xml, fmt.Sprintf("<capacity unit='bytes'>%d</capacity>", virtual))
			}
		}
	}
	if strings.Contains(xml, "<physical") {
		return xml
	}
	allocation := allocationElement.FindString(xml)
	if format == "qcow2" {
		allocation = fmt.Sprintf("<allocation unit='bytes'>%d</allocation>", physical)
	}
	return allocationElement.ReplaceAllString(xml, fmt.Sprintf("%s\n  <physical unit='bytes'>%d</physical>", allocation, physical))
}
