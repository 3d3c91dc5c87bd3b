package kubernetes

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/internal/squidtest"
	"crawl.example.com/egress-proxies-operator/providers"
)

// These tests run a real Squid with the generated configuration.

func TestSquidTakesConfig(t *testing.T) {
	program := squidtest.Program(t)
	for name := range goldenConfigs {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(program, "-k", "parse", "-f", filepath.Join("testdata", name+".conf")).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				// Squid regrets that "via off" breaks HTTP's letter.
				if strings.Contains(line, "WARNING") && !strings.Contains(line, "requires the use of Via") || strings.Contains(line, "ERROR") {
					t.Error(strings.TrimSpace(line))
				}
			}
		})
	}
}

func TestSquidRefusesWhatIsClosed(t *testing.T) {
	origin := startOrigin(t)
	squid := startSquid(t, Config{
		SourceRanges:        prefixes("127.0.0.0/8"),
		ConnectPorts:        []int32{443, origin.port},
		AllowPrivateTargets: true,
	}, nil)

	if got := squid.connect(t, origin.address, nil); got != http.StatusOK {
		t.Fatalf("CONNECT %s: %d, want 200", origin.address, got)
	}
	for _, target := range []string{
		"127.0.0.1:443", "127.9.9.9:443", "localhost:443", "[::1]:443", "[::ffff:127.0.0.1]:443", "0.0.0.0:443", "[::]:443",
		"169.254.169.254:443", "[::ffff:169.254.169.254]:443", "[fd00:ec2::254]:443", "[fe80::1]:443", "100.100.100.200:443",
		"168.63.129.16:443", "224.0.0.1:443", "255.255.255.255:443", "[64:ff9b::7f00:1]:443", "[64:ff9b::a9fe:a9fe]:443",
		"169.254.169.254:80", "127.0.0.1:25", netip.AddrPortFrom(netip.MustParseAddrPort(origin.address).Addr(), 25).String(),
	} {
		if got := squid.connect(t, target, nil); got != http.StatusForbidden {
			t.Errorf("CONNECT %s: %d, want 403", target, got)
		}
	}
	// Other ways to write 127.0.0.1: whatever Squid makes of them, it must be no tunnel.
	for _, target := range []string{"2130706433:443", "0x7f.1:443", "127.1:443", "0177.0.0.1:443", "0:443"} {
		if got := squid.connect(t, target, nil); got == http.StatusOK {
			t.Errorf("CONNECT %s: %d, want a refusal", target, got)
		}
	}
	for _, url := range []string{
		"http://127.0.0.1/", "http://localhost/", "http://169.254.169.254/latest/meta-data/", "http://[::1]/",
		"http://198.51.100.1:8080/", "http://198.51.100.1:22/", "https://198.51.100.1/", "ftp://198.51.100.1/", "ftp://198.51.100.1:80/",
		"http://" + squid.Address + "/squid-internal-mgr/info", "cache_object://localhost/info",
	} {
		if got := squid.get(t, url, nil).StatusCode; got != http.StatusForbidden {
			t.Errorf("GET %s: %d, want 403", url, got)
		}
	}
}

func TestSquidRefusesPrivateTargetsByDefault(t *testing.T) {
	squid := startSquid(t, Config{SourceRanges: prefixes("127.0.0.0/8")}, nil)
	for _, target := range []string{"10.0.0.1:443", "172.16.0.1:443", "192.168.1.1:443", "100.64.0.1:443", "[fd12:3456::1]:443", "[::ffff:10.0.0.1]:443", "[64:ff9b::a00:1]:443"} {
		if got := squid.connect(t, target, nil); got != http.StatusForbidden {
			t.Errorf("CONNECT %s: %d, want 403", target, got)
		}
	}
}

func TestSquidRefusesStrangers(t *testing.T) {
	origin := startOrigin(t)
	// The test comes from 127.0.0.1, which is not among the default sources.
	squid := startSquid(t, Config{ConnectPorts: []int32{origin.port}, AllowPrivateTargets: true}, nil)
	if got := squid.connect(t, origin.address, nil); got != http.StatusForbidden {
		t.Errorf("CONNECT from outside of the source ranges: %d, want 403", got)
	}
}

// everyPrintable is every printable ASCII character that a user name may have; a password may have a colon as well.
const everyPrintable = " !\"#$%&'()*+,-./0123456789;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"

func TestT28_SquidAsksForCredentials(t *testing.T) {
	origin := startOrigin(t)
	for _, c := range []providers.Credentials{
		{Username: "crawler", Password: "p"},
		{Username: "Crawler Number#1", Password: ` sp ace:colon"quote'back\slash%20$HOME;#&*` + "`id`"},
		{Username: "x" + everyPrintable + "x", Password: everyPrintable + ":"},
		{Username: "käse", Password: "pässwörd€ÿ"},
		{Username: "long", Password: strings.Repeat("long-", 30)},
	} {
		t.Run(c.Username, func(t *testing.T) {
			squid := startSquid(t, Config{
				SourceRanges: prefixes("127.0.0.0/8"), ConnectPorts: []int32{origin.port, 443}, AllowPrivateTargets: true, Authenticate: true,
			}, &c)
			if got := squid.connect(t, origin.address, nil); got != http.StatusProxyAuthRequired {
				t.Errorf("CONNECT without credentials: %d, want 407", got)
			}
			wrong := c
			wrong.Password = "x" + c.Password
			if got := squid.connect(t, origin.address, &wrong); got != http.StatusProxyAuthRequired {
				t.Errorf("CONNECT with a wrong password: %d, want 407", got)
			}
			if got := squid.connect(t, origin.address, &c); got != http.StatusOK {
				t.Errorf("CONNECT with the right password: %d, want 200\n%s", got, squid.Log(t))
			}
			if got := squid.connect(t, "127.0.0.1:443", &c); got != http.StatusForbidden {
				t.Errorf("CONNECT to the proxy's own host with credentials: %d, want 403", got)
			}
			if strings.Contains(squid.Log(t), c.Password) && len(c.Password) > 1 {
				t.Error("the log contains the password")
			}
		})
	}
}

func TestT21_SquidTellsNothingAboutTheClient(t *testing.T) {
	origin := startOrigin(t)
	credentials := providers.Credentials{Username: "u", Password: "p"}
	config := Config{SourceRanges: prefixes("127.0.0.0/8"), AllowPrivateTargets: true, Authenticate: true}
	squid := startSquid(t, config, &credentials, fmt.Sprintf("acl http_port port %d", origin.port))
	for name, sent := range map[string]string{"none": "", "no-cache": "no-cache", "max-age": "max-age=0"} {
		t.Run(name, func(t *testing.T) {
			header := http.Header{"X-Forwarded-For": {"192.0.2.1"}}
			if sent != "" {
				header.Set("Cache-Control", sent)
			}
			response := squid.get(t, "http://"+origin.address+"/", &credentials, header)
			if response.StatusCode != http.StatusOK {
				t.Fatalf("GET: %d, want 200", response.StatusCode)
			}
			seen := <-origin.requests
			for _, key := range []string{"Via", "X-Forwarded-For", "Forwarded", "Proxy-Authorization", "Proxy-Connection"} {
				if value := seen.Get(key); value != "" {
					t.Errorf("the origin sees %s: %s", key, value)
				}
			}
			if got := seen.Get("Cache-Control"); got != sent {
				t.Errorf("the origin sees Cache-Control %q, the client sent %q", got, sent)
			}
		})
	}
}

// origin is a server on an address of this machine that is not loopback, since a proxy never goes there.
type origin struct {
	address  string
	port     int32
	requests chan http.Header
}

func startOrigin(t *testing.T) origin {
	t.Helper()
	squidtest.Program(t)
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		prefix, err := netip.ParsePrefix(address.String())
		if err != nil || !prefix.Addr().Is4() || prefix.Addr().IsLoopback() || prefix.Addr().IsLinkLocalUnicast() {
			continue
		}
		listener, err := net.Listen("tcp4", netip.AddrPortFrom(prefix.Addr(), 0).String())
		if err != nil {
			continue
		}
		o := origin{address: listener.Addr().String(), port: int32(listener.Addr().(*net.TCPAddr).Port), requests: make(chan http.Header, 10)}
		server := &httptest.Server{Listener: listener, Config: &http.Server{
			ReadHeaderTimeout: 30 * time.Second,
			Handler:           http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { o.requests <- r.Header.Clone() }),
		}}
		server.Start()
		t.Cleanup(server.Close)
		return o
	}
	t.Skip("this machine has no IPv4 address but loopback, and proxies never go there")
	return origin{}
}

// liveSquid is a running Squid.
type liveSquid struct{ *squidtest.Squid }

// startSquid runs Squid as in the pod: same arguments, same user. replace are lines that replace those of the generated
// configuration that start alike.
func startSquid(t *testing.T, config Config, credentials *providers.Credentials, replace ...string) liveSquid {
	t.Helper()
	var files []squidtest.File
	if credentials != nil {
		line, err := passwordLine(*credentials)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, squidtest.File{Name: passwordFile, Content: line})
	}
	return liveSquid{squidtest.Start(t, func(dir string, address netip.AddrPort) string {
		config.Port = int32(address.Port())
		text := strings.ReplaceAll(squidConfig(config), authDir, dir)
		for _, line := range replace {
			key := line[:strings.LastIndexByte(line, ' ')+1]
			old := linesWith(text, key)
			if len(old) != 1 {
				t.Fatalf("%d lines start with %q", len(old), key)
			}
			text = strings.Replace(text, old[0], line, 1)
		}
		return text
	}, files...)}
}

func (s liveSquid) connect(t *testing.T, target string, c *providers.Credentials) int {
	t.Helper()
	return s.send(t, "CONNECT", target, target, c, nil).StatusCode
}

func (s liveSquid) get(t *testing.T, url string, c *providers.Credentials, headers ...http.Header) *http.Response {
	t.Helper()
	_, rest, _ := strings.Cut(url, "://")
	host, _, _ := strings.Cut(rest, "/")
	header := http.Header{}
	for _, h := range headers {
		header = h
	}
	return s.send(t, "GET", url, host, c, header)
}

// send writes the request by hand: http.Client would normalise what is tested here.
func (s liveSquid) send(t *testing.T, method, target, host string, c *providers.Credentials, header http.Header) *http.Response {
	t.Helper()
	conn, err := net.Dial("tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	must(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
	request := &strings.Builder{}
	fmt.Fprintf(request, "%s %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n", method, target, host)
	if c != nil {
		fmt.Fprintf(request, "Proxy-Authorization: Basic %s\r\n", base64.StdEncoding.EncodeToString([]byte(c.Username+":"+c.Password)))
	}
	must(t, header.Write(request))
	request.WriteString("\r\n")
	if _, err := conn.Write([]byte(request.String())); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s %s: %v", method, target, err)
	}
	must(t, response.Body.Close())
	return response
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
