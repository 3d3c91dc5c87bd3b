package httpapi

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	testToken = "token-of-the-test"
	testUID   = "11111111-2222-4333-8444-555555555555"
)

// backend answers every call with a lease and remembers what it was asked.
type backend struct {
	mu     sync.Mutex
	asked  []any
	err    error
	panics bool
}

func (b *backend) ask(what any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, what)
	if b.panics {
		panic("as the test wants it")
	}
	return b.err
}

// take gives what was asked since the last take.
func (b *backend) take() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.asked
	b.asked = nil
	return asked
}

var aProxy = Proxy{
	Namespace: "default", Name: "p", Host: "192.0.2.1", Port: 3128, Protocol: "HTTP", URL: "http://192.0.2.1:3128",
	Labels: map[string]string{"geo": "eu"}, Mode: v1alpha1.ModeManaged, Provider: "class", Phase: v1alpha1.PhaseReady, Healthy: true, Leasable: true,
}

func (b *backend) aLease(ref Ref) Lease {
	return Lease{
		Ref: ref, ExpireTime: time.Date(2030, 1, 2, 3, 4, 5, 678000, time.UTC), TTLSeconds: 300, Mode: v1alpha1.LeaseShared, Holder: "token",
		Proxy: aProxy, Username: "user", Password: "secret",
	}
}

func (b *backend) List(_ context.Context, q ListQuery) ([]Proxy, error) {
	return []Proxy{aProxy}, b.ask(q)
}

func (b *backend) Lease(_ context.Context, r LeaseRequest) (Lease, bool, error) {
	return b.aLease(Ref{Namespace: r.Namespace, Name: "http-1", UID: testUID}), r.Key == "replayed", b.ask(r)
}

func (b *backend) Get(_ context.Context, ref Ref) (Lease, error) { return b.aLease(ref), b.ask(ref) }

func (b *backend) Renew(_ context.Context, ref Ref) (Lease, error) { return b.aLease(ref), b.ask(ref) }

func (b *backend) Report(_ context.Context, ref Ref, r Report) error { return b.ask(r) }

func (b *backend) Release(_ context.Context, ref Ref) error { return b.ask(ref) }

// signer is ready without an API server.
func signer() *Signer {
	s := &Signer{}
	key := bytes.Repeat([]byte{7}, keySize)
	s.key.Store(&key)
	return s
}

func tokenAuth(t testing.TB) *Auth {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(testToken), 0o600); err != nil {
		t.Fatal(err)
	}
	auth, err := NewAuth(AuthConfig{Modes: []string{AuthToken}, TokenFile: file, Clock: clock.RealClock{}, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

// newServer is the API over a fake backend.
func newServer(t testing.TB) (http.Handler, *backend, *Server) {
	t.Helper()
	b := &backend{}
	metrics, err := NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{Backend: b, Auth: tokenAuth(t), Signer: signer(), DefaultNamespace: "default", Log: logr.Discard(), Metrics: metrics}
	return s.Handler(), b, s
}

// send sends a request with the token and further headers.
func send(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, bytes.NewBufferString(body))
	r.Header.Set("Authorization", "Bearer "+testToken)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}
