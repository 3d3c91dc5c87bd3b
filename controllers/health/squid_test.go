package health

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
)

const (
	squidBinary = "/usr/sbin/squid"
	// squidLimit bounds each wait on a busy machine.
	squidLimit = 90 * time.Second
	// originHost is a loopback address apart from 127.0.0.1, so that a configuration can admit the one and deny the
	// other.
	originHost = "127.0.0.77"
)

// squid is a running Squid.
type squid struct {
	addr    string
	process *os.Process
	ended   chan struct{}
}

// requireSquid skips, or fails where everything is required.
func requireSquid(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a real Squid: not with -short")
	}
	if _, err := os.Stat(squidBinary); err != nil {
		if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
			t.Fatalf("EGRESS_REQUIRE_ALL=1, but there is no %s (apt-get install squid): %v", squidBinary, err)
		}
		t.Skipf("no %s (apt-get install squid)", squidBinary)
	}
}

// squidRules is what differs between configurations.
type squidRules struct {
	// access are the http_access lines.
	access string
	// auth makes the ACL "authenticated" available.
	auth bool
	// extra are further lines.
	extra string
}

func (r squidRules) config(dir, addr, helper string) string {
	lines := []string{
		"http_port " + addr, "pid_filename none", "access_log none", "cache_log " + dir + "/cache.log", "cache deny all", "coredump_dir " + dir,
		"shutdown_lifetime 20 seconds",
		"acl origin dst " + originHost, "acl forbidden dst 127.0.0.0/8 169.254.0.0/16 ::1 fe80::/10", "acl CONNECT method CONNECT",
	}
	if r.auth {
		lines = append(lines, "auth_param basic program "+helper, "auth_param basic children 1", "acl authenticated proxy_auth REQUIRED")
	}
	return strings.Join(append(lines, r.extra, r.access, ""), "\n")
}

// startSquid runs Squid with the given rules until the test ends.
func startSquid(t *testing.T, rules squidRules) *squid {
	t.Helper()
	dir, err := os.MkdirTemp("", "squid-test-") // t.TempDir cannot be read by the user that Squid becomes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	config, helper := filepath.Join(dir, "squid.conf"), filepath.Join(dir, "auth.sh")
	write(t, config, 0o644, rules.config(dir, addr, helper))
	write(t, helper, 0o755, "#!/bin/sh\nwhile read -r user password; do [ \"$user $password\" = 'crawler s3cret' ] && echo OK || echo ERR; done\n")
	cmd := exec.Command(squidBinary, "-N", "-f", config)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its helpers end with it
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting Squid: %v", err)
	}
	s := &squid{addr: addr, process: cmd.Process, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-s.ended
	})
	waitFor(t, "Squid to listen", func() bool {
		select {
		case <-s.ended:
			log, _ := os.ReadFile(filepath.Join(dir, "cache.log"))
			t.Fatalf("Squid ended:\n%s", log)
		default:
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return s
}

func write(t *testing.T, path string, mode os.FileMode, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(squidLimit)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("gave up waiting for %s", what)
		case <-ticker.C:
		}
	}
}

// closedRules admit the origin alone; strangers, loopback and metadata addresses are refused.
const closedRules = "http_access allow CONNECT origin\nhttp_access deny forbidden\nhttp_access deny all"

// quickSettings are a health check at the pace of a test.
func quickSettings(ca *proxyzoo.CA, url string) Settings {
	return Settings{
		Period: 200 * time.Millisecond, Timeout: 5 * time.Second, FastPeriod: 50 * time.Millisecond, UnhealthyPeriodMax: 500 * time.Millisecond,
		FailureThreshold: 3, SuccessThreshold: 2, MaxBodyBytes: 4096, ReportExitIP: true,
		Targets: []TargetSettings{{TargetKey: TargetKey{URL: url, CABundle: ca.PEM()}}},
	}
}

// startEngine runs an engine that may dial loopback addresses until the test ends.
func startEngine(t *testing.T, change ...func(*Options)) *Engine {
	t.Helper()
	o := Options{AllowedProxies: mustPrefixes(t, "127.0.0.0/8")}
	for _, c := range change {
		c(&o)
	}
	e := New(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Start(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return e
}

func mustPrefixes(t *testing.T, values ...string) []netip.Prefix {
	t.Helper()
	out, err := probe.ParsePrefixes(FlagAllowedProxies, values)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// watchSquid lets an engine watch a Squid, and returns a function that reads the verdict.
func watchSquid(t *testing.T, s *squid, check Settings, change ...func(*Target)) func() Verdict {
	t.Helper()
	e := startEngine(t)
	e.Upsert(proxy(0, append(change, func(x *Target) { x.Address, x.Check = s.addr, check })...))
	return func() Verdict {
		v, _ := e.Verdict(uid(0))
		return v
	}
}

// A Squid that does its work and refuses what it should refuse.
func TestSquid_Closed(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules})
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed)
	waitFor(t, "a healthy, restricted proxy", func() bool {
		v := verdict()
		return v.Known && v.Healthy && v.AccessRestricted != nil
	})
	if v := verdict(); !*v.AccessRestricted || v.AccessReason != classify.ReasonForbiddenTargetsRefused || v.Reason != ReasonProbeSucceeded {
		t.Errorf("got access %v %s, health %s", *v.AccessRestricted, v.AccessReason, v.Reason)
	}
	if v := verdict(); !strings.HasPrefix(v.EgressIP, "127.") {
		t.Errorf("exit address %q", v.EgressIP)
	}
}

// A Squid with a password: strangers are refused, the right credentials work, wrong ones are told apart.
func TestE3_SquidWithCredentials(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{auth: true, access: "http_access deny !authenticated\n" + closedRules})
	credentials := func(password string) func(*Target) {
		return func(x *Target) {
			x.Credentials, _ = NewCredentials("crawler", password)
			x.RequireAuth = true
		}
	}
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed, credentials("s3cret"))
	waitFor(t, "a healthy, restricted proxy", func() bool {
		v := verdict()
		return v.Healthy && v.AccessRestricted != nil && *v.AccessRestricted
	})
	wrong := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed, credentials("wrong"))
	waitFor(t, "an unhealthy proxy", func() bool { v := wrong(); return v.Known && !v.Healthy })
	if v := wrong(); v.Reason != classify.ReasonProxyAuthFailed {
		t.Errorf("reason %s", v.Reason)
	}
}

// A Squid without denials is healthy, and open.
func TestSquid_Open(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: "http_access allow all"})
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed)
	waitFor(t, "a healthy, judged proxy", func() bool { v := verdict(); return v.Healthy && v.AccessRestricted != nil })
	if v := verdict(); *v.AccessRestricted || v.AccessReason != classify.ReasonLoopbackReachable {
		t.Errorf("got %v %s", *v.AccessRestricted, v.AccessReason)
	}
}

// A Squid that admits strangers although it should ask for credentials.
func TestSquid_AnonymousAccess(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules})
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed, func(x *Target) { x.RequireAuth = true })
	waitFor(t, "a judged proxy", func() bool { return verdict().AccessRestricted != nil })
	if v := verdict(); *v.AccessRestricted || v.AccessReason != classify.ReasonAnonymousAccess {
		t.Errorf("got %v %s", *v.AccessRestricted, v.AccessReason)
	}
}

// Squids that accept TCP connections but do not get out.
func TestSquid_NoEgress(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	l, err := net.Listen("tcp", net.JoinHostPort(originHost, "0"))
	if err != nil {
		t.Fatal(err)
	}
	nobody := "https://" + l.Addr().String()
	_ = l.Close()
	for _, tc := range []struct {
		name, reason, url string
		rules             squidRules
	}{
		{"E4 CONNECT denied", classify.ReasonConnectDenied, origin.URL, squidRules{access: "http_access deny CONNECT\nhttp_access allow all"}},
		{"E4 port not admitted", classify.ReasonConnectDenied, origin.URL, squidRules{access: "http_access deny CONNECT !tls\nhttp_access allow all", extra: "acl tls port 443"}},
		{"E5 origin unreachable", classify.ReasonEgressFailed, nobody, squidRules{access: "http_access allow all"}},
		{"E5 nowhere to forward to", classify.ReasonEgressFailed, origin.URL, squidRules{access: "http_access allow all", extra: "never_direct allow all"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := startSquid(t, tc.rules)
			verdict := watchSquid(t, s, quickSettings(ca, tc.url+"/ip"), managed)
			waitFor(t, "an unhealthy proxy", func() bool { v := verdict(); return v.Known && !v.Healthy })
			if v := verdict(); v.Reason != tc.reason || v.AccessRestricted != nil {
				t.Errorf("got %+v", v)
			}
		})
	}
}

// While Squid shuts down old tunnels go on working and new ones do not: the proxy is unhealthy.
func TestE16_SquidShutsDown(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules})
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"))
	waitFor(t, "a healthy proxy", func() bool { return verdict().Healthy })
	through := &http.Client{Transport: &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: s.addr}),
		TLSClientConfig: &tls.Config{RootCAs: ca.Pool()},
	}}
	defer through.CloseIdleConnections()
	get := func() error {
		r, err := through.Get(origin.URL + "/ip")
		if err != nil {
			return err
		}
		defer func() { _ = r.Body.Close() }()
		_, err = io.Copy(io.Discard, r.Body)
		return err
	}
	if err := get(); err != nil {
		t.Fatalf("opening a tunnel: %v", err)
	}
	if err := s.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "an unhealthy proxy", func() bool { v := verdict(); return v.Known && !v.Healthy })
	if err := get(); err != nil {
		t.Errorf("the old tunnel should still work, or this proves nothing: %v", err)
	}
}

// A Squid out of file descriptors accepts connections and answers none.
func TestE55_SquidWithoutFileDescriptors(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules, extra: "max_filedescriptors 256"})
	check := quickSettings(ca, origin.URL+"/ip")
	check.Timeout = 500 * time.Millisecond
	verdict := watchSquid(t, s, check)
	waitFor(t, "a healthy proxy", func() bool { return verdict().Healthy })
	authority := strings.TrimPrefix(origin.URL, "https://")
	var held []net.Conn
	waitFor(t, "an unhealthy proxy", func() bool {
		if c, err := net.DialTimeout("tcp", s.addr, 100*time.Millisecond); err == nil {
			held = append(held, c)
			_, _ = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", authority, authority)
		}
		v := verdict()
		return v.Known && !v.Healthy
	})
	// Until the kernel's queue of accepted connections is full as well.
	if v := verdict(); v.Reason != classify.ReasonConnectTimeout && v.Reason != classify.ReasonDialTimeout {
		t.Errorf("reason %s", v.Reason)
	}
	for _, c := range held {
		_ = c.Close()
	}
	waitFor(t, "a healthy proxy again", func() bool { return verdict().Healthy })
}

// A restarted engine goes on from the status without a change.
func TestE27_SquidAndRestart(t *testing.T) {
	requireSquid(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules})
	check := quickSettings(ca, origin.URL+"/ip")
	verdict := watchSquid(t, s, check, managed)
	waitFor(t, "a healthy, restricted proxy", func() bool { v := verdict(); return v.Healthy && ptr.Deref(v.AccessRestricted, false) })
	before := verdict()
	e := startEngine(t)
	e.Upsert(proxy(0, managed, func(x *Target) { x.Address, x.Check, x.Initial = s.addr, check, &before }))
	waitFor(t, "a probe after the restart", func() bool { return !e.snapshot().Proxies[0].LastProbe.IsZero() })
	if after, _ := e.Verdict(uid(0)); !after.Equal(before) {
		t.Errorf("before %+v, after %+v", before, after)
	}
	select {
	case ev := <-e.Changes():
		t.Errorf("woke the controller for %s", ev.Object)
	default:
	}
}
