package sshdial_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// echo makes sure that a stream is one.
func echo(t *testing.T, conn *sshdial.Conn) {
	t.Helper()
	if _, err := io.WriteString(conn, "ping"); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "ping" {
		t.Fatalf("echo: %q, %v", answer, err)
	}
}

func TestDialledStreamCarriesBothWaysAndClosesWhole(t *testing.T) {
	key, hostKey := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ED25519)
	t.Run("use", func(t *testing.T) {
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
		s := &server{hostKeys: []ssh.Signer{signer(t, hostKey)}, client: key.Public}
		t.Run("one", func(t *testing.T) {
			serve(t, s)
			ctx, cancel := context.WithCancel(t.Context())
			conn, err := sshdial.Dial(ctx, s.target(), sshdial.Auth{Key: key.Private, KnownHosts: libvirttest.KnownHosts(s.address(), hostKey)})
			if err != nil {
				t.Fatal(err)
			}
			cancel() // the connection outlives the context of its dial
			echo(t, conn)
			if err := errors.Join(conn.Close(), conn.Close()); err != nil {
				t.Error(err)
			}
		})
	})
}

func TestBadInputIsToldByKindAndNeverMakesTheCheckLessStrict(t *testing.T) {
	key, other := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ED25519)
	hostKey, ecdsa := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ECDSA)
	s := serve(t, &server{hostKeys: []ssh.Signer{signer(t, hostKey)}, client: key.Public})
	known := libvirttest.KnownHosts(s.address(), hostKey)
	line := string(libvirttest.KnownHosts(s.address(), hostKey))
	for name, test := range map[string]struct {
		key, knownHosts []byte
		want            sshdial.Kind
	}{
		"no key":                               {nil, known, sshdial.BadKey},
		"no private key":                       {[]byte("-----BEGIN NONSENSE-----\n"), known, sshdial.BadKey},
		"a public key":                         {[]byte(key.AuthorizedKey("")), known, sshdial.BadKey},
		"a cut key":                            {key.Private[:len(key.Private)/2], known, sshdial.BadKey},
		"a passphrase":                         {libvirttest.NewEncryptedKey(t).Private, known, sshdial.KeyEncrypted},
		"a key that is not authorized":         {other.Private, known, sshdial.AuthRefused},
		"no known hosts":                       {key.Private, nil, sshdial.BadKnownHosts},
		"known hosts with a comment only":      {key.Private, []byte("# " + line), sshdial.BadKnownHosts},
		"malformed known hosts":                {key.Private, []byte("127.0.0.1 ssh-ed25519 %%%\n"), sshdial.BadKnownHosts},
		"a revocation that cannot be read":     {key.Private, []byte("@revoked * ssh-ed25519 %%%\n" + line), sshdial.BadKnownHosts},
		"an unknown mark":                      {key.Private, []byte("@trust " + line), sshdial.BadKnownHosts},
		"another host only":                    {key.Private, libvirttest.KnownHosts("127.0.0.1:1", hostKey), sshdial.HostKeyUnknown},
		"another key":                          {key.Private, libvirttest.KnownHosts(s.address(), other), sshdial.HostKeyMismatch},
		"a type of key the host does not have": {key.Private, libvirttest.KnownHosts(s.address(), ecdsa), sshdial.HostKeyMismatch},
		"a revoked key":                        {key.Private, []byte("@revoked * " + strings.TrimPrefix(hostKey.AuthorizedKey(""), " ") + line), sshdial.HostKeyRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := sshdial.Dial(t.Context(), s.target(), sshdial.Auth{Key: test.key, KnownHosts: test.knownHosts})
			if err == nil {
				_ = conn.Close()
			}
			if got := sshdial.KindOf(err); got != test.want {
				t.Errorf("kind %q of %v, want %q", got, err, test.want)
			}
			if refused, ok := errors.AsType[*sshdial.Error](err); ok && !refused.Credentials() {
				t.Errorf("%v is not told as one of credentials", err)
			}
			for _, secret := range []string{string(key.Private), string(other.Private)} {
				if err != nil && strings.Contains(err.Error(), strings.Split(secret, "\n")[1]) {
					t.Errorf("the key is in the error %v", err)
				}
			}
		})
	}
}

func TestOnlyIgnoringHostKeysTakesAnyHost(t *testing.T) {
	key := libvirttest.NewKey(t, libvirttest.ED25519)
	s := serve(t, &server{hostKeys: []ssh.Signer{signer(t, libvirttest.NewKey(t, libvirttest.ED25519))}, client: key.Public})
	conn, err := sshdial.Dial(t.Context(), s.target(), sshdial.Auth{Key: key.Private, IgnoreHostKey: true})
	if err != nil {
		t.Fatal(err)
	}
	echo(t, conn)
	_ = conn.Close()
}

func TestHostKeyOfACertificateAuthority(t *testing.T) {
	key, authority, hostKey := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ECDSA), libvirttest.NewKey(t, libvirttest.ED25519)
	s := serve(t, &server{hostKeys: []ssh.Signer{certificate(t, signer(t, authority), signer(t, hostKey))}, client: key.Public})
	conn, err := sshdial.Dial(t.Context(), s.target(), sshdial.Auth{
		Key: key.Private, KnownHosts: []byte("@cert-authority " + string(libvirttest.KnownHosts(s.address(), authority))),
	})
	if err != nil {
		t.Fatal(err)
	}
	echo(t, conn)
	_ = conn.Close()
}

func TestOneLineThatCannotBeReadDoesNotHideTheOthers(t *testing.T) {
	key, hostKey := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ED25519)
	s := serve(t, &server{hostKeys: []ssh.Signer{signer(t, hostKey)}, client: key.Public})
	conn, err := sshdial.Dial(t.Context(), s.target(), sshdial.Auth{
		Key: key.Private, KnownHosts: append([]byte("old.example.com ssh-none AAAA\r\n"), libvirttest.KnownHosts(s.address(), hostKey)...),
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}

func TestRefusedChannelsTellWhatToCheck(t *testing.T) {
	key, hostKey := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ED25519)
	for reason, want := range map[ssh.RejectionReason]sshdial.Kind{
		ssh.Prohibited: sshdial.ForwardRefused, ssh.UnknownChannelType: sshdial.ForwardRefused,
		ssh.ConnectionFailed: sshdial.SocketRefused, ssh.ResourceShortage: sshdial.SocketRefused,
	} {
		s := serve(t, &server{hostKeys: []ssh.Signer{signer(t, hostKey)}, client: key.Public, refuse: reason})
		_, err := sshdial.Dial(t.Context(), s.target(), sshdial.Auth{Key: key.Private, KnownHosts: libvirttest.KnownHosts(s.address(), hostKey)})
		refused, ok := errors.AsType[*sshdial.Error](err)
		if !ok || refused.Kind != want || refused.Credentials() || refused.Kind.Message() == "" {
			t.Errorf("%v: %v, want %s", reason, err, want)
		}
	}
}

func TestDialEndsWithItsContextWhereverTheHostStopsAnswering(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	key, hostKey := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ED25519)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	t.Run("stalls", func(t *testing.T) {
		deaf := serve(t, &server{hostKeys: []ssh.Signer{signer(t, hostKey)}, client: key.Public, deaf: true})
		for name, to := range map[string]net.Listener{"handshake": silent, "channel": deaf.listener} {
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			_, err := sshdial.Dial(ctx, target(to), sshdial.Auth{Key: key.Private, KnownHosts: libvirttest.KnownHosts(to.Addr().String(), hostKey)})
			cancel()
			if sshdial.KindOf(err) != sshdial.Unreachable || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v, want that time ran out", name, err)
			}
		}
	})
}

func TestWhatIsNoSSHServerIsUnreachable(t *testing.T) {
	key, hostKey := libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ED25519)
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: http.NotFoundHandler()}
	go func() { _ = server.Serve(web) }()
	t.Cleanup(func() { _ = server.Close() })
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for name, to := range map[string]net.Listener{"web server": web, "nothing": closed} {
		_, err := sshdial.Dial(t.Context(), target(to), sshdial.Auth{Key: key.Private, KnownHosts: libvirttest.KnownHosts(to.Addr().String(), hostKey)})
		refused, ok := errors.AsType[*sshdial.Error](err)
		if !ok || refused.Credentials() || refused.Kind != sshdial.Unreachable && refused.Kind != sshdial.NotSSH {
			t.Errorf("%s: %v", name, err)
		}
	}
}
