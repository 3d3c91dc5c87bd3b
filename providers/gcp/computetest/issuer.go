package computetest

import (
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// tokenLifetime is how long access tokens are good unless a test says otherwise, as at Google.
const tokenLifetime = time.Hour

// Issuer is what the loopback servers that hand out access tokens have in common. They keep real time, since the client
// libraries do.
type Issuer struct {
	// URL is where it listens, without a path.
	URL string

	t       testing.TB
	http    *httptest.Server
	closing chan struct{}

	mu       sync.Mutex
	token    string
	lifetime time.Duration
	asked    []string
	failure  *IssuerFailure
}

// IssuerFailure is what an Issuer does instead of handing out tokens.
type IssuerFailure struct {
	// Status and Body are the answer. A body of "" is an empty one.
	Status int
	Body   string
	// Hang sends nothing until the client gives up or the server ends.
	Hang bool
}

// newIssuer starts a server that ends with the test.
func newIssuer(t testing.TB, token string, answer http.HandlerFunc) *Issuer {
	i := &Issuer{t: t, token: token, lifetime: tokenLifetime, closing: make(chan struct{})}
	i.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		i.mu.Lock()
		i.asked = append(i.asked, r.Method+" "+r.URL.RequestURI())
		failure := i.failure
		i.mu.Unlock()
		switch {
		case failure == nil:
			answer(w, r)
		case failure.Hang:
			select {
			case <-r.Context().Done():
			case <-i.closing:
			}
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Metadata-Flavor", "Google")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(failure.Status)
			_, _ = w.Write([]byte(failure.Body)) // the client may be gone
		}
	}))
	i.URL = i.http.URL
	t.Cleanup(func() {
		close(i.closing)
		i.http.Close()
	})
	return i
}

// SetToken changes the access token that is handed out.
func (i *Issuer) SetToken(token string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.token = token
}

// SetLifetime changes how long the next tokens are said to be good. Clients ask again some minutes before the end, so that
// a short time makes them ask for every call.
func (i *Issuer) SetLifetime(lifetime time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.lifetime = lifetime
}

// Fail lets all calls fail; nil lets them succeed again.
func (i *Issuer) Fail(failure *IssuerFailure) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.failure = failure
}

// Asked are the calls so far: method and URI.
func (i *Issuer) Asked() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return append([]string(nil), i.asked...)
}

func (i *Issuer) current() (token string, lifetime time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.token, i.lifetime
}

// grant sends an access token in the form of OAuth 2.0.
func (i *Issuer) grant(w http.ResponseWriter, more obj) {
	token, lifetime := i.current()
	answer := obj{"access_token": token, "token_type": "Bearer", "expires_in": int(lifetime / time.Second)}
	maps.Copy(answer, more)
	i.send(w, http.StatusOK, answer)
}

// refuse sends an error in the form of OAuth 2.0.
func (i *Issuer) refuse(w http.ResponseWriter, code, description string) {
	i.send(w, http.StatusBadRequest, obj{"error": code, "error_description": description})
}

func (i *Issuer) send(w http.ResponseWriter, status int, body obj) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		i.t.Logf("the client of the token server is gone: %v", err)
	}
}

// writeJSON writes a credentials file that only its owner may read.
func writeJSON(t testing.TB, path string, content obj) {
	t.Helper()
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Isolate keeps Application Default Credentials away from the files of the user and from the metadata server of the
// machine, until the test ends. Every test that makes a client starts with it, so none of them can be parallel.
func Isolate(t testing.TB) {
	t.Helper()
	// The go command finds the module cache by HOME, so this comes first.
	if _, err := loadDocument(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("CLOUDSDK_CONFIG", t.TempDir())
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	for _, proxy := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(proxy, "")
	}
	t.Setenv("GCE_METADATA_HOST", closedAddress(t))
}

// closedAddress is one on the loopback on which nothing listens.
func closedAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// host is a URL without the scheme.
func host(url string) string { return strings.TrimPrefix(url, "http://") }
