// Package squidtest runs a real Squid for a test. It ends with the test, and on Linux also when the test binary is killed.
package squidtest

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// PasswordHelper checks names and passwords against a file, as Debian's package has it.
	PasswordHelper = "/usr/lib/squid/basic_ncsa_auth"
	// User and group of Debian's package. Squid runs as them from the start when the test is run by root: who changes
	// the user loses the tie to the test's life, and the right to open /dev/stderr.
	User = 13
	// StartLimit bounds the start on a busy machine.
	StartLimit = 90 * time.Second

	pollPeriod = 20 * time.Millisecond
	logFile    = "output.log"
)

// Program finds Squid or skips the test. EGRESS_REQUIRE_ALL=1 turns that into a failure.
func Program(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real Squid: not with -short")
	}
	for _, name := range []string{"squid", "/usr/sbin/squid"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
		t.Fatal("EGRESS_REQUIRE_ALL=1, but Squid is not installed: apt-get install squid")
	}
	t.Skip("Squid is not installed: apt-get install squid")
	return ""
}

// File is a file in Squid's folder.
type File struct {
	Name       string
	Content    []byte
	Executable bool
}

// Squid that runs.
type Squid struct {
	// Address it listens on, on loopback.
	Address string
	// Dir is its folder.
	Dir string

	process *os.Process
	ended   chan struct{}
	stop    sync.Once
}

// Config makes squid.conf of Squid's folder and of the address it is to listen on. What Squid writes to /dev/stdout and
// /dev/stderr is its Log.
type Config func(dir string, address netip.AddrPort) string

// Start runs Squid on a free port of 127.0.0.1 until the test ends.
func Start(t testing.TB, config Config, files ...File) *Squid {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(listener.Addr().String())
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return StartOn(t, address, config, files...)
}

// StartOn runs Squid on an address on loopback until Stop, or until the test ends.
func StartOn(t testing.TB, address netip.AddrPort, config Config, files ...File) *Squid {
	t.Helper()
	program := Program(t)
	// Not t.TempDir: its parents are closed to Squid's user.
	dir, err := os.MkdirTemp("", "squid-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, f := range append(files, File{Name: "squid.conf", Content: []byte(config(dir, address))}) {
		mode := os.FileMode(0o644)
		if f.Executable {
			mode = 0o755
		}
		path := filepath.Join(dir, f.Name)
		if err := errors.Join(os.WriteFile(path, f.Content, mode), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
	}
	output, err := os.Create(filepath.Join(dir, logFile))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = output.Close() }()
	// Squids of one machine share names in /dev/shm unless they are told apart.
	service := "test" + strings.NewReplacer(".", "x", ":", "x").Replace(address.String())
	command := exec.Command(program, "-n", service, "-N", "-f", filepath.Join(dir, "squid.conf"))
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = attributes()
	if os.Getuid() == 0 {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: User, Gid: User}
		if err := errors.Join(os.Chown(dir, User, User), os.Chmod(dir, 0o755), output.Chown(User, User)); err != nil {
			t.Fatal(err)
		}
	}
	if err := command.Start(); err != nil {
		t.Fatalf("start Squid: %v", err)
	}
	s := &Squid{Address: address.String(), Dir: dir, process: command.Process, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		_ = command.Wait()
	}()
	t.Cleanup(s.Stop)
	s.await(t)
	return s
}

// Stop kills Squid and its helpers; the second time it does nothing.
func (s *Squid) Stop() {
	s.stop.Do(func() {
		_ = syscall.Kill(-s.process.Pid, syscall.SIGKILL) // the group
		<-s.ended
	})
}

// await waits until Squid listens.
func (s *Squid) await(t testing.TB) {
	t.Helper()
	deadline, tick := time.After(StartLimit), time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		if c, err := net.Dial("tcp4", s.Address); err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-tick.C:
		case <-s.ended:
			t.Fatalf("Squid ended:\n%s", s.Log(t))
		case <-deadline:
			t.Fatalf("Squid does not listen:\n%s", s.Log(t))
		}
	}
}

// Signal sends Squid a signal.
func (s *Squid) Signal(t testing.TB, signal os.Signal) {
	t.Helper()
	if err := s.process.Signal(signal); err != nil {
		t.Fatalf("signal Squid: %v", err)
	}
}

// Log is what Squid has written.
func (s *Squid) Log(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(s.Dir, logFile))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ToValidUTF8(string(data), "?")
}
