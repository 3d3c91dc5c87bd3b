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

func TestNoUsableAuthIsOneClearLine(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	for name, c := range map[string]struct {
		modes []string
		file  string
		says  string
	}{
		"nothing configured": {nil, "", "--api-auth"},
		"no file named":      {[]string{AuthToken}, "", "--api-token-file"},
		"file missing":       {[]string{AuthToken}, filepath.Join(dir, "missing"), "--api-token-file"},
		"file empty":         {[]string{AuthToken}, write("empty", "\n"), "has no token"},
		"two tokens":         {[]string{AuthToken}, write("two", "a b"), "printable ASCII"},
		"binary":             {[]string{AuthToken}, write("binary", "a\x00b"), "printable ASCII"},
		"huge":               {[]string{AuthToken}, write("huge", strings.Repeat("a", maxTokenFile+1)), "longer than"},
		"a directory":        {[]string{AuthToken}, dir, "--api-token-file"},
		"unknown":            {[]string{"basic"}, "", `"basic"`},
		"none and token":     {[]string{AuthNone, AuthToken}, write("ok", "a"), "none"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewAuth(AuthConfig{Modes: c.modes, TokenFile: c.file, Clock: clock, Log: logr.Discard()})
			if err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("error %v, want one that says %q", err, c.says)
			}
		})
	}
}

func TestNoneLetsEverybodyIn(t *testing.T) {
	_, b, s := newServer(t)
	var err error
	if s.Auth, err = NewAuth(AuthConfig{Modes: []string{AuthNone}}); err != nil || !s.Auth.Open() {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/leases", strings.NewReader("{}")))
	if w.Code != 201 || b.take()[0].(LeaseRequest).Holder != "anonymous" {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

func TestTokenFileIsReadAgainWhenItChanges(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(content string) {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	clock := clocktesting.NewFakePassiveClock(time.Unix(0, 0))
	_, _, s := newServer(t)
	var err error
	if s.Auth, err = NewAuth(AuthConfig{Modes: []string{AuthToken}, TokenFile: file, Clock: clock, Log: logr.Discard()}); err != nil {
		t.Fatal(err)
	}
	h := s.Handler()
	status := func(header string) int {
		r := httptest.NewRequest(http.MethodGet, "/v1/proxies", nil)
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == 401 && w.Header().Get("WWW-Authenticate") == "" {
			t.Error("401 without WWW-Authenticate")
		}
		return w.Code
	}
	for header, want := range map[string]int{
		"Bearer first": 200, "bearer first": 200, "Bearer  first": 200, "": 401, "Bearer": 401, "Bearer ": 401, "Basic first": 401,
		"Bearer firs": 401, "Bearer first2": 401, "first": 401, "Bearer FIRST": 401, "Bearer \x00": 401,
	} {
		if got := status(header); got != want {
			t.Errorf("%q: %d, want %d", header, got, want)
		}
	}
	step := func() { clock.SetTime(clock.Now().Add(tokenCheckPeriod)) }
	write("second")
	step()
	if status("Bearer first") != 401 || status("Bearer second") != 200 {
		t.Fatal("the new token is not taken in")
	}
	write("")
	step()
	if status("Bearer second") != 401 || status("Bearer ") != 401 {
		t.Fatal("an empty file lets somebody in")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	step()
	if status("Bearer second") != 401 {
		t.Fatal("a file that is gone lets somebody in")
	}
	write("third")
	step()
	if status("Bearer third") != 200 {
		t.Fatal("a file that is back is not taken in")
	}
}

func TestSignerBindsNamespaceNameAndUID(t *testing.T) {
	s := signer()
	ref := Ref{Namespace: "team", Name: "http-1.x", UID: testUID}
	id, err := s.ID(ref)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Parse(id); err != nil || got != ref {
		t.Fatalf("%v %v", got, err)
	}
	for i := range id {
		for _, c := range []byte{'A', 'b', '.', '-'} {
			forged := []byte(id)
			if forged[i] == c {
				continue
			}
			forged[i] = c
			if got, err := s.Parse(string(forged)); err == nil {
				t.Fatalf("%s is taken for %v", forged, got)
			}
		}
	}
	other := &Signer{}
	key := make([]byte, keySize)
	other.key.Store(&key)
	if _, err := other.Parse(id); err == nil {
		t.Fatal("an id of another operator is taken")
	}
	if _, err := s.ID(Ref{Namespace: "team", Name: "x", UID: "no-uuid"}); err == nil {
		t.Fatal("an id of what the API server never makes")
	}
}

func FuzzParseID(f *testing.F) {
	s := signer()
	id, _ := s.ID(Ref{Namespace: "a", Name: "b", UID: testUID})
	f.Add(id)
	f.Add("..")
	f.Fuzz(func(t *testing.T, id string) {
		ref, err := s.Parse(id)
		if err != nil {
			return
		}
		if again, err := s.ID(ref); err != nil || again != id {
			t.Fatalf("%q is read as %v, whose id is %q", id, ref, again)
		}
	})
}
