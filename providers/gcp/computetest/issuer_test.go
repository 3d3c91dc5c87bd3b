package computetest

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
)

// detect asks for a token as Google's own library does.
func detect(t *testing.T) (string, error) {
	t.Helper()
	found, err := credentials.DetectDefault(&credentials.DetectOptions{Scopes: []string{"https://www.googleapis.com/auth/compute"}})
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	token, err := found.Token(ctx)
	if err != nil {
		return "", err
	}
	return token.Value, nil
}

func wantToken(t *testing.T, want string) {
	t.Helper()
	if got, err := detect(t); err != nil || got != want {
		t.Errorf("got token %q, %v, want %q", got, err, want)
	}
}

// wantRefusal checks the status that the library reports.
func wantRefusal(t *testing.T, status int) {
	t.Helper()
	token, err := detect(t)
	var refused *auth.Error
	if !errors.As(err, &refused) || refused.Response.StatusCode != status {
		t.Errorf("got %q, %v, want a refusal with status %d", token, err, status)
	}
}

// TestServiceAccountKeys: a revoked key is refused, a new file is good again.
func TestServiceAccountKeys(t *testing.T) {
	Isolate(t)
	a := NewServiceAccount(t, "token-1")
	file := filepath.Join(t.TempDir(), "key.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	a.WriteFile(file)
	wantToken(t, "token-1")
	a.RotateKey()
	wantRefusal(t, http.StatusBadRequest)
	a.WriteFile(file)
	a.SetToken("token-2")
	wantToken(t, "token-2")
	a.Fail(&IssuerFailure{Status: http.StatusServiceUnavailable})
	wantRefusal(t, http.StatusServiceUnavailable)
	a.Fail(nil)
	wantToken(t, "token-2")
}

// TestFederation: with and without a service account to act as, and both steps refused.
func TestFederation(t *testing.T) {
	for _, impersonate := range []bool{false, true} {
		Isolate(t)
		f := NewFederation(t, "token-1", impersonate)
		file := filepath.Join(t.TempDir(), "federation.json")
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
		f.WriteFile(file)
		wantToken(t, "token-1")
		f.RotateSubject("another")
		if token, err := detect(t); err == nil || !strings.Contains(err.Error(), "400") {
			t.Errorf("impersonate=%t, an old projected token: got %q, %v", impersonate, token, err)
		}
		f.WriteFile(file)
		wantToken(t, "token-1")
		f.DenyImpersonation(true)
		if token, err := detect(t); (err != nil) != impersonate || err != nil && !strings.Contains(err.Error(), "getAccessToken") {
			t.Errorf("impersonate=%t, denied: got %q, %v", impersonate, token, err)
		}
	}
}

// TestMetadata: the token of the machine, and a refusal.
func TestMetadata(t *testing.T) {
	Isolate(t)
	m := NewMetadata(t, "token-1")
	t.Setenv("GCE_METADATA_HOST", m.Host())
	wantToken(t, "token-1")
	if asked := m.Asked(); len(asked) == 0 || !strings.Contains(asked[len(asked)-1], "/service-accounts/default/token") {
		t.Errorf("asked %q", asked)
	}
	m.Fail(&IssuerFailure{Status: http.StatusForbidden, Body: "Permission 'iam.serviceAccounts.getAccessToken' denied"})
	if token, err := detect(t); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("refused: got %q, %v", token, err)
	}
	m.Fail(nil)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.URL+"/computeMetadata/v1/instance/service-accounts/default/token", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusForbidden {
		t.Errorf("without the header: %d", response.StatusCode)
	}
}

// TestIsolate: without credentials the library finds none of the user's, and reaches no metadata server.
func TestIsolate(t *testing.T) {
	Isolate(t)
	if token, err := detect(t); err == nil {
		t.Errorf("found the token %q", token)
	}
	New(t, Options{}) // finds the discovery document all the same
}

// TestIssuerHangs: until the client gives up.
func TestIssuerHangs(t *testing.T) {
	Isolate(t)
	m := NewMetadata(t, "token-1")
	m.Fail(&IssuerFailure{Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := http.DefaultClient.Do(request); err == nil {
		_ = response.Body.Close()
		t.Errorf("got %d", response.StatusCode)
	}
}
