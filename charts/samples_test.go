package charts_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/squidtest"
)

// sampleSquid is the squid.conf of the sample with cloud-init.
func sampleSquid(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "config", "samples", "proxy_gcp.yaml"))
	must(t, err)
	px := &v1alpha1.Proxy{}
	must(t, yaml.UnmarshalStrict(text, px))
	conf, err := squidtest.FromCloudConfig(px.Spec.CloudInit.Inline)
	must(t, err)
	if want := fmt.Sprintf("http_port %d\n", px.Spec.Port); !strings.Contains(conf, want) {
		t.Errorf("Squid does not listen on the port of the Proxy: no %q", want)
	}
	return conf
}

func TestSamples_SquidIsTaken(t *testing.T) {
	program := squidtest.Program(t)
	file := filepath.Join(t.TempDir(), "squid.conf")
	must(t, os.WriteFile(file, []byte(sampleSquid(t)), 0o600))
	out, err := exec.Command(program, "-k", "parse", "-f", file).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		// Squid regrets that "via off" breaks HTTP's letter.
		if strings.Contains(line, "WARNING") && !strings.Contains(line, "requires the use of Via") || strings.Contains(line, "ERROR") {
			t.Error(strings.TrimSpace(line))
		}
	}
}

// ask sends a proxy a request for a target, by CONNECT or for a plain page, and gives the status.
func ask(t *testing.T, proxy, method, target string) int {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", proxy)
	must(t, err)
	defer func() { _ = c.Close() }()
	host := target
	if method != http.MethodConnect {
		u, err := url.Parse(target)
		must(t, err)
		host = u.Host
	}
	_, err = fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\n\r\n", method, target, host)
	must(t, err)
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	must(t, err)
	_ = answer.Body.Close()
	return answer.StatusCode
}

// TestG49_SampleSquidIsClosed runs the Squid that the samples install: strangers get nothing, and clients nothing that is
// inside.
func TestG49_SampleSquidIsClosed(t *testing.T) {
	squidtest.Program(t)
	conf := sampleSquid(t)
	origin := proxyzoo.NewOrigin(t, proxyzoo.NewCA(t, "samples"), "127.0.0.77")
	at := netip.MustParseAddrPort(strings.TrimPrefix(origin.URL, "https://"))
	config, err := squidtest.OnLoopback(conf, at)
	must(t, err)

	squid := squidtest.Start(t, config)
	if got := ask(t, squid.Address, http.MethodConnect, at.String()); got != http.StatusOK {
		t.Fatalf("CONNECT to the origin: %d", got)
	}
	for _, target := range []string{
		"127.0.0.1:443", "127.0.0.77:443", "localhost:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "0.0.0.0:443", "[::]:443",
		"169.254.169.254:443", "169.254.169.254:80", "[::ffff:169.254.169.254]:443", "[fd00:ec2::254]:443", "[fd20:ce::254]:443", "[fe80::1]:443",
		"10.156.0.2:443", "172.16.0.1:443", "192.168.0.1:443", "100.100.100.200:443", "224.0.0.1:443", "255.255.255.255:443",
		"[64:ff9b::7f00:1]:443", "[64:ff9b::a9fe:a9fe]:443", "metadata.google.internal:443", "198.51.100.1:25", "198.51.100.1:80", "198.51.100.1:3128",
	} {
		if got := ask(t, squid.Address, http.MethodConnect, target); got != http.StatusForbidden {
			t.Errorf("CONNECT %s: %d, want 403", target, got)
		}
	}
	for _, target := range []string{
		"http://169.254.169.254/computeMetadata/v1/", "http://metadata.google.internal/computeMetadata/v1/", "http://127.0.0.1/", "http://10.0.0.1/",
		"http://198.51.100.1:22/", "http://198.51.100.1:443/", "ftp://198.51.100.1/",
	} {
		if got := ask(t, squid.Address, http.MethodGet, target); got != http.StatusForbidden {
			t.Errorf("GET %s: %d, want 403", target, got)
		}
	}

	// The same for a stranger: 127.0.0.1 is none of the clients here.
	strangers := squidtest.Start(t, func(dir string, address netip.AddrPort) string {
		return strings.ReplaceAll(config(dir, address), "acl clients src 127.0.0.1", "acl clients src 203.0.113.0/24")
	})
	if got := ask(t, strangers.Address, http.MethodConnect, at.String()); got != http.StatusForbidden {
		t.Errorf("CONNECT of a stranger: %d, want 403", got)
	}
	if got := ask(t, strangers.Address, http.MethodGet, "http://198.51.100.1/"); got != http.StatusForbidden {
		t.Errorf("GET of a stranger: %d, want 403", got)
	}
}
