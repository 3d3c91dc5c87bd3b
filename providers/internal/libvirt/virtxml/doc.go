// Package virtxml is the XML of libvirt: the definitions of domains and volumes that are written, and what is read back from
// them. Everything goes through encoding/xml, so that a name with specials in it can neither break a definition nor add to
// one.
package virtxml

import (
	"encoding/xml"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// text is a value that goes into XML, with the name it has in an error.
type text struct{ name, value string }

// checkTexts refuses what XML cannot hold: the encoder would replace it silently, and another value would be read back.
func checkTexts(texts ...text) error {
	for _, t := range texts {
		if !utf8.ValidString(t.value) {
			return fmt.Errorf("%s is not UTF-8", t.name)
		}
		if i := strings.IndexFunc(t.value, func(r rune) bool { return !isXMLChar(r) }); i >= 0 {
			return fmt.Errorf("%s has a character that XML cannot hold", t.name)
		}
	}
	return nil
}

// isXMLChar is the production Char of XML 1.0.
func isXMLChar(r rune) bool {
	switch {
	case r == '\t', r == '\n', r == '\r':
		return true
	case r >= 0x20 && r <= 0xD7FF, r >= 0xE000 && r <= 0xFFFD, r >= 0x10000 && r <= 0x10FFFF:
		return true
	}
	return false
}

// encode writes a document.
func encode(what string, v any) (string, error) {
	out, err := xml.MarshalIndent(v, "", "  ")
	if err != nil {
		return "", fmt.Errorf("write the XML of the %s: %w", what, err)
	}
	return string(out) + "\n", nil
}

// quantity is a number of bytes as libvirt writes it: with a unit, or without for a default that depends on the place.
type quantity struct {
	Unit  string `xml:"unit,attr,omitempty"`
	Value string `xml:",chardata"`
}

func bytesOf(n int64) *quantity { return &quantity{Unit: "bytes", Value: strconv.FormatInt(n, 10)} }

// units are those of libvirt's virScaleInteger.
var units = map[string]int64{
	"b": 1, "byte": 1, "bytes": 1,
	"kb": 1000, "mb": 1000_000, "gb": 1000_000_000, "tb": 1000_000_000_000,
	"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40,
	"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
}

// bytes reads a quantity; 0 for one that is absent.
func (q *quantity) bytes(what, defaultUnit string) (int64, error) {
	if q == nil {
		return 0, nil
	}
	value, err := strconv.ParseInt(strings.TrimSpace(q.Value), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the %s: %w", what, err)
	}
	unit := q.Unit
	if unit == "" {
		unit = defaultUnit
	}
	scale, known := units[strings.ToLower(unit)]
	if !known {
		return 0, fmt.Errorf("read the %s: unknown unit %q", what, unit)
	}
	if value < 0 || value > (1<<63-1)/scale {
		return 0, fmt.Errorf("read the %s: out of range", what)
	}
	return value * scale, nil
}
