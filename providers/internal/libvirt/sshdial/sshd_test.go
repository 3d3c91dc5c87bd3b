package sshdial_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// ask dials and asks libvirt something.
func ask(t *testing.T, to sshdial.Target, auth sshdial.Auth) error {
	t.Helper()
	stream, err := sshdial.Dial(t.Context(), to, auth)
	if err != nil {
		return err
	}
	conn, err := rpc.Open(t.Context(), stream, libvirttest.URI, rpc.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	_, err = conn.LibVersion(t.Context())
	return err
}

// TestV4_DialsARealServer: all ways that known_hosts and keys are written, on a port that is not 22.
func TestV4_DialsARealServer(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	address, keys := h.Link.Address(), h.HostKeys
	rsa := libvirttest.NewKey(t, libvirttest.RSA)
	ecdsa := libvirttest.NewKey(t, libvirttest.ECDSA)
	h.Authorize(t, h.Key.AuthorizedKey(libvirttest.SafeOptions), rsa.AuthorizedKey(libvirttest.SafeOptions), ecdsa.AuthorizedKey(libvirttest.SafeOptions))
	for name, auth := range map[string]sshdial.Auth{
		"all host keys":               h.Auth(),
		"hashed":                      {Key: h.Key.Private, KnownHosts: libvirttest.HashedKnownHosts(address, keys...)},
		"only the first type":         {Key: h.Key.Private, KnownHosts: libvirttest.KnownHosts(address, keys[0])},
		"only the second type":        {Key: h.Key.Private, KnownHosts: libvirttest.KnownHosts(address, keys[1])},
		"only one type, hashed":       {Key: h.Key.Private, KnownHosts: libvirttest.HashedKnownHosts(address, keys[0])},
		"an RSA key":                  {Key: rsa.Private, KnownHosts: h.KnownHosts()},
		"an ECDSA key":                {Key: ecdsa.Private, KnownHosts: h.KnownHosts()},
		"host keys are not looked at": {Key: h.Key.Private, IgnoreHostKey: true},
	} {
		if err := ask(t, h.Target(), auth); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := libvirttest.NewKey(t, libvirttest.ED25519)
	for name, test := range map[string]struct {
		auth sshdial.Auth
		want sshdial.Kind
	}{
		"a passphrase":            {sshdial.Auth{Key: libvirttest.NewEncryptedKey(t).Private, KnownHosts: h.KnownHosts()}, sshdial.KeyEncrypted},
		"no key":                  {sshdial.Auth{KnownHosts: h.KnownHosts()}, sshdial.BadKey},
		"a key nobody knows":      {sshdial.Auth{Key: other.Private, KnownHosts: h.KnownHosts()}, sshdial.AuthRefused},
		"known under port 22":     {sshdial.Auth{Key: h.Key.Private, KnownHosts: libvirttest.KnownHosts("127.0.0.1:22", keys...)}, sshdial.HostKeyUnknown},
		"another key of its type": {sshdial.Auth{Key: h.Key.Private, KnownHosts: libvirttest.KnownHosts(address, other)}, sshdial.HostKeyMismatch},
		"a type it has no key of": {sshdial.Auth{Key: h.Key.Private, KnownHosts: libvirttest.KnownHosts(address, rsa)}, sshdial.HostKeyMismatch},
		"no known hosts":          {sshdial.Auth{Key: h.Key.Private}, sshdial.BadKnownHosts},
	} {
		if err := ask(t, h.Target(), test.auth); sshdial.KindOf(err) != test.want {
			t.Errorf("%s: %v, want %s", name, err, test.want)
		}
	}
	t.Run("RSA host key", func(t *testing.T) {
		h.WriteHostKeys(t, libvirttest.NewKey(t, libvirttest.RSA), keys[1])
		h.SSHD.Restart(t)
		if err := ask(t, h.Target(), sshdial.Auth{Key: h.Key.Private, KnownHosts: libvirttest.KnownHosts(address, h.HostKeys[0])}); err != nil {
			t.Error(err)
		}
	})
}

// TestV30_MissingRightsAndAWrongSocketAreTold: the message says what to check.
func TestV30_MissingRightsAndAWrongSocketAreTold(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	// OpenSSH gives one answer for all of these, so its message has to name each.
	refused := func(name string, to sshdial.Target, check string) {
		t.Helper()
		err := ask(t, to, h.Auth())
		if message := sshdial.KindOf(err).Message(); !strings.Contains(message, check) {
			t.Errorf("%s: %v (%s): %q does not say to check %q", name, err, sshdial.KindOf(err), message, check)
		}
	}
	wrong := h.Target()
	wrong.Socket = filepath.Join(filepath.Dir(h.Socket), "none.sock")
	refused("no such socket", wrong, "path of the socket")

	if os.Getuid() == 0 {
		// The rights of the user: the socket is root's.
		if err := os.Chmod(h.Socket, 0o700); err != nil {
			t.Fatal(err)
		}
		refused("no right to the socket", h.Target(), "group of the socket")
		if err := os.Chmod(h.Socket, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	h.Authorize(t, h.Key.AuthorizedKey("restrict"))
	refused("a key that may not forward", h.Target(), "authorized_keys")
	h.Authorize(t, h.Key.AuthorizedKey(libvirttest.SafeOptions))
	if err := ask(t, h.Target(), h.Auth()); err != nil {
		t.Errorf("with all rights: %v", err)
	}
	h.ConfigureSSHD(t, "AllowStreamLocalForwarding no")
	h.SSHD.Restart(t)
	refused("a server that does not forward", h.Target(), "AllowStreamLocalForwarding")
	h.ConfigureSSHD(t)
	h.SSHD.Restart(t)
	h.Libvirtd.Kill()
	wrong.Socket = h.Direct
	refused("no libvirtd", wrong, "that libvirtd runs")
}
