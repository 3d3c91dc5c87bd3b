package httpapi

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clocktesting "k8s.io/utils/clock/testing"
)

// everyCall is a call of each route that asks for authentication.
func everyCall(id string) map[Route]string {
	return map[Route]string{
		{http.MethodGet, "/v1/proxies"}:                       "",
		{http.MethodPost, "/v1/leases"}:                       `{}`,
		{http.MethodGet, "/v1/leases/" + id}:                  "",
		{http.MethodDelete, "/v1/leases/" + id}:               "",
		{http.MethodPost, "/v1/leases/" + id + "/renew"}:      "",
		{http.MethodPost, "/v1/leases/" + id + "/report"}:     `{"result":"ok","target":"a.example"}`,
		{http.MethodGet, "/v1/proxies?labelSelector=%3D&x=y"}: "", // refused before it is read
	}
}

// Whichever ways are tried, in whichever order, with Kubernetes answering or not, before the signing key is there and after:
// a wrong token reaches nothing.
func TestT27_WrongTokenIsRefusedWhateverElseIsConfigured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(testToken), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, modes := range map[string][]string{
		"token": {AuthToken}, "kubernetes": {AuthKubernetes}, "token first": {AuthToken, AuthKubernetes}, "kubernetes first": {AuthKubernetes, AuthToken},
	} {
		for _, down := range []bool{false, true} {
			for _, starting := range []bool{false, true} {
				_, b, s := newServer(t)
				id, err := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
				if err != nil {
					t.Fatal(err)
				}
				s.Namespaces = []string{"default"}
				if starting {
					s.Signer = &Signer{}
				}
				reviews := &reviewer{down: down}
				s.Auth, err = NewAuth(AuthConfig{
					Modes: modes, TokenFile: file, Clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0)), Log: logr.Discard(),
					Kubernetes: reviews.kubernetes(t),
				})
				if err != nil {
					t.Fatal(err)
				}
				h := s.Handler()
				for _, header := range []string{
					"", "Bearer", "Bearer ", "Bearer unknown", "Basic dG9rZW46" + testToken, "Bearer " + testToken[1:], "Bearer " + testToken + "x", "Bearer " + strings.ToUpper(testToken),
					testToken, "Bearer " + testToken + ", Bearer x", "Bearer " + testToken + " x",
				} {
					for route, body := range everyCall(id) {
						// Everything that a token might be smuggled in by.
						r := httptest.NewRequest(route.Method, route.Path, strings.NewReader(body))
						r.Header.Set("Authorization", header)
						r.Header.Set("X-Forwarded-Authorization", "Bearer "+testToken)
						r.AddCookie(&http.Cookie{Name: "Authorization", Value: testToken})
						if header == "" {
							r.Header.Del("Authorization")
						}
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						// Of a token that nobody could look at it cannot be said that it is wrong.
						unknown := down && modes[0] == AuthKubernetes || down && len(modes) > 1
						refused := w.Code == http.StatusUnauthorized || unknown && w.Code == http.StatusServiceUnavailable
						if !refused {
							t.Errorf("%s, down %v, starting %v: %s %s with %q: %d %s", name, down, starting, route.Method, route.Path, header, w.Code, w.Body)
						}
						if w.Code == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "" {
							t.Errorf("%s: 401 without WWW-Authenticate", name)
						}
					}
				}
				if asked := b.take(); len(asked) != 0 {
					t.Errorf("%s: the backend was asked %v", name, asked)
				}
			}
		}
	}
}

// The right token of the file works while Kubernetes does not answer, in either order.
func TestTokenFileNeedsNoKubernetes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(testToken), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, modes := range [][]string{{AuthToken, AuthKubernetes}, {AuthKubernetes, AuthToken}} {
		_, _, s := newServer(t)
		var err error
		if s.Auth, err = NewAuth(AuthConfig{
			Modes: modes, TokenFile: file, Clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0)), Log: logr.Discard(),
			Kubernetes: (&reviewer{down: true}).kubernetes(t),
		}); err != nil {
			t.Fatal(err)
		}
		for route, body := range everyCall("x.y.z") {
			if strings.Contains(route.Path, "%3D") {
				continue
			}
			if w := send(s.Handler(), route.Method, route.Path, body); w.Code == http.StatusUnauthorized || w.Code == http.StatusServiceUnavailable {
				t.Errorf("%v: %s %s: %d %s", modes, route.Method, route.Path, w.Code, w.Body)
			}
		}
	}
}

// Two Authorization headers are none: proxies on the way may look at another one of them.
func TestRepeatedAuthorizationIsRefused(t *testing.T) {
	h, b, _ := newServer(t)
	r := httptest.NewRequest(http.MethodGet, "/v1/proxies", nil)
	r.Header.Add("Authorization", "Bearer "+testToken)
	r.Header.Add("Authorization", "Bearer "+testToken)
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusUnauthorized || len(b.take()) != 0 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}
