package client

import (
	"context"
	"encoding/base64"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// printable has every printable ASCII character, and some beyond.
const printable = ` !"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_` + "`abcdefghijklmnopqrstuvwxyz{|}~äß€"

// printableName has all of them that a user name may have.
const printableName = `!"#$%&'()*+,-./0123456789;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_` + "`abcdefghijklmnopqrstuvwxyz{|}~ äß€"

// forwardProxy is an HTTP proxy that asks for credentials.
type forwardProxy struct {
	url                string
	username, password atomic.Pointer[string]
	// connects and plain count what it let through; refused what it did not.
	connects, plain, refused atomic.Int32
	// status is answered to CONNECT instead; 0: none.
	status atomic.Int32
	server *httptest.Server

	mu    sync.Mutex
	conns map[net.Conn]bool
}

func startProxy(t testing.TB, username, password string) *forwardProxy {
	t.Helper()
	p := &forwardProxy{conns: map[net.Conn]bool{}}
	p.username.Store(&username)
	p.password.Store(&password)
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s == http.StateClosed {
			delete(p.conns, c)
		} else {
			p.conns[c] = true
		}
	}
	p.server.Start()
	p.url = p.server.URL
	t.Cleanup(p.stop)
	return p
}

// stop ends the proxy and its tunnels.
func (p *forwardProxy) stop() {
	p.mu.Lock()
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.server.Close()
}

// ServeHTTP implements http.Handler.
func (p *forwardProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte(*p.username.Load()+":"+*p.password.Load()))
	if got := r.Header.Get("Proxy-Authorization"); got != want && *p.username.Load() != "" {
		p.refused.Add(1)
		w.Header().Set("Proxy-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	r.Header.Del("Proxy-Authorization")
	if r.Method != http.MethodConnect {
		p.plain.Add(1)
		r.RequestURI = ""
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = answer.Body.Close() }()
		maps.Copy(w.Header(), answer.Header)
		w.WriteHeader(answer.StatusCode)
		_, _ = io.Copy(flushing{w}, answer.Body)
		return
	}
	if status := p.status.Load(); status != 0 {
		w.WriteHeader(int(status))
		return
	}
	target, err := net.Dial("tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer func() { _ = target.Close() }()
	p.connects.Add(1)
	near, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = near.Close() }()
	_, _ = io.WriteString(near, "HTTP/1.1 200 OK\r\n\r\n")
	go func() {
		_, _ = io.Copy(target, buffered)
		_ = target.Close()
	}()
	_, _ = io.Copy(near, target)
}

// flushing passes everything on at once.
type flushing struct{ w http.ResponseWriter }

func (f flushing) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	_ = http.NewResponseController(f.w).Flush()
	return n, err
}

// stub is a lease that is as a test wants it.
type stub struct {
	mu    sync.Mutex
	terms Terms
	// lost is what Check and Renew answer, if it is set.
	lost     error
	checks   int
	released int
}

func stubOf(p *forwardProxy) *stub {
	return &stub{terms: Terms{
		Proxy:       Proxy{Namespace: "default", Name: "p", URL: p.url},
		Credentials: NewCredentials(*p.username.Load(), *p.password.Load()), TTL: time.Hour,
	}}
}

func (s *stub) lease(t testing.TB, base *http.Transport) *Lease {
	t.Helper()
	return acquire(t, NewFor(s, base), Request{})
}

// Acquire implements Backend.
func (s *stub) Acquire(ctx context.Context, _ Request, _ string) (Handle, Terms, error) {
	terms, err := s.Renew(ctx)
	return s, terms, err
}

// Forget implements Backend.
func (s *stub) Forget(context.Context, Request, string) error { return nil }

// ID implements Handle.
func (s *stub) ID() string { return "default.l.proof" }

// Name implements Handle.
func (s *stub) Name() string { return "default/l" }

// Renew implements Handle.
func (s *stub) Renew(context.Context) (Terms, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	terms := s.terms
	terms.Until = time.Now().Add(terms.TTL)
	return terms, s.lost
}

// Check implements Handle.
func (s *stub) Check(ctx context.Context) (Terms, error) {
	terms, err := s.Renew(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checks++
	return terms, err
}

// Report implements Handle.
func (s *stub) Report(context.Context, Report) error { return nil }

// Release implements Handle.
func (s *stub) Release(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released++
	return nil
}

func (s *stub) set(change func(*stub)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// site is an origin that remembers whether it was shown what it must not see.
type site struct {
	*httptest.Server
	hits, leaks atomic.Int32
	protocol    atomic.Pointer[string]
	hang        chan struct{}
}

func startSite(t testing.TB, secure bool) *site {
	t.Helper()
	s := &site{hang: make(chan struct{})}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.hits.Add(1)
		s.protocol.Store(&r.Proto)
		if r.Header.Get("Proxy-Authorization") != "" {
			s.leaks.Add(1)
		}
		switch r.URL.Path {
		case "/to":
			http.Redirect(w, r, r.URL.Query().Get("url"), http.StatusFound)
			return
		case "/hang":
			_, _ = io.WriteString(w, "begun ")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-s.hang:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, "page")
	}))
	if secure {
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(func() {
		close(s.hang)
		s.CloseClientConnections()
		s.Close()
	})
	return s
}

// trusting is a transport that believes in the sites of a test.
func trusting(s *site) *http.Transport {
	base, _ := s.Client().Transport.(*http.Transport)
	base = base.Clone()
	base.DialContext = nil
	return base
}
