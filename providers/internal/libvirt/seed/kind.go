package seed

import (
	"bytes"
	"compress/gzip"
	"io"
	"unicode"
)

// Message is the Kind of a MIME message, whose parts have kinds of their own.
const Message = "multipart/mixed"

// messageWithin is how many bytes cloud-init searches for the mark of a message.
const messageWithin = 4096

// kinds are the first characters by which cloud-init tells what it is given, in lower case, the longer ones first; see "User
// data formats" in its documentation.
var kinds = []struct{ prefix, kind string }{
	{"#cloud-config-archive", "text/cloud-config-archive"},
	{"#cloud-config-jsonp", "text/cloud-config-jsonp"},
	{"#cloud-config", "text/cloud-config"},
	{"#cloud-boothook", "text/cloud-boothook"},
	{"#include-once", "text/x-include-once-url"},
	{"#include", "text/x-include-url"},
	{"#part-handler", "text/part-handler"},
	{"## template: jinja", "text/jinja2"},
	{"#!", "text/x-shellscript"},
}

// Kind is what cloud-init takes user data or vendor data for, as a MIME type. It is "" for what cloud-init ignores, with no
// more than a line in a log of the machine.
func Kind(data []byte) string {
	data = head(data)
	// A message without this is taken for a text, and none of the kinds below.
	if bytes.Contains(bytes.ToLower(data[:min(len(data), messageWithin)]), []byte("mime-version:")) {
		return Message
	}
	text := bytes.ToLower(bytes.TrimLeftFunc(data, unicode.IsSpace))
	for _, k := range kinds {
		if bytes.HasPrefix(text, []byte(k.prefix)) {
			return k.kind
		}
	}
	return ""
}

// head is the begin of data, decompressed. What only looks compressed is taken as it is.
func head(data []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return data
	}
	// The rest may be anything: only the machine reads it.
	plain, _ := io.ReadAll(io.LimitReader(r, 2*messageWithin))
	return plain
}
