package squidtest

import (
	"bufio"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// childVariable makes this test binary one that starts a Squid and waits to be killed.
const childVariable = "SQUIDTEST_CHILD"

func open(_ string, address netip.AddrPort) string {
	return fmt.Sprintf("http_port %s\npid_filename none\naccess_log none\ncache_log /dev/stderr\ncache deny all\ncoredump_dir none\nhttp_access allow all\n", address)
}

func TestSquidEndsWithTheTest(t *testing.T) {
	var address string
	t.Run("it runs", func(t *testing.T) {
		s := Start(t, open)
		address = s.Address
		if !strings.Contains(s.Log(t), "Squid") {
			t.Errorf("it logs %q", s.Log(t))
		}
	})
	if c, err := net.Dial("tcp4", address); err == nil {
		_ = c.Close()
		t.Fatal("it still listens")
	}
}

// Squids beside each other on one port of different addresses know nothing of each other.
func TestSquidsOnOnePort(t *testing.T) {
	Program(t)
	first := Start(t, open)
	at := netip.MustParseAddrPort(first.Address)
	second := StartOn(t, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), at.Port()), open)
	first.Stop()
	first.Stop()
	if c, err := net.Dial("tcp4", first.Address); err == nil {
		_ = c.Close()
		t.Error("the first one still listens")
	}
	c, err := net.Dial("tcp4", second.Address)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestSquidEndsWithAKilledTestBinary(t *testing.T) {
	if os.Getenv(childVariable) != "" {
		s := Start(t, open)
		fmt.Printf("started %s %s\n", s.Address, s.Dir)
		select {}
	}
	Program(t)
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ties a process to its parent's life")
	}
	child := exec.Command(os.Args[0], "-test.run=^TestSquidEndsWithAKilledTestBinary$", "-test.v")
	child.Env = append(os.Environ(), childVariable+"=1")
	child.SysProcAttr = attributes()
	output, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var address, dir string
	for lines := bufio.NewScanner(output); address == "" && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "started %s %s", &address, &dir)
	}
	if address == "" {
		t.Fatal("the child starts no Squid")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	deadline, tick := time.After(StartLimit), time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		c, err := net.Dial("tcp4", address)
		if err != nil {
			return
		}
		_ = c.Close()
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("Squid lives on")
		}
	}
}
