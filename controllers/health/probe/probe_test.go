package probe_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
)

type (
	bufioReader = bufio.Reader
	httpRequest = http.Request
)

// names is a resolver that knows what it is told.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, a := range n[host] {
		out = append(out, netip.MustParseAddr(a))
	}
	if out == nil {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	return out, nil
}

// An address that is not allowed is refused before a single packet, however it is written.
func TestE47_DialPolicy(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	resolver := names{
		"meta.test": {"169.254.169.254"}, "mixed.test": {"198.51.100.7", "127.0.0.1"}, "mapped.test": {"::ffff:169.254.169.254"},
	}
	for _, proxy := range []string{
		"169.254.169.254:80", "[::ffff:169.254.169.254]:80", "127.0.0.1:3128", "127.8.8.8:3128", "[::1]:3128", "0.0.0.0:3128",
		"[::]:3128", "224.0.0.1:3128", "[ff02::1]:3128", "[fe80::1]:3128", "[fe80::1%lo]:3128", "100.100.100.200:80",
		"168.63.129.16:80", "[fd00:ec2::254]:80", "255.255.255.255:80", "[64:ff9b::a9fe:a9fe]:80", "[2002:7f00:1::]:80",
		"[::7f00:1]:80", "meta.test:80", "mixed.test:80", "mapped.test:80",
	} {
		t.Run("E47 "+proxy, func(t *testing.T) {
			p := &probe.Prober{Resolver: resolver, Dial: func(context.Context, string, string) (net.Conn, error) {
				t.Error("dialled")
				return nil, errors.New("dialled")
			}}
			r := p.Probe(context.Background(), probe.Request{
				Proxy: proxy, Target: newTarget(t, world.Good, world.Origin.URL), Timeout: patient,
			})
			if !errors.Is(r.Err, probe.ErrAddressNotAllowed) {
				t.Errorf("got error %v", r.Err)
			}
			if o := classify.Classify(r, classify.Expect{}); o.Reason != classify.ReasonAddressNotAllowed || !o.Immediate {
				t.Errorf("got %s, immediate %v", o.Reason, o.Immediate)
			}
		})
	}
}

// The address that was checked is the one that is dialled: a name is resolved once.
func TestE47_ResolvedOnceDialledLiteral(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	var dialled []string
	p := &probe.Prober{Resolver: names{"px.test": {"198.51.100.7", "198.51.100.8"}}, Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		dialled = append(dialled, address)
		return nil, errors.New("not today")
	}}
	p.Probe(context.Background(), probe.Request{Proxy: "px.test:3128", Target: newTarget(t, world.Good, world.Origin.URL), Timeout: patient})
	if len(dialled) != 1 || dialled[0] != "198.51.100.7:3128" {
		t.Errorf("dialled %v", dialled)
	}
}

func TestPrivateProxyAddressesAreAllowed(t *testing.T) {
	for _, a := range []string{"10.244.0.7", "192.168.1.1", "172.16.0.1", "fd00::7", "203.0.113.4"} {
		if err := (probe.AddressPolicy{}).Check(netip.MustParseAddr(a)); err != nil {
			t.Errorf("%s: %v", a, err)
		}
	}
}

func TestTargetHostPolicy(t *testing.T) {
	denied := []string{
		"localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "::1", "10.0.0.1", "192.168.0.1", "fd00::1", "100.64.0.1", "169.254.169.254",
		"metadata.google.internal", "127.1", "2130706433", "0x7f.0.0.1", "0x7f000001", "010.0.0.1",
	}
	for _, host := range denied {
		if err := (probe.AddressPolicy{DenyPrivate: true}).CheckTargetHost(host); !errors.Is(err, probe.ErrAddressNotAllowed) {
			t.Errorf("%s: got error %v", host, err)
		}
	}
	for _, host := range []string{"www.example.com", "origin.demo.svc", "203.0.113.4", "2001:db8::1", "xn--bcher-kva.example"} {
		if err := (probe.AddressPolicy{DenyPrivate: true}).CheckTargetHost(host); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	open := probe.AddressPolicy{DenyPrivate: true, Allow: loopback}
	for _, host := range []string{"localhost", "127.0.0.1"} {
		if err := open.CheckTargetHost(host); err != nil {
			t.Errorf("%s with loopback allowed: %v", host, err)
		}
	}
}

func TestE41_IPv6(t *testing.T) {
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("no IPv6 loopback: %v", err)
	} else {
		_ = l.Close()
	}
	ca := proxyzoo.NewCA(t, "good")
	origin := proxyzoo.NewOrigin(t, ca, "::1")
	p := proxyzoo.StartOn(t, "[::1]:0", proxyzoo.Tunnel)
	_, port, _ := net.SplitHostPort(p.Addr)
	for _, addr := range []string{p.Addr, "[[::1]]:" + port} {
		r := newProber().Probe(context.Background(), probe.Request{
			Proxy: addr, Target: newTarget(t, ca, origin.URL+"/ip"), Timeout: patient, MaxBody: 100,
		})
		if r.Err != nil || string(r.Body) != "::1\n" {
			t.Errorf("%s: body %q, error %v", addr, r.Body, r.Err)
		}
	}
	if got := p.Requests()[0].Host; got != strings.TrimPrefix(origin.URL, "https://") {
		t.Errorf("CONNECT to %q, want the literal in brackets", got)
	}
	if got := probe.JoinAddress("[::1]", 3128); got != "[::1]:3128" {
		t.Errorf("JoinAddress gave %q", got)
	}
}

func TestBadProxyAddresses(t *testing.T) {
	for _, addr := range []string{"", "host", ":3128", "host:", "host:0", "host:65536", "host:x", "::1:3128:", "a:b:c"} {
		if _, _, err := probe.SplitAddress(addr); !errors.Is(err, probe.ErrBadAddress) {
			t.Errorf("%q: got error %v", addr, err)
		}
	}
}

// Credentials go to the proxy only, whole, and cannot smuggle a header in.
func TestE45_CredentialsOnTheWire(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	const user, password = "cr%zzawler@x", "p@ss:wörd/%00 \"'"
	p := proxyzoo.Start(t, proxyzoo.Authenticated(user, password, proxyzoo.Tunnel))
	credentials, err := probe.NewCredentials(user, password)
	if err != nil {
		t.Fatal(err)
	}
	r := newProber().Probe(context.Background(), probe.Request{
		Proxy: p.Addr, Credentials: credentials, Target: newTarget(t, world.Good, world.Origin.URL+"/ip"), Timeout: patient, MaxBody: 100,
	})
	if r.Err != nil {
		t.Fatalf("probe: %v", r.Err)
	}
	for _, request := range world.Origin.Requests() {
		for name, values := range request.Header {
			if strings.Contains(name, "Auth") || strings.Contains(strings.Join(values, ""), "Basic") {
				t.Errorf("the target saw %s: %v", name, values)
			}
		}
	}
	for _, bad := range [][2]string{{"", "x"}, {"a:b", "x"}, {"a\r\nX-Evil: 1", "x"}, {"a", "x\r\nX-Evil: 1"}, {"a\x00", "x"}} {
		if _, err := probe.NewCredentials(bad[0], bad[1]); err == nil || bad[1] != "x" && strings.Contains(err.Error(), bad[1]) {
			t.Errorf("%q: got error %v", bad, err)
		}
	}
}

// However they are printed, and whatever holds them.
func TestE45_CredentialsPrintRedacted(t *testing.T) {
	credentials, err := probe.NewCredentials("crawler", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		hidden  probe.Credentials
		Pointer *probe.Credentials
	}
	var out strings.Builder
	h := holder{*credentials, credentials}
	for _, v := range []any{credentials, *credentials, h, &h, []*probe.Credentials{credentials}, map[string]any{"c": credentials}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		raw, err := json.Marshal(v)
		fmt.Fprintln(&out, string(raw), err)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
	}
	for _, secret := range []string{"crawler", "hunter2", base64.StdEncoding.EncodeToString([]byte("crawler:hunter2")), fmt.Sprintf("%x", "hunter2"), credentials.Fingerprint()} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q was printed", secret)
		}
	}
	if !strings.Contains(out.String(), probe.Redacted) {
		t.Error("nothing says REDACTED")
	}
	var none *probe.Credentials
	if got := none.Fingerprint(); got != "" {
		t.Errorf("no credentials have fingerprint %q", got)
	}
}

func TestE58_TargetURLs(t *testing.T) {
	for _, bad := range []string{
		"", "http://example.com/", "ftp://example.com", "https://", "https:///x", "https://user:hunter2@example.com/", "https://user:%zzhunter2@example.com/",
		"https://example.com/#f", "https://example.com:0/", "https://example.com:99999/", "https://example.com:/", "https://example.com/a b",
		"https://example.com/\r\nX: 1", "https://bücher.example/", "https://exa mple.com", "https:example.com", "//example.com/", "https://example.com/%zz",
	} {
		_, err := probe.ParseTargetURL(bad)
		if err == nil {
			t.Errorf("%q was accepted", bad)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: the error repeats the password: %v", bad, err)
		}
	}
	for url, authority := range map[string]string{
		"https://example.com": "example.com:443", "https://example.com:8443/x?y=z": "example.com:8443", "https://[2001:db8::1]/": "[2001:db8::1]:443",
	} {
		target, err := probe.NewTarget(probe.TargetSpec{URL: url})
		if err != nil || target.Authority() != authority {
			t.Errorf("%s: authority %q, error %v", url, target.Authority(), err)
		}
	}
}

func TestNonceMakesEveryRequestDifferent(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	target := newTarget(t, world.Good, world.Origin.URL+"/ip?x=1", func(s *probe.TargetSpec) { s.Nonce = true })
	for range 2 {
		newProber().Probe(context.Background(), probe.Request{Proxy: p.Addr, Target: target, Timeout: patient, MaxBody: 100})
	}
	requests := world.Origin.Requests()
	if len(requests) != 2 {
		t.Fatalf("got %d requests", len(requests))
	}
	a, b := requests[0].URL.Query(), requests[1].URL.Query()
	if a.Get("n") == "" || a.Get("n") == b.Get("n") || a.Get("x") != "1" {
		t.Errorf("queries %v and %v", a, b)
	}
}

func TestRetryAfter(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	p := proxyzoo.Start(t, proxyzoo.Status("429 Too Many Requests", "Retry-After: 42"))
	r := newProber().Probe(context.Background(), probe.Request{Proxy: p.Addr, Target: newTarget(t, world.Good, world.Origin.URL), Timeout: patient})
	if o := classify.Classify(r, classify.Expect{}); o.RetryAfter.Seconds() != 42 {
		t.Errorf("got %s", o.RetryAfter)
	}
}

func TestKnock(t *testing.T) {
	refused, reached, unclear := classify.Refused, classify.Reached, classify.Unclear
	for _, tc := range []struct {
		name                        string
		do                          proxyzoo.Behaviour
		forbidden, plain, anonymous classify.Answer
	}{
		{"refuses", proxyzoo.Status("403 Forbidden"), refused, refused, refused},
		{"wants credentials", proxyzoo.Status("407 Proxy Authentication Required"), unclear, unclear, refused},
		{"tunnels", proxyzoo.SayAndClose("HTTP/1.1 200 OK\r\n\r\n"), reached, reached, reached},
		{"answers itself", proxyzoo.Say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), reached, reached, reached},
		{"serves a metadata error", proxyzoo.Status("401 Unauthorized"), unclear, reached, refused},
		{"tried and failed", proxyzoo.Status("503 Service Unavailable"), unclear, unclear, unclear},
		{"throttles", proxyzoo.Status("429 Too Many Requests"), unclear, unclear, unclear},
		{"closes", proxyzoo.Close, unclear, unclear, unclear},
		{"does not speak HTTP", proxyzoo.Say("hello\r\n"), unclear, unclear, unclear},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := proxyzoo.Start(t, tc.do)
			k := probe.Knock{Proxy: p.Addr, Authority: "169.254.169.254:80", Timeout: patient}
			connect := newProber().Knock(context.Background(), k)
			k.Plain = true
			plain := newProber().Knock(context.Background(), k)
			if f, a := classify.Forbidden(connect), classify.Anonymous(connect); f != tc.forbidden || a != tc.anonymous {
				t.Errorf("got forbidden %s and anonymous %s, want %s and %s (error %v)", f, a, tc.forbidden, tc.anonymous, connect.Err)
			}
			if got := classify.ForbiddenPlain(plain); got != tc.plain {
				t.Errorf("plain: got %s, want %s (error %v)", got, tc.plain, plain.Err)
			}
			sent := p.Requests()
			if sent[0].Method != http.MethodConnect || sent[1].Method != http.MethodGet || sent[1].URL.String() != "http://169.254.169.254:80/" {
				t.Errorf("sent %s %s and %s %s", sent[0].Method, sent[0].Host, sent[1].Method, sent[1].URL)
			}
		})
	}
}

func TestParsePrefixes(t *testing.T) {
	got, err := probe.ParsePrefixes("--allow-proxy-cidrs", []string{"127.0.0.0/8", " 10.1.2.3/8 ", "::1"})
	if err != nil || fmt.Sprint(got) != "[127.0.0.0/8 10.0.0.0/8 ::1/128]" {
		t.Errorf("got %v, error %v", got, err)
	}
	for _, bad := range []string{"", "10.0.0.0/33", "host", "fe80::1%lo"} {
		if _, err := probe.ParsePrefixes("--allow-proxy-cidrs", []string{bad}); err == nil || !strings.Contains(err.Error(), "--allow-proxy-cidrs") {
			t.Errorf("%q: got error %v", bad, err)
		}
	}
}
