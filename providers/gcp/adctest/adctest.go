// Package adctest gives tests Application Default Credentials that lead nowhere but to the loopback: a key file of a service
// account, whose token server is a small one of this package.
package adctest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"go/build"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// keyBits is the length of the keys; short ones are made fast, and shorter ones are refused.
const keyBits = 2048

// Account is a service account with its token server.
type Account struct {
	// File is its key file.
	File string

	t      testing.TB
	server *httptest.Server

	mu     sync.Mutex
	key    *rsa.PrivateKey
	token  string
	status int
	calls  int
}

// New makes an account that gets a token, and makes it the default credentials of the test. Nothing else is found by a look
// for credentials, and nothing leaves the machine.
func New(t testing.TB, token string) *Account {
	t.Helper()
	Isolate(t)
	a := &Account{t: t, token: token, File: filepath.Join(t.TempDir(), "key.json")}
	a.server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(a.server.Close)
	a.Rotate()
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", a.File)
	return a
}

// Isolate takes all credentials away from the test.
func Isolate(t testing.TB) {
	t.Helper()
	// The go command, which other helpers of tests run, goes on finding its caches.
	t.Setenv("GOPATH", build.Default.GOPATH)
	if cache, err := os.UserCacheDir(); err == nil && os.Getenv("GOCACHE") == "" {
		t.Setenv("GOCACHE", filepath.Join(cache, "go-build"))
	}
	empty := t.TempDir()
	t.Setenv("HOME", empty)
	t.Setenv("CLOUDSDK_CONFIG", empty)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
	t.Setenv("GCE_METADATA_HOST", Closed(t))
}

// Closed is a loopback address on which nothing listens.
func Closed(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// Rotate gives the account a new key; the server refuses the old one from now on.
func (a *Account) Rotate() {
	a.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "project_id": "demo-project", "private_key_id": "key",
		"private_key":  string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		"client_email": "operator@demo-project.iam.gserviceaccount.com", "client_id": "1", "token_uri": a.server.URL,
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.mu.Lock()
	a.key = key
	a.mu.Unlock()
	// In one step, as a mounted Secret changes.
	fresh := a.File + ".new"
	if err := os.WriteFile(fresh, text, 0o600); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(fresh, a.File); err != nil {
		a.t.Fatal(err)
	}
}

// SetToken changes the token that is given.
func (a *Account) SetToken(token string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token = token
}

// Answer makes the token server answer with an HTTP status; 0 lets it give tokens again.
func (a *Account) Answer(status int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status = status
}

// Calls is how often a token was asked for.
func (a *Account) Calls() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.calls
}

func (a *Account) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	status, body := a.status, map[string]any{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
	switch {
	case status != 0:
	case !signed(r.FormValue("assertion"), &a.key.PublicKey):
		status = http.StatusBadRequest
	default:
		status, body = http.StatusOK, map[string]any{"access_token": a.token, "token_type": "Bearer", "expires_in": 3600}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// signed tells whether a JWT is signed by a key.
func signed(token string, key *rsa.PublicKey) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return false
	}
	sum := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil
}
