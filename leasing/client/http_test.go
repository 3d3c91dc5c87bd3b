package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// smallAPI grants everything, and remembers paths and tokens.
type smallAPI struct {
	mu     sync.Mutex
	tokens []string
	paths  []string
}

func (a *smallAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens = append(a.tokens, r.Header.Get("Authorization"))
	a.paths = append(a.paths, r.Method+" "+r.URL.EscapedPath())
	if r.Method == http.MethodDelete || strings.HasSuffix(r.URL.Path, "/report") {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(wire.Lease{
		LeaseID: "ns.http-1.a-_b", ExpiresAt: time.Now(), TTLSeconds: 300, Proxy: wire.LeasedProxy{Proxy: wire.Proxy{URL: "http://192.0.2.1:3128"}},
	})
}

func TestCallsOverRealSockets(t *testing.T) {
	before := goleak.IgnoreCurrent()
	api := &smallAPI{}
	server := httptest.NewServer(api)
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	c, err := New(server.URL+"/behind/a/gateway/", Options{Token: TokenFile(file)})
	if err != nil {
		t.Fatal(err)
	}
	lease := acquire(t, c, Request{})
	if lease.handle.Name() != "ns/http-1" {
		t.Error(lease.handle.Name())
	}
	write("second")
	if err := lease.Report(t.Context(), "x.example", OK, 0); err != nil {
		t.Error(err)
	}
	for text, want := range map[string]string{"": "the token is empty", "two words": "printable", "line\nend": "printable", "ü": "printable"} {
		write(text)
		if err := lease.Report(t.Context(), "x.example", OK, 0); err == nil || !strings.Contains(err.Error(), want) || text != "" && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Acquire(t.Context(), Request{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	write("third")
	closeLease(t, lease)
	c.Close()
	server.Close()
	if got, want := strings.Join(api.tokens, ","), "Bearer first,Bearer second,Bearer third"; got != want {
		t.Errorf("tokens %s", got)
	}
	if got, want := strings.Join(api.paths, ","), "POST /behind/a/gateway/v1/leases,POST /behind/a/gateway/v1/leases/ns.http-1.a-_b/report,DELETE /behind/a/gateway/v1/leases/ns.http-1.a-_b"; got != want {
		t.Errorf("calls %s", got)
	}
	goleak.VerifyNone(t, before)
}

// Trouble with TLS does not go away, so it is told instead of being tried again.
func TestTLSTroubleIsTold(t *testing.T) {
	api := httptest.NewUnstartedServer(&smallAPI{})
	api.Config.ErrorLog = log.New(io.Discard, "", 0)
	api.StartTLS()
	defer api.Close()
	plain := httptest.NewServer(&smallAPI{})
	defer plain.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, url := range []string{api.URL, strings.Replace(plain.URL, "http:", "https:", 1)} {
		c, err := New(url, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Acquire(ctx, Request{}); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", url, err)
		}
		c.Close()
	}
	// And with the right certificates it works.
	c, err := New(api.URL, Options{HTTPClient: api.Client(), Token: Token("x")})
	if err != nil {
		t.Fatal(err)
	}
	closeLease(t, acquire(t, c, Request{}))
}

func TestTarget(t *testing.T) {
	for raw, want := range map[string]string{
		"https://Shop.Example:8443/x?y": "shop.example", "http://shop.example./": "shop.example", "http://[2001:DB8::1]:80/": "2001:db8::1", "http://192.0.2.1": "192.0.2.1",
	} {
		if got := Target(get(t, raw).URL); got != want {
			t.Errorf("%s: %q, want %q", raw, got, want)
		}
	}
}
