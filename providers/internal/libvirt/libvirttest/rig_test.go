package libvirttest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// short is how long a test waits for an answer that is not to come.
const short = 300 * time.Millisecond

// dial opens a connection through everything that a host has.
func dial(t *testing.T, h *libvirttest.Host) *rpc.Conn {
	t.Helper()
	stream, err := sshdial.Dial(t.Context(), h.Target(), h.Auth())
	if err != nil {
		t.Fatal(err)
	}
	return open(t, stream)
}

// direct opens a connection to Frames, without SSH.
func direct(t *testing.T, h *libvirttest.Host) *rpc.Conn {
	t.Helper()
	stream, err := net.Dial("unix", h.Socket)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, stream)
}

func open(t *testing.T, stream net.Conn) *rpc.Conn {
	t.Helper()
	conn, err := rpc.Open(t.Context(), stream, libvirttest.URI, rpc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// answers tells whether libvirtd answers.
func answers(ctx context.Context, c *rpc.Conn) error {
	_, err := c.LibVersion(ctx)
	return err
}

func define(ctx context.Context, c *rpc.Conn, name string) error {
	_, err := c.DomainDefine(ctx, fmt.Sprintf("<domain type='test'><name>%s</name><memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>", name))
	return err
}

// TestRigHostsAreApartAndKeepTheirState: what a connection leaves is there for the next one, on its own host only.
func TestRigHostsAreApartAndKeepTheirState(t *testing.T) {
	hosts := libvirttest.Start(t, 2)
	first := dial(t, hosts[0])
	if err := define(t.Context(), first, "px-1"); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	libvirttest.Await(t, func() error {
		if n := hosts[0].Link.Open(); n > 0 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	if _, err := dial(t, hosts[0]).DomainLookupByName(t.Context(), "px-1"); err != nil {
		t.Errorf("after the connection that defined it: %v", err)
	}
	if _, err := dial(t, hosts[1]).DomainLookupByName(t.Context(), "px-1"); rpc.CodeOf(err) != rpc.NoDomain {
		t.Errorf("on the other host: %v, want no domain", err)
	}
	if got := hosts[0].Domains(t); len(got) != 1 || got[0] != "px-1" || len(hosts[1].Domains(t)) != 0 {
		t.Errorf("domains %v and %v", got, hosts[1].Domains(t))
	}
}

// TestRigHasWhatClassesExpect: both pools and the network are active, also after a restart.
func TestRigHasWhatClassesExpect(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	for _, when := range []string{"from the start", "after a restart"} {
		c := direct(t, h)
		for _, name := range []string{libvirttest.Pool, libvirttest.ClassPool} {
			pool, err := c.PoolLookupByName(t.Context(), name)
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if info, err := c.PoolInfo(t.Context(), pool); err != nil || !info.Active || info.Available < 1<<30 {
				t.Errorf("%s: pool %s: %+v, %v", when, name, info, err)
			}
			if got := h.Volumes(t, name); len(got) > 0 {
				t.Errorf("%s: pool %s has %v", when, name, got)
			}
		}
		if active, err := c.NetworkActive(t.Context(), libvirttest.Network); err != nil || !active {
			t.Errorf("%s: network active: %v, %v", when, active, err)
		}
		h.Libvirtd.Restart(t)
	}
}

// TestRigLibvirtd freezes, kills and starts libvirtd behind an sshd that is fine.
func TestRigLibvirtd(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	c := dial(t, h)
	h.Libvirtd.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), short)
	defer cancel()
	if err := answers(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("frozen: %v, want no answer", err)
	}
	h.Libvirtd.Thaw()
	if err := answers(t.Context(), c); err != nil {
		t.Errorf("thawed: %v", err)
	}
	if err := define(t.Context(), c, "px-1"); err != nil {
		t.Fatal(err)
	}
	h.Libvirtd.Kill()
	if err := answers(t.Context(), c); !rpc.IsLost(err) {
		t.Errorf("killed: %v, want a lost connection", err)
	}
	if _, err := net.Dial("unix", h.Direct); err == nil {
		t.Error("killed: somebody listens")
	}
	h.Libvirtd.Start(t)
	if err := answers(t.Context(), dial(t, h)); err != nil {
		t.Errorf("started: %v", err)
	}
	if got := h.Domains(t); len(got) > 0 {
		t.Errorf("the test driver remembers %v", got)
	}
}

// TestRigSSHD kills and starts sshd, and changes the keys of both sides.
func TestRigSSHD(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	dialled := func(auth sshdial.Auth) error {
		stream, err := sshdial.Dial(t.Context(), h.Target(), auth)
		if err == nil {
			err = stream.Close()
		}
		return err
	}
	c := dial(t, h)
	if h.SSHD.Children() == 0 || h.Link.Open() != 1 {
		t.Errorf("%d processes, %d connections", h.SSHD.Children(), h.Link.Open())
	}
	h.SSHD.Kill()
	if err := answers(t.Context(), c); err != nil {
		t.Errorf("a session did not outlive sshd: %v", err)
	}
	if err := dialled(h.Auth()); sshdial.KindOf(err) != sshdial.Unreachable {
		t.Errorf("without sshd: %v", err)
	}
	h.SSHD.Start(t)
	if err := dialled(h.Auth()); err != nil {
		t.Errorf("started: %v", err)
	}

	stranger := libvirttest.NewKey(t, libvirttest.ECDSA)
	auth := sshdial.Auth{Key: stranger.Private, KnownHosts: h.KnownHosts()}
	if err := dialled(auth); sshdial.KindOf(err) != sshdial.AuthRefused {
		t.Errorf("a stranger's key: %v", err)
	}
	h.Authorize(t, stranger.AuthorizedKey(libvirttest.SafeOptions))
	if err := dialled(auth); err != nil {
		t.Errorf("the new key: %v", err)
	}
	if err := dialled(h.Auth()); sshdial.KindOf(err) != sshdial.AuthRefused {
		t.Errorf("the old key: %v", err)
	}
	old := h.KnownHosts()
	h.WriteHostKeys(t, libvirttest.NewKey(t, libvirttest.ED25519), libvirttest.NewKey(t, libvirttest.ECDSA))
	h.SSHD.Restart(t)
	if err := dialled(sshdial.Auth{Key: stranger.Private, KnownHosts: old}); sshdial.KindOf(err) != sshdial.HostKeyMismatch {
		t.Errorf("old keys of the host: %v", err)
	}
	h.ConfigureSSHD(t, "AllowStreamLocalForwarding no")
	h.SSHD.Restart(t)
	if err := dialled(sshdial.Auth{Key: stranger.Private, KnownHosts: h.KnownHosts()}); err == nil {
		t.Error("the configuration forbids it, and still sshd forwards")
	}
	_ = c.Close()
	libvirttest.Await(t, func() error {
		if n, m := h.Link.Open(), h.SSHD.Children(); n+m > 0 {
			return fmt.Errorf("%d connections and %d processes are left", n, m)
		}
		return nil
	})
}

// TestRigLink stalls and cuts the network.
func TestRigLink(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	c := dial(t, h)
	h.Link.Stall()
	answer := make(chan error)
	go func() { answer <- answers(t.Context(), c) }()
	select {
	case err := <-answer:
		t.Errorf("stalled: %v", err)
	case <-time.After(short):
		h.Link.Resume()
		if err := <-answer; err != nil {
			t.Errorf("resumed: %v", err)
		}
	}
	if h.Link.Opened() != 1 {
		t.Errorf("%d connections", h.Link.Opened())
	}
	h.Link.Cut()
	if err := answers(t.Context(), c); !rpc.IsLost(err) {
		t.Errorf("cut: %v", err)
	}
	if err := answers(t.Context(), dial(t, h)); err != nil {
		t.Errorf("after the cut: %v", err)
	}
}

// TestRigLeavesNothing: neither daemons, files nor goroutines, also when daemons are frozen and what was sent to them does not
// fit into anything any more.
func TestRigLeavesNothing(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	var folder string
	t.Run("host", func(t *testing.T) {
		h := libvirttest.Start(t, 1)[0]
		folder = filepath.Dir(h.Socket)
		c := dial(t, h)
		h.Libvirtd.Freeze()
		h.SSHD.Freeze()
		for network, address := range map[string]string{"unix": h.Socket, "tcp": h.Link.Address()} {
			conn, err := net.Dial(network, address)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			flood(t, conn)
		}
		c.Abort(errors.New("enough"))
	})
	if _, err := os.Stat(folder); folder != "" && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", folder, err)
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		if data, err := os.ReadFile(line); err == nil && folder != "" && strings.Contains(string(data), folder+"/") {
			t.Errorf("%s runs: %q", line, data)
		}
	}
}

// flood sends messages until none fits any more.
func flood(t *testing.T, conn net.Conn) {
	t.Helper()
	// A message of libvirt's that is none of its calls: its length, and another program.
	message := make([]byte, 64<<10)
	message[1] = 1
	for {
		if err := conn.SetWriteDeadline(time.Now().Add(short)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(message); errors.Is(err, os.ErrDeadlineExceeded) {
			return
		} else if err != nil && !errors.Is(err, io.ErrShortWrite) {
			t.Fatal(err)
		}
	}
}
