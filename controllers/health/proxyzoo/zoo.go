package proxyzoo

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
)

// Beast is one misbehaving proxy or target with the verdict it must get.
type Beast struct {
	Name string
	// Do is nil for a proxy that is not there at all.
	Do Behaviour
	// URL is the target.
	URL string
	// Hangs says that only the deadline ends a probe of it.
	Hangs  bool
	Class  classify.Class
	Reason string
}

// World is what the beasts live in.
type World struct {
	Good, Evil *CA
	Origin     *Origin // 127.0.0.1, certificate by Good
	GoAway     *Origin
}

// NewWorld starts the origins.
func NewWorld(tb testing.TB) *World {
	tb.Helper()
	good := NewCA(tb, "good")
	return &World{
		Good: good, Evil: NewCA(tb, "evil"),
		Origin: NewOrigin(tb, good, "127.0.0.1"), GoAway: NewGoAwayOrigin(tb, good, "127.0.0.1"),
	}
}

// Beasts returns the zoo. Names start with the id of the scenario they prove.
func (w *World) Beasts(tb testing.TB) []Beast {
	tb.Helper()
	other := NewOriginWith(tb, w.Good.Leaf(tb, "other.test"), "127.0.0.1")
	ip, status := w.Origin.URL+"/ip", w.Origin.URL+"/status/"
	proxy := func(name string, do Behaviour, class classify.Class, reason string) Beast {
		return Beast{Name: name, Do: do, URL: ip, Class: class, Reason: reason}
	}
	ok := func(name string, do Behaviour) Beast {
		return proxy(name, do, classify.Success, classify.ReasonProbeSucceeded)
	}
	bad := func(name string, do Behaviour, reason string) Beast {
		return proxy(name, do, classify.Failure, reason)
	}
	hangs := func(name string, do Behaviour, reason string) Beast {
		b := bad(name, do, reason)
		b.Hangs = true
		return b
	}
	target := func(name, url string, class classify.Class, reason string) Beast {
		return Beast{Name: name, Do: Tunnel, URL: url, Class: class, Reason: reason}
	}
	dripping := target("E13 target body drips", w.Origin.URL+"/drip", classify.Neutral, classify.ReasonUnexpectedBody)
	dripping.Hangs = true
	return []Beast{
		ok("E7 tunnel", Tunnel),
		ok("E7 tunnel answered by HTTP/1.0", Answering("HTTP/1.0 200 Connection established\r\nProxy-agent: x\r\n\r\n")),
		ok("E7 tunnel answered by 201", Answering("HTTP/1.1 201 Tunnel\r\n\r\n")),
		ok("E7 tunnel with Content-Length", Answering("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")),
		ok("E7 tunnel with Transfer-Encoding", Answering("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")),
		ok("E7 tunnel after 1xx", Answering("HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")),
		ok("E7 tunnel after a long header", Answering("HTTP/1.1 200 OK\r\nVia: "+strings.Repeat("x", 6000)+"\r\n\r\n")),
		bad("E2 port closed", nil, classify.ReasonConnectionRefused),
		hangs("E1 accepts and never answers", Hang, classify.ReasonConnectTimeout),
		bad("E2 accepts and closes", Close, classify.ReasonConnectClosed),
		bad("E2 reset instead of an answer", reset(""), classify.ReasonConnectClosed),
		bad("E3 wants credentials", Status("407 Proxy Authentication Required", `Proxy-Authenticate: Basic realm="x"`), classify.ReasonProxyAuthFailed),
		bad("E3 wants credentials without saying which", Status("407 Proxy Authentication Required"), classify.ReasonProxyAuthFailed),
		bad("E3 wants credentials by 401", Status("401 Unauthorized"), classify.ReasonProxyAuthFailed),
		bad("E4 denied", Status("403 Forbidden", "X-Squid-Error: ERR_ACCESS_DENIED 0"), classify.ReasonConnectDenied),
		bad("E4 method not allowed", Status("405 Method Not Allowed"), classify.ReasonConnectDenied),
		bad("E5 cannot forward 500", Status("500 Internal Server Error", "X-Squid-Error: ERR_CANNOT_FORWARD 0"), classify.ReasonEgressFailed),
		bad("E5 bad gateway 502", Status("502 Bad Gateway"), classify.ReasonEgressFailed),
		bad("E5 no DNS 503", Status("503 Service Unavailable", "X-Squid-Error: ERR_DNS_FAIL 0"), classify.ReasonEgressFailed),
		proxy("E6 throttled", Status("429 Too Many Requests", "Retry-After: 60"), classify.Neutral, classify.ReasonProxyThrottled),
		bad("E9 portal answers everything", Say("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 15\r\n\r\n<html>hi</html>"), classify.ReasonNotATunnel),
		bad("E9 portal answers after the handshake began", portal, classify.ReasonNotATunnel),
		bad("E9 portal redirects", Status("302 Found", "Location: http://portal.test/"), classify.ReasonNotATunnel),
		bad("E9 does not speak HTTP", Say("SSH-2.0-OpenSSH_9.2\r\n"), classify.ReasonNotATunnel),
		bad("E10 plain requests work, CONNECT does not", cacheOnly, classify.ReasonEgressFailed),
		bad("E11 intercepts with another authority", w.intercept(w.Evil.Leaf(tb, "127.0.0.1")), classify.ReasonTLSIntercepted),
		bad("E11 leads to another host", TunnelTo(strings.TrimPrefix(other.URL, "https://"), "HTTP/1.1 200 OK\r\n\r\n"), classify.ReasonTLSIntercepted),
		bad("E11 intercepts with an expired certificate", w.intercept(w.Good.ExpiredLeaf(tb, "127.0.0.1")), classify.ReasonTLSIntercepted),
		hangs("E12 tunnel in which nothing answers", Say("HTTP/1.1 200 Connection established\r\n\r\n"), classify.ReasonEgressFailed),
		bad("E12 tunnel that closes at once", SayAndClose("HTTP/1.1 200 Connection established\r\n\r\n"), classify.ReasonEgressFailed),
		bad("E2 reset in the handshake", reset("HTTP/1.1 200 OK\r\n\r\n"), classify.ReasonEgressFailed),
		hangs("E13 head drips", drip("HTTP/1.1 200 Connection established\r\nX: "+strings.Repeat("y", 500)), classify.ReasonConnectTimeout),
		bad("E14 endless head", endlessHead, classify.ReasonNotATunnel),
		bad("E14 endless status line", Say("HTTP/1.1 200 "+strings.Repeat("x", 64<<10)), classify.ReasonNotATunnel),
		bad("E14 endless 1xx", Say(strings.Repeat("HTTP/1.1 102 Processing\r\n\r\n", 100)), classify.ReasonNotATunnel),
		target("E17 target says GOAWAY", w.GoAway.URL+"/", classify.Failure, classify.ReasonNoResponse),
		target("E19 target answers 500", status+"500", classify.Success, classify.ReasonProbeSucceeded),
		target("E19 target answers 429", status+"429", classify.Success, classify.ReasonProbeSucceeded),
		target("E19 target answers 403", status+"403", classify.Success, classify.ReasonProbeSucceeded),
		target("E17 target redirects for ever", w.Origin.URL+"/redirect", classify.Success, classify.ReasonProbeSucceeded),
		target("E19 target sends early hints", w.Origin.URL+"/early", classify.Success, classify.ReasonProbeSucceeded),
		target("E14 target body is endless", w.Origin.URL+"/endless", classify.Success, classify.ReasonProbeSucceeded),
		target("E19 target body ends early", w.Origin.URL+"/short", classify.Neutral, classify.ReasonUnexpectedBody),
		dripping,
	}
}

// SayAndClose sends a text and closes its side.
func SayAndClose(text string) Behaviour {
	return func(c net.Conn, br *bufio.Reader, _ *http.Request) {
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite()
		Hang(c, br, nil)
	}
}

// reset sends a text, waits for the next bytes if there was one, and resets the connection.
func reset(text string) Behaviour {
	return func(c net.Conn, br *bufio.Reader, _ *http.Request) {
		if text != "" {
			_, _ = io.WriteString(c, text)
			_, _ = br.ReadByte()
		}
		_ = c.(*net.TCPConn).SetLinger(0)
	}
}

// portal opens a tunnel and answers the handshake with a page.
func portal(c net.Conn, br *bufio.Reader, _ *http.Request) {
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	_, _ = br.ReadByte()
	_, _ = io.WriteString(c, "<html>please log in</html>")
	Hang(c, br, nil)
}

// cacheOnly answers plain requests from its cache and cannot open tunnels.
func cacheOnly(c net.Conn, br *bufio.Reader, r *http.Request) {
	if r.Method == http.MethodConnect {
		Status("503 Service Unavailable", "X-Squid-Error: ERR_CONNECT_FAIL 110")(c, br, r)
		return
	}
	Say("HTTP/1.1 200 OK\r\nAge: 300\r\nX-Cache: HIT\r\nContent-Length: 9\r\n\r\n127.0.0.1")(c, br, r)
}

// intercept answers in the target's place.
func (w *World) intercept(cert tls.Certificate) Behaviour {
	config := &tls.Config{Certificates: []tls.Certificate{cert}}
	return func(c net.Conn, _ *bufio.Reader, _ *http.Request) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n")
		t := tls.Server(c, config)
		if t.Handshake() != nil {
			return
		}
		if _, err := http.ReadRequest(bufio.NewReader(t)); err == nil {
			_, _ = io.WriteString(t, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n127.0.0.1")
		}
	}
}

func drip(text string) Behaviour {
	return func(c net.Conn, _ *bufio.Reader, _ *http.Request) {
		ticker := time.NewTicker(DripInterval)
		defer ticker.Stop()
		for _, b := range []byte(text) {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			<-ticker.C
		}
	}
}

func endlessHead(c net.Conn, _ *bufio.Reader, _ *http.Request) {
	_, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n")
	for line := "X-A: " + strings.Repeat("z", 1000) + "\r\n"; err == nil; {
		_, err = io.WriteString(c, line)
	}
}
