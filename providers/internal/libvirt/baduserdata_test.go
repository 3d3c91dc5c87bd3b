package libvirt_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
)

// TestUserDataThatCloudInitIgnoresIsRefused, inline or from a Secret, before anything is asked of a host: the machine would run
// without a proxy, and only its own log would say why.
func TestUserDataThatCloudInitIgnoresIsRefused(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		for _, bad := range []string{
			"packages: [squid]\n", "# cloud-config\n", "# mine\n#cloud-config\n", "---\n#cloud-config\n", "\ufeff#cloud-config\n", " \n",
			"Content-Type: multipart/mixed; boundary=x\n\n--x--\n", "echo hello\n", "I2Nsb3VkLWNvbmZpZwo=", "\x1f\x8b\x08broken",
		} {
			refused := func(way string, err error) {
				t.Helper()
				known, ok := errors.AsType[*providers.Error](err)
				if !ok || known.Reason != providers.InvalidSpec || known.Field != "spec.cloudInit" || !strings.Contains(known.Message, "#cloud-config") {
					t.Errorf("%s %q: %v, want InvalidSpec naming spec.cloudInit", way, bad, err)
				}
			}
			spec := libvirtcheck.Spec(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: bad} })
			refused("inline", b.ValidateSpec(&spec))
			req := b.request("px")
			req.UserData = []byte(bad)
			_, err := b.Create(t.Context(), req)
			refused("from a Secret", err)
		}
		if calls, downloads := len(b.Hosts[0].Frames.Calls()), b.Downloads.Load(); calls > 0 || downloads > 0 {
			t.Errorf("%d calls and %d downloads for what is refused", calls, downloads)
		}
		for _, good := range [][]byte{
			nil, []byte("#cloud-config\n"), []byte("#!/bin/sh\n"), []byte("Content-Type: multipart/mixed; boundary=x\nMIME-Version: 1.0\n\n--x--\n"),
			append([]byte("#!/bin/sh\n"), bytes.Repeat([]byte{0xff, 0}, 100)...),
		} {
			spec := libvirtcheck.Spec(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: string(good)} })
			if err := b.ValidateSpec(&spec); err != nil {
				t.Errorf("%q: %v", good, err)
			}
		}
	})
}
