package proxyzoo

import (
	"bufio"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// DripInterval is the time between two bytes of what drips.
const DripInterval = 100 * time.Millisecond

// Origin is an HTTPS server to be probed.
type Origin struct {
	// URL has no path. See Handler for the paths.
	URL string
	// Conns counts TCP connections, Handshakes counts full TLS handshakes.
	Conns, Handshakes atomic.Int64

	mu       sync.Mutex
	requests []*http.Request
}

// NewOrigin serves Handler on host (an address of this machine) with a certificate of the authority.
func NewOrigin(tb testing.TB, ca *CA, host string) *Origin {
	tb.Helper()
	return NewOriginWith(tb, ca.Leaf(tb, host), host)
}

// NewOriginWith serves Handler with a given certificate.
func NewOriginWith(tb testing.TB, cert tls.Certificate, host string) *Origin {
	tb.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		tb.Fatalf("listening for an origin: %v", err)
	}
	o := &Origin{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.mu.Lock()
		o.requests = append(o.requests, r)
		o.mu.Unlock()
		Handler().ServeHTTP(w, r)
	}))
	_ = server.Listener.Close()
	server.Listener = countingListener{l, &o.Conns}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{cert},
		VerifyConnection: func(s tls.ConnectionState) error {
			if !s.DidResume {
				o.Handshakes.Add(1)
			}
			return nil
		},
	}
	server.StartTLS()
	tb.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	o.URL = "https://" + l.Addr().String()
	return o
}

// Requests returns what was asked so far.
func (o *Origin) Requests() []*http.Request {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]*http.Request(nil), o.requests...)
}

type countingListener struct {
	net.Listener
	n *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// Handler serves /ip (the client's address), /json (the same as an object), /status/N, /redirect (to itself), /drip
// (a body that takes for ever), /endless (one without end), /early (after an informational answer) and /short (ends
// before its length).
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/ip", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, clientIP(r)+"\n") })
	mux.HandleFunc("/json", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"ip": "`+clientIP(r)+`"}`)
	})
	mux.HandleFunc("/status/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		w.WriteHeader(code)
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/redirect", http.StatusFound)
	})
	mux.HandleFunc("/early", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("/short", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "not that long")
	})
	mux.HandleFunc("/drip", func(w http.ResponseWriter, r *http.Request) {
		ticker := time.NewTicker(DripInterval)
		defer ticker.Stop()
		for {
			if _, err := io.WriteString(w, "x"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-ticker.C:
			}
		}
	})
	mux.HandleFunc("/endless", func(w http.ResponseWriter, _ *http.Request) {
		for b := make([]byte, 32<<10); ; {
			if _, err := w.Write(b); err != nil {
				return
			}
		}
	})
	return mux
}

func clientIP(r *http.Request) string {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	return host
}

// NewGoAwayOrigin serves an origin that closes as soon as it has read a request; over HTTP/2 it says GOAWAY first, to
// which the usual client answers by trying again without end.
func NewGoAwayOrigin(tb testing.TB, ca *CA, host string) *Origin {
	tb.Helper()
	l, err := tls.Listen("tcp", net.JoinHostPort(host, "0"), &tls.Config{
		Certificates: []tls.Certificate{ca.Leaf(tb, host)}, NextProtos: []string{"h2", "http/1.1"},
	})
	if err != nil {
		tb.Fatalf("listening for an origin: %v", err)
	}
	o := &Origin{URL: "https://" + l.Addr().String()}
	serve(tb, l, func(c net.Conn) {
		o.Conns.Add(1)
		t := c.(*tls.Conn)
		if t.Handshake() != nil {
			return
		}
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			// SETTINGS, then GOAWAY(last stream 0, no error).
			_, _ = c.Write([]byte{0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
			return
		}
		_, _ = bufio.NewReader(c).ReadString('\n')
	})
	return o
}
