package libvirt_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
)

// wrongCredentials are the ways in which key and known hosts are wrong, and the field of the class that the message names.
func wrongCredentials(t *testing.T, h *libvirttest.Host) map[string]struct {
	key, known []byte
	field      string
} {
	t.Helper()
	key, known := h.Key.Private, h.KnownHosts()
	other := libvirttest.NewKey(t, libvirttest.ED25519)
	return map[string]struct {
		key, known []byte
		field      string
	}{
		"a key that nobody knows":      {other.Private, known, "sshKeyFile"},
		"a passphrase":                 {libvirttest.NewEncryptedKey(t).Private, known, "sshKeyFile"},
		"no private key":               {[]byte(h.Key.AuthorizedKey("")), known, "sshKeyFile"},
		"an empty key":                 {nil, known, "sshKeyFile"},
		"empty known hosts":            {key, nil, "knownHostsFile"},
		"known hosts without the host": {key, libvirttest.KnownHosts("192.0.2.1:22", h.HostKeys...), "knownHostsFile"},
		"another key of the host's":    {key, libvirttest.KnownHosts(h.Link.Address(), other), "knownHostsFile"},
	}
}

// mended checks that a class is refused for its credentials, and after they were mended is not.
func (b *bed) mended(p providers.Provider, what, field string, mend func()) {
	b.t.Helper()
	err := p.Check(b.t.Context())
	known, ok := errors.AsType[*providers.Error](err)
	if !ok || known.Reason != providers.Auth || !strings.Contains(known.Message, field) {
		b.t.Errorf("%s: %v, want Auth naming %s", what, err, field)
	}
	if n := len(b.Hosts[0].Domains(b.t)); n > 0 {
		b.t.Errorf("%s: %d machines", what, n)
	}
	mend()
	b.clock.Step(host.MaxBackoff)
	// kvm has used up what it had read by now.
	_ = p.Check(b.t.Context())
	b.clock.Step(host.MaxBackoff)
	if err := p.Check(b.t.Context()); err != nil {
		b.t.Errorf("%s, after it was mended: %v", what, providers.RawText(err))
	}
}

// TestMendedCredentialsNeedNoRestart: whatever was wrong with the key or the known hosts, and wherever they come from.
func TestMendedCredentialsNeedNoRestart(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		h := b.Hosts[0]
		good := func() { b.WriteKey(t, h.Key.Private); b.WriteKnownHosts(t, h.KnownHosts()) }
		for what, wrong := range wrongCredentials(t, h) {
			b.WriteKey(t, wrong.key)
			b.WriteKnownHosts(t, wrong.known)
			p := b.open(b.Factory, cluster, b.Class("files", 1))
			b.mended(p, "files: "+what, wrong.field, good)

			var secret atomic.Pointer[map[string][]byte]
			secret.Store(&map[string][]byte{libvirt.SecretKey: wrong.key, libvirt.SecretKnownHosts: wrong.known})
			b.mended(b.openWithSecret(func() (map[string][]byte, error) { return *secret.Load(), nil }), "Secret: "+what, "sshSecretRef", func() {
				secret.Store(&map[string][]byte{libvirt.SecretKey: h.Key.Private, libvirt.SecretKnownHosts: h.KnownHosts()})
			})
		}
		for _, file := range []struct{ path, field string }{{"id_ed25519", "sshKeyFile"}, {"known_hosts", "knownHostsFile"}} {
			path := filepath.Join(b.Factory.Root, libvirt.CredentialsDir, file.path)
			b.must(os.Remove(path))
			b.mended(b.open(b.Factory, cluster, b.Class("files", 1)), "files: no "+file.path, file.field, good)
			b.must(os.Remove(path))
			b.must(os.Mkdir(path, 0o700))
			b.mended(b.open(b.Factory, cluster, b.Class("files", 1)), "files: unreadable "+file.path, file.field, func() { b.must(os.Remove(path)); good() })
		}
		for what, refusal := range map[string]error{
			"not there":   apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "s"),
			"not allowed": apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "s", errors.New("no rule")),
		} {
			var granted atomic.Bool
			b.mended(b.openWithSecret(func() (map[string][]byte, error) {
				if !granted.Load() {
					return nil, refusal
				}
				return map[string][]byte{libvirt.SecretKeyFile: h.Key.Private, libvirt.SecretKnownHosts: h.KnownHosts()}, nil
			}), "Secret: "+what, "sshSecretRef", func() { granted.Store(true) })
		}
	})
}

// openWithSecret opens a class whose credentials come from a Secret.
func (b *bed) openWithSecret(read func() (map[string][]byte, error)) providers.Provider {
	b.t.Helper()
	class := b.Class("secret", 1)
	block := libvirtcheck.Block(class)
	block.SSHKeyFile, block.KnownHostsFile, block.SSHSecretRef = "", "", &v1alpha1.LocalSecretRef{Name: "s"}
	p, err := b.Factory.Open(b.t.Context(), class, providers.Runtime{ClusterID: cluster, Clock: b.clock,
		Secrets: func(context.Context, string) (map[string][]byte, error) { return read() }})
	b.must(err)
	b.t.Cleanup(func() { _ = p.Close() })
	return p
}

// TestRotatedKeysNeedNoRestart: the key of the operator, or those of the host, change under an open class.
func TestRotatedKeysNeedNoRestart(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		h := b.Hosts[0]
		b.must(b.Check(t.Context()))
		fresh := libvirttest.NewKey(t, libvirttest.ED25519)
		for what, rotate := range map[string]struct {
			field      string
			host, mine func()
		}{
			"the operator's key": {"sshKeyFile", func() { h.Authorize(t, fresh.AuthorizedKey(libvirttest.SafeOptions)) }, func() { b.WriteKey(t, fresh.Private) }},
			"the host's keys": {"knownHostsFile", func() {
				h.WriteHostKeys(t, libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ECDSA))
				h.SSHD.Restart(t)
			}, func() { b.WriteKnownHosts(t, h.KnownHosts()) }},
		} {
			rotate.host()
			h.Link.Cut()
			b.eventually(what+" is noticed", func() bool { return providers.ReasonOf(b.Check(t.Context())) == providers.Auth })
			b.mended(b.Provider, what, rotate.field, rotate.mine)
		}
	})
}

// TestKvmKeepsCredentialsThatWork: what was read once and is taken by the hosts is not read again; that is what kvm2 does.
func TestKvmKeepsCredentialsThatWork(t *testing.T) {
	b := newBed(t, kvm.NewFactory, 1)
	b.must(b.Check(t.Context()))
	b.WriteKey(t, []byte("somebody is about to write a key"))
	b.Hosts[0].Link.Cut()
	b.eventually("the host is reached again", func() bool { return b.Check(t.Context()) == nil })
	if n := b.Hosts[0].Link.Opened(); n < 2 {
		t.Errorf("%d dials: nothing was shown", n)
	}
}
