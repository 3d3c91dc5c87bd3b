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
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/squidtest"
)

const (
	// squidLimit bounds each wait on a busy machine.
	squidLimit = 90 * time.Second
	// originHost is a loopback address apart from 127.0.0.1, so that a configuration can admit the one and deny the
	// other.
	originHost = "127.0.0.77"
)

// squidRules is what differs between configurations.
type squidRules struct {
	// access are the http_access lines.
	access string
	// username and password, where set, are those whom the ACL "authenticated" admits.
	username, password string
	// extra are further lines.
	extra string
}

func (r squidRules) config(dir string, addr netip.AddrPort) string {
	lines := []string{
		"http_port " + addr.String(), "pid_filename none", "access_log none", "cache_log /dev/stderr", "cache deny all", "coredump_dir none",
		"shutdown_lifetime 20 seconds",
		"acl origin dst " + originHost, "acl forbidden dst 127.0.0.0/8 169.254.0.0/16 ::1 fe80::/10", "acl CONNECT method CONNECT",
	}
	if r.username != "" {
		lines = append(lines, "auth_param basic program "+squidtest.PasswordHelper+" "+dir+"/passwords", "auth_param basic children 1",
			"auth_param basic casesensitive on", "acl authenticated proxy_auth REQUIRED")
	}
	return strings.Join(append(lines, r.extra, r.access, ""), "\n")
}

// startSquid runs Squid with the given rules until the test ends.
func startSquid(t *testing.T, rules squidRules) *squidtest.Squid {
	t.Helper()
	var files []squidtest.File
	if rules.username != "" {
		const scheme, most = "$2b", 72 // bytes that it looks at
		hash, err := bcrypt.GenerateFromPassword([]byte(rules.password)[:min(len(rules.password), most)], bcrypt.MinCost)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, squidtest.File{Name: "passwords", Content: fmt.Appendf(nil, "%s:%s%s\n", rules.username, scheme, hash[len(scheme):])})
	}
	return squidtest.Start(t, rules.config, files...)
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
func watchSquid(t *testing.T, s *squidtest.Squid, check Settings, change ...func(*Target)) func() Verdict {
	t.Helper()
	e := startEngine(t)
	e.Upsert(proxy(0, append(change, func(x *Target) { x.Address, x.Check = s.Address, check })...))
	return func() Verdict {
		v, _ := e.Verdict(uid(0))
		return v
	}
}

// A Squid that does its work and refuses what it should refuse.
func TestSquid_Closed(t *testing.T) {
	squidtest.Program(t)
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
func TestE3_SquidWithCredentials(t *testing.T) { squidWithCredentials(t, "crawler", "s3cret") }

// Probes carry every character that a name and a password may have.
func TestT28_ProbesWithEveryPrintableCharacter(t *testing.T) {
	const most = "!\"#$%&'()*+,-./0123456789;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	// The helper looks at 72 bytes, so half of them comes first each time.
	for _, password := range []string{" :" + most, most[len(most)/2:] + " :" + most[:len(most)/2]} {
		squidWithCredentials(t, most, password)
	}
}

func squidWithCredentials(t *testing.T, username, password string) {
	squidtest.Program(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{username: username, password: password, access: "http_access deny !authenticated\n" + closedRules})
	credentials := func(password string) func(*Target) {
		return func(x *Target) {
			var err error
			if x.Credentials, err = NewCredentials(username, password); err != nil {
				t.Fatal(err)
			}
			x.RequireAuth = true
		}
	}
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed, credentials(password))
	waitFor(t, "a healthy, restricted proxy", func() bool {
		v := verdict()
		return v.Healthy && v.AccessRestricted != nil && *v.AccessRestricted
	})
	wrong := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"), managed, credentials("x"+password))
	waitFor(t, "an unhealthy proxy", func() bool { v := wrong(); return v.Known && !v.Healthy })
	if v := wrong(); v.Reason != classify.ReasonProxyAuthFailed {
		t.Errorf("reason %s", v.Reason)
	}
}

// A Squid without denials is healthy, and open.
func TestSquid_Open(t *testing.T) {
	squidtest.Program(t)
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
	squidtest.Program(t)
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
	squidtest.Program(t)
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
	squidtest.Program(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules})
	verdict := watchSquid(t, s, quickSettings(ca, origin.URL+"/ip"))
	waitFor(t, "a healthy proxy", func() bool { return verdict().Healthy })
	through := &http.Client{Transport: &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: s.Address}),
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
	s.Signal(t, syscall.SIGTERM)
	waitFor(t, "an unhealthy proxy", func() bool { v := verdict(); return v.Known && !v.Healthy })
	if err := get(); err != nil {
		t.Errorf("the old tunnel should still work, or this proves nothing: %v", err)
	}
}

// A Squid out of file descriptors accepts connections and answers none.
func TestE55_SquidWithoutFileDescriptors(t *testing.T) {
	squidtest.Program(t)
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
		if c, err := net.DialTimeout("tcp", s.Address, 100*time.Millisecond); err == nil {
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
	squidtest.Program(t)
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	s := startSquid(t, squidRules{access: closedRules})
	check := quickSettings(ca, origin.URL+"/ip")
	verdict := watchSquid(t, s, check, managed)
	waitFor(t, "a healthy, restricted proxy", func() bool { v := verdict(); return v.Healthy && ptr.Deref(v.AccessRestricted, false) })
	before := verdict()
	e := startEngine(t)
	e.Upsert(proxy(0, managed, func(x *Target) { x.Address, x.Check, x.Initial = s.Address, check, &before }))
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
