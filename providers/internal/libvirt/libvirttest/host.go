package libvirttest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// The test driver, and what it has from the start. ClassPool is added by Start: it has the name that a class's default means.
const (
	URI       = "test:///default"
	Pool      = "default-pool"
	ClassPool = "default"
	Network   = "default"
	Domain    = "test"
)

const (
	// SafeOptions are what authorized_keys needs to say of a key that is for the operator only.
	SafeOptions = `restrict,port-forwarding,command="/bin/false"`

	// maxSocket is the longest path that a Unix socket may have.
	maxSocket = 107
)

// Host is a hypervisor host.
type Host struct {
	// Name of the host: h1, h2 and so on.
	Name string
	// Address and Port of its Link, which is where clients connect.
	Address string
	Port    int
	// User may log in. libvirtd runs as this user.
	User string
	// Key may log in.
	Key Key
	// HostKeys are those of sshd, one ed25519 and one ecdsa.
	HostKeys []Key
	// Socket is the path of Frames, Direct that of libvirtd itself.
	Socket, Direct string

	Libvirtd, SSHD *Daemon
	Link           *Link
	Frames         *Frames

	dir string
	// behind is where sshd listens, behind the Link.
	behind string

	mu   sync.Mutex
	keep *rpc.Conn
}

// Start starts hosts for the time of the test. It skips the test where libvirtd or sshd is not installed, and under -short;
// EGRESS_REQUIRE_ALL=1 turns the former into a failure.
func Start(t testing.TB, count int) []*Host {
	t.Helper()
	programs := find(t, "libvirtd", "sshd")
	hosts := make([]*Host, count)
	var wg sync.WaitGroup
	for i := range hosts {
		h := prepare(t, fmt.Sprintf("h%d", i+1), programs)
		hosts[i] = h
		wg.Go(func() {
			if err := errors.Join(h.SSHD.start(), h.Libvirtd.start()); err != nil {
				t.Errorf("start %s: %v\nsshd: %s\nlibvirtd: %s", h.Name, err, h.SSHD.Log(), h.Libvirtd.Log())
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return hosts
}

// find finds programs or skips the test.
func find(t testing.TB, names ...string) map[string]string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real libvirtd and sshd: not with -short")
	}
	found := map[string]string{}
	for _, name := range names {
		for _, candidate := range []string{name, "/usr/sbin/" + name} {
			if path, err := exec.LookPath(candidate); err == nil {
				found[name] = path
			}
		}
		if found[name] != "" {
			continue
		}
		missing := name + " is not installed: apt-get install libvirt-daemon-system openssh-server"
		if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
			t.Fatal("EGRESS_REQUIRE_ALL=1, but " + missing)
		}
		t.Skip(missing)
	}
	return found
}

// prepare makes everything of a host but for its running daemons.
func prepare(t testing.TB, name string, programs map[string]string) *Host {
	t.Helper()
	// Not t.TempDir: paths of sockets must be short, and the daemons' user must reach them.
	dir, err := os.MkdirTemp("", "lv-")
	if err != nil {
		t.Fatal(err)
	}
	h := &Host{Name: name, Address: "127.0.0.1", dir: dir, Key: NewKey(t, ED25519), HostKeys: []Key{NewKey(t, ED25519), NewKey(t, ECDSA)}}
	t.Cleanup(h.close)
	h.Direct, h.Socket = filepath.Join(dir, "run", "libvirt", "libvirt-sock"), filepath.Join(dir, "frames.sock")
	if len(h.Direct) > maxSocket {
		t.Fatalf("%s is too long for a socket: set TMPDIR to a shorter folder", h.Direct)
	}
	id := strconv.Itoa(os.Getuid())
	if os.Getuid() == 0 {
		id = strconv.Itoa(nobody)
	}
	who, err := user.LookupId(id)
	if err != nil {
		t.Fatal(err)
	}
	h.User = who.Username
	h.behind = freeAddress(t)
	h.Link = newLink(listen(t, "tcp", "127.0.0.1:0"), h.behind)
	_, port, _ := net.SplitHostPort(h.Link.Address())
	h.Port, _ = strconv.Atoi(port)
	h.Frames = newFrames(listen(t, "unix", h.Socket), h.Direct)
	h.Frames.Identify(uuid.NewString())
	h.prepareSSHD(t, programs["sshd"])
	h.prepareLibvirtd(t, programs["libvirtd"])
	for _, path := range []string{dir, h.Socket} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *Host) prepareSSHD(t testing.TB, program string) {
	h.WriteHostKeys(t, h.HostKeys...)
	h.Authorize(t, h.Key.AuthorizedKey(SafeOptions))
	h.ConfigureSSHD(t)
	if os.Getuid() == 0 {
		// Without the folder that the package's service makes, sshd does not start as root.
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h.SSHD = &Daemon{
		name: "sshd", program: program, log: h.path("sshd.log"), args: []string{"-D", "-e", "-f", h.path("sshd_config")},
		// As root it can log others in. As anybody else it need not.
		privileged: true,
		ready: func() error {
			conn, err := net.Dial("tcp", h.Link.backend)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}
}

// ConfigureSSHD writes sshd's configuration, with lines that come first and so count first. sshd must be restarted for it.
func (h *Host) ConfigureSSHD(t testing.TB, lines ...string) {
	t.Helper()
	lines = append(lines,
		"ListenAddress "+h.behind,
		"HostKey "+h.path("host_key_0"), "HostKey "+h.path("host_key_1"),
		"AuthorizedKeysFile "+h.path("authorized_keys"),
		"PidFile none", "StrictModes no", "UsePAM no", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"MaxStartups 100", "LogLevel VERBOSE")
	h.write(t, "sshd_config", strings.Join(lines, "\n")+"\n")
}

// WriteHostKeys replaces sshd's two keys. sshd must be restarted for it.
func (h *Host) WriteHostKeys(t testing.TB, keys ...Key) {
	t.Helper()
	h.HostKeys = keys
	for i, key := range keys {
		h.write(t, fmt.Sprintf("host_key_%d", i), string(key.Private))
	}
}

// Authorize replaces authorized_keys, for logins from now on.
func (h *Host) Authorize(t testing.TB, lines ...string) {
	t.Helper()
	h.write(t, "authorized_keys", strings.Join(lines, ""))
}

func (h *Host) prepareLibvirtd(t testing.TB, program string) {
	for _, name := range []string{"run", "home"} {
		if err := os.Mkdir(h.path(name), 0o700); err != nil {
			t.Fatal(err)
		}
		h.own(t, h.path(name))
	}
	h.write(t, "libvirtd.conf", "log_level = 3\nlog_outputs = \"3:stderr\"\n")
	h.Libvirtd = &Daemon{
		name: "libvirtd", program: program, log: h.path("libvirtd.log"), args: []string{"-f", h.path("libvirtd.conf"), "-p", h.path("libvirtd.pid")},
		// For an ordinary user libvirtd keeps all that it has below these.
		env: []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + h.path("home"), "XDG_RUNTIME_DIR=" + h.path("run"), "XDG_CONFIG_HOME=" + h.path("home/config"),
			"XDG_CACHE_HOME=" + h.path("home/cache"), "XDG_DATA_HOME=" + h.path("home/data"),
		},
		ready: h.hold,
	}
}

// hold opens a connection that stays: the state of the test driver goes with the last one.
func (h *Host) hold() error {
	conn, err := net.Dial("unix", h.Direct)
	if err != nil {
		return err
	}
	keep, err := rpc.Open(context.Background(), conn, URI, rpc.Options{CallTimeout: StartLimit})
	if err != nil {
		return err
	}
	if err := h.addPool(); err != nil {
		_ = keep.Close()
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.keep != nil {
		_ = h.keep.Close()
	}
	h.keep = keep
	return nil
}

// Conn is a connection to libvirtd beside SSH and Frames, to look at what is there. It stays open.
func (h *Host) Conn() *rpc.Conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keep
}

// Target is the way to Frames.
func (h *Host) Target() sshdial.Target {
	return sshdial.Target{Address: h.Address, Port: h.Port, User: h.User, Socket: h.Socket}
}

// KnownHosts is a known_hosts of both host keys.
func (h *Host) KnownHosts() []byte { return KnownHosts(h.Link.Address(), h.HostKeys...) }

// Auth is what a client needs.
func (h *Host) Auth() sshdial.Auth {
	return sshdial.Auth{Key: h.Key.Private, KnownHosts: h.KnownHosts()}
}

// path is that of a file of the host's.
func (h *Host) path(name string) string { return filepath.Join(h.dir, name) }

// write replaces a file in one go, for who reads it at the same time.
func (h *Host) write(t testing.TB, name, content string) {
	t.Helper()
	next := h.path(name + ".next")
	if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	h.own(t, next)
	if err := os.Rename(next, h.path(name)); err != nil {
		t.Fatal(err)
	}
}

func (h *Host) own(t testing.TB, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		return
	}
	if err := os.Chown(path, nobody, nobody); err != nil {
		t.Fatal(err)
	}
}

// close ends everything: the connections first, since sessions of sshd end with them.
func (h *Host) close() {
	if h.Link != nil {
		h.Link.close()
	}
	if h.Frames != nil {
		h.Frames.close()
	}
	h.mu.Lock()
	if h.keep != nil {
		h.keep.Abort(net.ErrClosed)
	}
	h.mu.Unlock()
	for _, daemon := range []*Daemon{h.SSHD, h.Libvirtd} {
		if daemon != nil {
			daemon.close()
		}
	}
	_ = os.RemoveAll(h.dir)
}

func listen(t testing.TB, network, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// freeAddress is one on loopback that nobody listened on a moment ago. On Linux all of 127.0.0.0/8 is loopback, but clients
// come from 127.0.0.1: elsewhere none of them can be given the port while sshd is away.
func freeAddress(t testing.TB) string {
	t.Helper()
	address := "127.0.0.1"
	if runtime.GOOS == "linux" {
		address = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	}
	listener := listen(t, "tcp", net.JoinHostPort(address, "0"))
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}
