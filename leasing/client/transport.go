package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
)

const headerProxyAuthorization = "Proxy-Authorization"

// ConnectError is the proxy's refusal to open a tunnel to a target.
type ConnectError struct {
	// Proxy is the proxy's address.
	Proxy string
	// Target is host:port.
	Target string
	// StatusCode is the proxy's answer: 407 for wrong credentials, 403 for a target that it does not admit, 502 to 504 when it
	// does not get there.
	StatusCode int
}

// Error implements error.
func (e *ConnectError) Error() string {
	return fmt.Sprintf("proxy %s answered %d %s to CONNECT %s", e.Proxy, e.StatusCode, http.StatusText(e.StatusCode), e.Target)
}

// transport sends requests through the proxy of a lease while that lives.
type transport struct {
	lease *Lease
	inner *http.Transport
	dial  func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	open map[*conn]struct{} // nil when the lease has ended
}

func newTransport(l *Lease, base *http.Transport) *transport {
	if base == nil {
		base, _ = http.DefaultTransport.(*http.Transport)
	}
	if base == nil {
		base = &http.Transport{}
	}
	t := &transport{lease: l, inner: base.Clone(), open: map[*conn]struct{}{}}
	t.dial = t.inner.DialContext
	if t.dial == nil {
		t.dial = (&net.Dialer{}).DialContext
		// A dialler of one's own would otherwise switch HTTP/2 off. A transport that was used already has it in its TLS
		// settings.
		settings := t.inner.TLSClientConfig
		t.inner.ForceAttemptHTTP2 = t.inner.ForceAttemptHTTP2 || settings == nil || slices.Contains(settings.NextProtos, "h2")
	}
	t.inner.DialContext, t.inner.DialTLSContext = t.connect, nil
	t.inner.Proxy = func(*http.Request) (*url.URL, error) {
		// Asked for every request, also for one that will use an idle connection. The credentials are not in the URL: the
		// transport keeps it where it could be printed.
		return l.url, l.Err()
	}
	header, fixed := t.inner.GetProxyConnectHeader, t.inner.ProxyConnectHeader
	t.inner.GetProxyConnectHeader = func(ctx context.Context, proxy *url.URL, target string) (http.Header, error) {
		h := fixed.Clone()
		if header != nil {
			own, err := header(ctx, proxy, target)
			if err != nil {
				return nil, err
			}
			h = own.Clone()
		}
		if h == nil {
			h = http.Header{}
		}
		t.authorize(h)
		return h, nil
	}
	answered := t.inner.OnProxyConnectResponse
	t.inner.OnProxyConnectResponse = func(ctx context.Context, proxy *url.URL, request *http.Request, answer *http.Response) error {
		if answered != nil {
			if err := answered(ctx, proxy, request, answer); err != nil {
				return err
			}
		}
		if answer.StatusCode == http.StatusOK {
			return nil
		}
		l.doubt()
		return &ConnectError{Proxy: proxy.Host, Target: request.Host, StatusCode: answer.StatusCode}
	}
	return t
}

func (t *transport) authorize(h http.Header) {
	h.Del(headerProxyAuthorization)
	if value := t.lease.Credentials().authorization(); value != "" {
		h.Set(headerProxyAuthorization, value)
	}
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.lease.Err(); err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, err
	}
	sent := r.WithContext(r.Context())
	sent.Header = r.Header.Clone()
	if sent.Header == nil {
		sent.Header = http.Header{}
	}
	// What goes through a tunnel is read by the target.
	sent.Header.Del(headerProxyAuthorization)
	if r.URL != nil && r.URL.Scheme == "http" {
		t.authorize(sent.Header)
	}
	answer, err := t.inner.RoundTrip(sent)
	if err != nil {
		return nil, t.explain(err)
	}
	answer.Request = r // as it was given, without credentials
	if answer.StatusCode == http.StatusProxyAuthRequired && r.URL.Scheme == "http" {
		t.lease.doubt()
	}
	return answer, nil
}

// CloseIdleConnections is what http.Client.CloseIdleConnections calls.
func (t *transport) CloseIdleConnections() { t.inner.CloseIdleConnections() }

// String names the proxy.
func (t *transport) String() string { return "transport of " + t.lease.String() }

// Format implements fmt.Formatter for every verb and flag.
func (t *transport) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, t.String()) }

// explain says of an error that came with the end of the lease that this is why.
func (t *transport) explain(err error) error {
	if lost := t.lease.Err(); lost != nil && !errors.Is(err, lost) {
		return fmt.Errorf("%w: %w", lost, err)
	}
	return err
}

// connect opens a connection to the proxy. It breaks off when the lease ends.
func (t *transport) connect(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.lease.ctx, cancel)()
	opened, err := t.dial(ctx, network, address)
	if err != nil {
		t.lease.doubt()
		return nil, t.explain(err)
	}
	c := &conn{Conn: opened, transport: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		_ = opened.Close()
		return nil, t.lease.Err()
	}
	t.open[c] = struct{}{}
	return c, nil
}

// shut closes all connections for good.
func (t *transport) shut() {
	t.mu.Lock()
	open := t.open
	t.open = nil
	t.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
	t.inner.CloseIdleConnections()
}

// conn is a connection to the proxy that ends with the lease.
type conn struct {
	net.Conn
	transport *transport
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = c.transport.explain(err)
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil {
		err = c.transport.explain(err)
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.transport.mu.Lock()
	delete(c.transport.open, c)
	c.transport.mu.Unlock()
	return c.Conn.Close()
}
