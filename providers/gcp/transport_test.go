package gcp

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// deadWire passes connections on to a server until they are told to die: then nothing arrives any more and nobody is told,
// as when a firewall forgets a connection.
type deadWire struct {
	mu   sync.Mutex
	dead chan struct{}
	made atomic.Int64
}

func (d *deadWire) kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	close(d.dead)
	d.dead = make(chan struct{})
}

// dial gives a connection that is silent once it is dead.
func (d *deadWire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	d.made.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	return &wire{Conn: conn, dead: d.dead}, nil
}

type wire struct {
	net.Conn
	dead chan struct{}
}

func (w *wire) gone() bool {
	select {
	case <-w.dead:
		return true
	default:
		return false
	}
}

func (w *wire) Write(b []byte) (int, error) {
	if w.gone() {
		return len(b), nil
	}
	return w.Conn.Write(b)
}

// TestTransport_DeadConnectionIsGivenUp: all calls share one HTTP/2 connection. One that is dead without a word would fail
// every call for as long as the kernel believes in it, a quarter of an hour.
func TestTransport_DeadConnectionIsGivenUp(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("%s: the test is about HTTP/2", r.Proto)
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	d := &deadWire{dead: make(chan struct{})}
	transport := newTransport(time.Second, 5*time.Second)
	defer transport.CloseIdleConnections()
	transport.DialContext = d.dial
	transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	client := &http.Client{Transport: transport}
	get := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.Body.Close()
	}
	for range 2 {
		if err := get(); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.made.Load(); n != 1 {
		t.Fatalf("%d connections", n)
	}
	d.kill()
	// The call that meets the dead connection fails, or is made again on another one by the client.
	begun := time.Now()
	if err := get(); err != nil {
		t.Logf("after %v: %v", time.Since(begun).Round(time.Millisecond), err)
	}
	if err := get(); err != nil || time.Since(begun) > 40*time.Second || d.made.Load() != 2 {
		t.Errorf("%v after %v, %d connections", err, time.Since(begun), d.made.Load())
	}
}
