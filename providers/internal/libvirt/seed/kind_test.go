package seed

import (
	"bytes"
	"compress/gzip"
	"strings"
	"testing"
)

// TestKind: what cloud-init takes, in the ways that people write it, and what it ignores.
func TestKind(t *testing.T) {
	for text, want := range map[string]string{
		"#cloud-config\n":                             "text/cloud-config",
		"#cloud-config":                               "text/cloud-config",
		"\n  #cloud-config\r\nruncmd: []":             "text/cloud-config",
		"#Cloud-Config\n":                             "text/cloud-config",
		"#cloud-config-archive\n[]":                   "text/cloud-config-archive",
		"#cloud-config-jsonp\n[]":                     "text/cloud-config-jsonp",
		"#!/bin/sh\n":                                 "text/x-shellscript",
		"#!/bin/sh\n\x00\xff":                         "text/x-shellscript",
		"#include\nhttps://a.example":                 "text/x-include-url",
		"#include-once https://a.example":             "text/x-include-once-url",
		"#cloud-boothook\n":                           "text/cloud-boothook",
		"#part-handler\n":                             "text/part-handler",
		"## template: jinja\n#cloud-config\n":         "text/jinja2",
		"MIME-Version: 1.0\nContent-Type: text/plain": Message,
		"Content-Type: multipart/mixed; boundary=\"=\"\nMIME-Version: 1.0\n\n": Message,
		"":                               "",
		"\n":                             "",
		"package_update: true\n":         "",
		"# cloud-config\nruncmd: []":     "",
		"---\n#cloud-config\nruncmd: []": "",
		"# made by hand\n#cloud-config\nruncmd: []":              "",
		"\ufeff#cloud-config\n":                                  "",
		"Content-Type: multipart/mixed; boundary=x\n\n":          "",
		"{\"ignition\": {\"version\": \"3.0.0\"}}":               "",
		"I2Nsb3VkLWNvbmZpZwo=":                                   "",
		"\x1f\x8bnot compressed":                                 "",
		strings.Repeat("x", messageWithin) + "mime-version: 1.0": "",
	} {
		if got := Kind([]byte(text)); got != want {
			t.Errorf("%.40q is %q, want %q", text, got, want)
		}
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		_, _ = w.Write([]byte(text))
		_ = w.Close()
		if got := Kind(out.Bytes()); got != want {
			t.Errorf("%.40q, compressed, is %q, want %q", text, got, want)
		}
	}
}
