// Package proxyzoo holds proxies and origins that misbehave in every way that was seen in public, on real sockets, for
// tests. Nothing in it sleeps: what hangs waits for its peer, what drips ticks.
package proxyzoo

import (
	"bufio"
	"encoding/base64"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Behaviour is what a proxy does with a connection and the first request on it. The connection is closed afterwards.
type Behaviour func(c net.Conn, br *bufio.Reader, r *http.Request)

// Proxy is a running proxy.
type Proxy struct {
	// Addr is its host:port.
	Addr string
	// Conns counts accepted connections.
	Conns atomic.Int64

	mu       sync.Mutex
	do       Behaviour
	requests []*http.Request
}

// Start runs a proxy on 127.0.0.1 until the test ends.
func Start(tb testing.TB, do Behaviour) *Proxy {
	tb.Helper()
	return StartOn(tb, "127.0.0.1:0", do)
}

// StartOn runs a proxy on an address of this machine.
func StartOn(tb testing.TB, addr string, do Behaviour) *Proxy {
	tb.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		tb.Fatalf("listening for a proxy: %v", err)
	}
	p := &Proxy{Addr: l.Addr().String(), do: do}
	serve(tb, l, func(c net.Conn) {
		p.Conns.Add(1)
		br := bufio.NewReader(c)
		r, err := http.ReadRequest(br)
		if err != nil {
			return
		}
		p.mu.Lock()
		do := p.do
		p.requests = append(p.requests, r)
		p.mu.Unlock()
		do(c, br, r)
	})
	return p
}

// Become changes the behaviour for requests from now on.
func (p *Proxy) Become(do Behaviour) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.do = do
}

// Requests returns the requests so far.
func (p *Proxy) Requests() []*http.Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*http.Request(nil), p.requests...)
}

// serve accepts until the test ends, then closes every connection and waits for their handlers.
func serve(tb testing.TB, l net.Listener, handle func(net.Conn)) {
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	closed := false
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				if errors.Is(err, net.ErrClosed) {
					return
				}
				continue
			}
			mu.Lock()
			if closed {
				_ = c.Close()
			}
			conns[c] = true
			mu.Unlock()
			running.Go(func() {
				handle(c)
				_ = c.Close()
				mu.Lock()
				delete(conns, c)
				mu.Unlock()
			})
		}
	})
	tb.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		closed = true
		for c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		running.Wait()
	})
}

// Tunnel is a proxy that works.
func Tunnel(c net.Conn, br *bufio.Reader, r *http.Request) {
	TunnelTo(r.Host, "HTTP/1.1 200 Connection established\r\n\r\n")(c, br, r)
}

// TunnelTo opens every tunnel to one address, after a given answer.
func TunnelTo(addr, answer string) Behaviour {
	return func(c net.Conn, br *bufio.Reader, _ *http.Request) {
		u, err := net.Dial("tcp", addr)
		if err != nil {
			_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
			return
		}
		defer func() { _ = u.Close() }()
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
		pipe(c, br, u)
	}
}

func pipe(c net.Conn, br *bufio.Reader, u net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(u, br)
		_ = u.Close()
	}()
	_, _ = io.Copy(c, u)
	_ = c.Close()
	<-done
}

// Answering works like Tunnel but with another answer to CONNECT.
func Answering(answer string) Behaviour {
	return func(c net.Conn, br *bufio.Reader, r *http.Request) { TunnelTo(r.Host, answer)(c, br, r) }
}

// Say sends a text and waits for the client to close.
func Say(text string) Behaviour {
	return func(c net.Conn, br *bufio.Reader, _ *http.Request) {
		_, _ = io.WriteString(c, text)
		Hang(c, br, nil)
	}
}

// Status answers with a status and no body.
func Status(status string, headers ...string) Behaviour {
	lines := append([]string{"HTTP/1.1 " + status}, headers...)
	return Say(strings.Join(append(lines, "Content-Length: 0"), "\r\n") + "\r\n\r\n")
}

// Hang never answers and waits for the client to close.
func Hang(_ net.Conn, br *bufio.Reader, _ *http.Request) { _, _ = io.Copy(io.Discard, br) }

// Close closes without an answer.
func Close(net.Conn, *bufio.Reader, *http.Request) {}

// Authenticated demands credentials and otherwise does what a proxy does.
func Authenticated(username, password string, do Behaviour) Behaviour {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
	return func(c net.Conn, br *bufio.Reader, r *http.Request) {
		if r.Header.Get("Proxy-Authorization") != want {
			Status("407 Proxy Authentication Required", `Proxy-Authenticate: Basic realm="zoo"`)(c, br, r)
			return
		}
		do(c, br, r)
	}
}

// Closed refuses loopback and metadata addresses except the given authorities, and otherwise does what a proxy does.
func Closed(do Behaviour, allowed ...string) Behaviour {
	return func(c net.Conn, br *bufio.Reader, r *http.Request) {
		if slices.Contains(allowed, r.Host) {
			do(c, br, r)
			return
		}
		Status("403 Forbidden")(c, br, r)
	}
}
