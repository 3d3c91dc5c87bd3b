package client

import (
	"fmt"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/crypto/bcrypt"

	"crawl.example.com/egress-proxies-operator/internal/squidtest"
)

// bcryptBytes is how much of a password the scheme looks at.
const bcryptBytes = 72

// startSquid runs Squid with a password file until the test ends, and gives its address.
func startSquid(t *testing.T, username, password string) string {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password)[:min(len(password), bcryptBytes)], bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return squidtest.Start(t, func(dir string, address netip.AddrPort) string {
		return fmt.Sprintf("http_port %s\npid_filename none\naccess_log none\ncache_log /dev/stderr\ncache deny all\ncoredump_dir none\n"+
			"auth_param basic program %s %s/passwords\nauth_param basic children 1\nauth_param basic casesensitive on\nacl authenticated proxy_auth REQUIRED\n"+
			"http_access allow authenticated\nhttp_access deny all\n", address, squidtest.PasswordHelper, dir)
	}, squidtest.File{Name: "passwords", Content: fmt.Appendf(nil, "%s:$2b%s\n", username, hash[len("$2b"):])}).Address
}

// A real Squid takes the credentials, for plain requests and for tunnels, and refuses others.
func TestT28_TransportThroughSquid(t *testing.T) {
	address := startSquid(t, printableName, printable)
	plain, secure := startSite(t, false), startSite(t, true)
	for _, right := range []bool{true, false} {
		s := &stub{terms: Terms{
			Proxy:       Proxy{Namespace: "default", Name: "p", URL: "http://" + address},
			Credentials: NewCredentials(printableName, printable), TTL: time.Hour,
		}}
		if !right {
			s.terms.Credentials = NewCredentials(printableName, "x"+printable)
		}
		lease := s.lease(t, trusting(secure))
		web := &http.Client{Transport: lease.Transport()}
		if right {
			fetch(t, web, plain.URL)
			fetch(t, web, secure.URL)
		} else {
			if answer, err := web.Do(get(t, plain.URL)); err != nil || answer.StatusCode != http.StatusProxyAuthRequired {
				t.Errorf("plain request: %v %v", answer, err)
			} else {
				_ = answer.Body.Close()
			}
			if answer, err := web.Do(get(t, secure.URL)); err == nil {
				_ = answer.Body.Close()
				t.Error("a tunnel for the wrong password")
			}
		}
		closeLease(t, lease)
	}
	if plain.leaks.Load()+secure.leaks.Load() != 0 || plain.hits.Load() != 1 || secure.hits.Load() != 1 {
		t.Errorf("%d leaks, %d and %d hits", plain.leaks.Load()+secure.leaks.Load(), plain.hits.Load(), secure.hits.Load())
	}
}
