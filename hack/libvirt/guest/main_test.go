package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestGuest(t *testing.T) {
	origin := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "page "+r.URL.Path) })
	plain, secure := httptest.NewServer(origin), httptest.NewTLSServer(origin)
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	seed := t.TempDir()
	if err := os.WriteFile(filepath.Join(seed, "meta-data"), []byte("instance-id: a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	guest := httptest.NewServer(handler(seed))
	t.Cleanup(guest.Close)
	proxy, err := url.Parse(guest.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := secure.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(proxy)
	t.Cleanup(transport.CloseIdleConnections)
	proxied := &http.Client{Transport: transport}
	for _, test := range []struct {
		name, url, want string
		client          *http.Client
		status          int
	}{
		{"forwards a GET", plain.URL + "/a", "page /a", proxied, http.StatusOK},
		{"connects", secure.URL + "/b", "page /b", proxied, http.StatusOK},
		{"shows the seed", guest.URL + "/seed/meta-data", "instance-id: a\n", guest.Client(), http.StatusOK},
		{"knows no other file", guest.URL + "/seed/..%2fpasswd", "", guest.Client(), http.StatusNotFound},
		{"is switched off by POST only", guest.URL + "/poweroff", "", guest.Client(), http.StatusMethodNotAllowed},
	} {
		t.Run(test.name, func(t *testing.T) {
			response, err := test.client.Get(test.url)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = response.Body.Close() }()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != test.status || !strings.HasPrefix(string(body), test.want) {
				t.Errorf("%s %q, want %d %q", response.Status, body, test.status, test.want)
			}
		})
	}
}

func TestFillEndsWithTheDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("needs /dev/full")
	}
	if err := fill("/dev/full", 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want %v", err, syscall.ENOSPC)
	}
}
