package computetest

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// quotaProject pays for the calls of a person.
const quotaProject = "demo-project"

// Person is the token endpoint for what `gcloud auth application-default login` leaves on a laptop. No file names it: client
// libraries know only Google's, https://oauth2.googleapis.com/token, so that a test has to lead connections for GoogleTokenHost
// here, without TLS.
type Person struct {
	*Issuer
	refresh string // that is good
}

// GoogleTokenHost is where the tokens of people come from, with its port.
const GoogleTokenHost = "oauth2.googleapis.com:443"

// NewPerson starts the endpoint; it hands out the token.
func NewPerson(t testing.TB, token string) *Person {
	t.Helper()
	p := &Person{}
	p.Issuer = newIssuer(t, token, p.answer)
	p.Logout()
	return p
}

// Logout revokes all files written so far.
func (p *Person) Logout() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refresh = rand.Text()
}

// Login writes the file below the home directory where clients look for it when the environment names no other.
func (p *Person) Login() {
	p.t.Helper()
	dir := filepath.Join(os.Getenv("HOME"), ".config", "gcloud")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	p.mu.Lock()
	refresh := p.refresh
	p.mu.Unlock()
	writeJSON(p.t, filepath.Join(dir, "application_default_credentials.json"), obj{
		"type": "authorized_user", "client_id": "client.apps.googleusercontent.com", "client_secret": "no-secret", "refresh_token": refresh,
		"quota_project_id": quotaProject,
	})
}

// Dial connects to the endpoint, whatever address is asked for.
func (p *Person) Dial(ctx context.Context) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", host(p.URL))
}

func (p *Person) answer(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	refresh := p.refresh
	p.mu.Unlock()
	switch {
	case r.URL.Path != "/token" || r.Form.Get("grant_type") != "refresh_token":
		p.refuse(w, "unsupported_grant_type", "Invalid grant_type: "+r.Form.Get("grant_type"))
	case r.Form.Get("refresh_token") != refresh:
		p.refuse(w, "invalid_grant", "Token has been expired or revoked.")
	default:
		p.grant(w, nil)
	}
}
