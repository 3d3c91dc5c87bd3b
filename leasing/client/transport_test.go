package client

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// fetch gets a page and fails the test unless it is whole.
func fetch(t testing.TB, web *http.Client, page string) *http.Response {
	t.Helper()
	answer, err := web.Do(get(t, page))
	if err != nil {
		t.Fatalf("%s: %v", page, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != 200 || string(body) != "page" {
		t.Fatalf("%s: %d %q %v", page, answer.StatusCode, body, err)
	}
	return answer
}

// Plain requests and tunnels carry credentials of every printable character to the proxy, and to nobody else.
func TestTransportCarriesCredentials(t *testing.T) {
	p := startProxy(t, printableName, printable)
	plain, secure := startSite(t, false), startSite(t, true)
	s := stubOf(p)
	lease := s.lease(t, trusting(secure))
	defer closeLease(t, lease)
	web := &http.Client{Transport: lease.Transport()}
	for _, page := range []string{plain.URL, secure.URL, plain.URL + "/to?url=" + secure.URL + "/", secure.URL + "/to?url=" + plain.URL + "/"} {
		answer := fetch(t, web, page)
		for r := answer; r != nil; r = r.Request.Response {
			if r.Request.Header.Get("Proxy-Authorization") != "" {
				t.Errorf("%s: the answer's request has the credentials", page)
			}
		}
	}
	// What the caller sets by mistake goes nowhere either.
	for _, page := range []string{plain.URL, secure.URL} {
		r := get(t, page)
		r.Header.Set("Proxy-Authorization", "Basic bWluZQ==")
		answer, err := web.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if r.Header.Get("Proxy-Authorization") != "Basic bWluZQ==" {
			t.Error("the caller's request was changed")
		}
	}
	if plain.leaks.Load()+secure.leaks.Load() != 0 || p.refused.Load() != 0 {
		t.Errorf("leaks: %d %d, refused: %d", plain.leaks.Load(), secure.leaks.Load(), p.refused.Load())
	}
	if p.plain.Load() != 4 || p.connects.Load() != 1 || plain.hits.Load() != 4 || secure.hits.Load() != 4 {
		t.Errorf("%d plain requests, %d tunnels, %d and %d hits", p.plain.Load(), p.connects.Load(), plain.hits.Load(), secure.hits.Load())
	}
	if *secure.protocol.Load() != "HTTP/2.0" {
		t.Errorf("the tunnel speaks %s", *secure.protocol.Load())
	}
	// The URL for other libraries means the same.
	other := trusting(secure)
	other.Proxy = http.ProxyURL(lease.ProxyURL())
	defer other.CloseIdleConnections()
	fetch(t, &http.Client{Transport: other}, secure.URL)
	fetch(t, &http.Client{Transport: other}, plain.URL)
}

// A proxy without credentials is sent none.
func TestTransportWithoutCredentials(t *testing.T) {
	p := startProxy(t, "", "")
	plain, secure := startSite(t, false), startSite(t, true)
	lease := stubOf(p).lease(t, trusting(secure))
	defer closeLease(t, lease)
	web := &http.Client{Transport: lease.Transport()}
	fetch(t, web, plain.URL)
	fetch(t, web, secure.URL)
	if lease.Credentials() != nil || lease.ProxyURL().String() != p.url {
		t.Errorf("%v", lease.ProxyURL())
	}
}

// HTTP/2 goes through the tunnel whenever the caller's transport would speak it, whether or not that was used before.
func TestTransportSpeaksHTTP2(t *testing.T) {
	p := startProxy(t, "u", "p")
	secure := startSite(t, true)
	roots := trusting(secure).TLSClientConfig.RootCAs
	for name, c := range map[string]struct {
		base *http.Transport
		want string
	}{
		"forced":            {&http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}}, "HTTP/2.0"},
		"with own settings": {&http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}, "HTTP/1.1"},
		"switched off":      {&http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots}, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}, "HTTP/1.1"},
	} {
		for _, used := range []bool{false, true} {
			if used {
				fetch(t, &http.Client{Transport: c.base}, secure.URL)
			}
			lease := stubOf(p).lease(t, c.base)
			fetch(t, &http.Client{Transport: lease.Transport()}, secure.URL)
			if got := *secure.protocol.Load(); got != c.want {
				t.Errorf("%s, used %v: %s", name, used, got)
			}
			closeLease(t, lease)
		}
		c.base.CloseIdleConnections()
	}
	for _, base := range []*http.Transport{{}, nil} {
		for range 2 { // the first lease is a use
			lease := stubOf(p).lease(t, base)
			inner := lease.transport.inner
			if inner.TLSClientConfig == nil {
				inner.TLSClientConfig = &tls.Config{}
			}
			inner.TLSClientConfig.RootCAs = roots
			fetch(t, &http.Client{Transport: lease.Transport()}, secure.URL)
			if got := *secure.protocol.Load(); got != "HTTP/2.0" {
				t.Errorf("%v: %s", base, got)
			}
			closeLease(t, lease)
		}
	}
}

// What the caller's transport is set to is kept, its hooks included.
func TestTransportKeepsWhatItStartsFrom(t *testing.T) {
	p := startProxy(t, "u", "p")
	secure := startSite(t, true)
	base := trusting(secure)
	base.ProxyConnectHeader = http.Header{"X-Fixed": {"1"}, "Proxy-Authorization": {"Basic bWluZQ=="}}
	base.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("must not be asked") }
	base.DisableKeepAlives = true
	lease := stubOf(p).lease(t, base)
	defer closeLease(t, lease)
	fetch(t, &http.Client{Transport: lease.Transport()}, secure.URL)
	fetch(t, &http.Client{Transport: lease.Transport()}, secure.URL)
	if p.connects.Load() != 2 || base.ProxyConnectHeader.Get("Proxy-Authorization") != "Basic bWluZQ==" {
		t.Errorf("%d tunnels, %v", p.connects.Load(), base.ProxyConnectHeader)
	}
}

// When the lease is lost, what is under way ends, and nothing new is sent, on old connections neither.
func TestTransportEndsWithTheLease(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, s *stub, l *Lease){
		"lost": func(t *testing.T, s *stub, l *Lease) {
			s.set(func(s *stub) { s.lost = &LostError{Reason: ReasonProxyReplaced} })
			l.doubt()
			<-l.Done()
		},
		"closed": func(t *testing.T, _ *stub, l *Lease) { closeLease(t, l) },
	} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, "u", password)
			plain, secure := startSite(t, false), startSite(t, true)
			s := stubOf(p)
			lease := s.lease(t, trusting(secure))
			web := &http.Client{Transport: lease.Transport()}
			for _, page := range []string{plain.URL, secure.URL} {
				fetch(t, web, page) // leaves an idle connection
			}
			var underWay []*http.Response
			for _, page := range []string{plain.URL, secure.URL} {
				answer, err := web.Do(get(t, page+"/hang"))
				if err != nil {
					t.Fatal(err)
				}
				underWay = append(underWay, answer)
			}
			end(t, s, lease)
			for _, answer := range underWay {
				if body, err := io.ReadAll(answer.Body); err == nil || strings.Contains(string(body), "page") {
					t.Errorf("the page went on: %q %v", body, err)
				}
				_ = answer.Body.Close()
			}
			hits := plain.hits.Load() + secure.hits.Load()
			for _, page := range []string{plain.URL, secure.URL} {
				body := &closing{Reader: strings.NewReader("x")}
				r := get(t, page)
				r.Body = body
				_, err := web.Do(r)
				if !errors.Is(err, lease.Err()) || !body.closed {
					t.Errorf("%s: %v, body closed %v", page, err, body.closed)
				}
				if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, password) || strings.Contains(text, "proof") {
					t.Errorf("%s", text)
				}
			}
			if plain.hits.Load()+secure.hits.Load() != hits {
				t.Error("a request was sent after the end")
			}
			closeLease(t, lease)
		})
	}
}

type closing struct {
	io.Reader
	closed bool
}

func (c *closing) Close() error {
	c.closed = true
	return nil
}

// A proxy that cannot be reached is a reason to look at the lease, and so is one that refuses.
func TestTransportFindsOutThatTheProxyIsAnotherOne(t *testing.T) {
	for name, spoil := range map[string]func(p *forwardProxy){
		"gone":          (*forwardProxy).stop,
		"refusing":      func(p *forwardProxy) { p.status.Store(http.StatusForbidden) },
		"of other folk": func(p *forwardProxy) { p.password.Store(new("other")) },
	} {
		for _, secure := range []bool{false, true} {
			if name == "refusing" && !secure {
				continue // that would be the target's answer
			}
			t.Run(fmt.Sprint(name, " tls=", secure), func(t *testing.T) {
				p := startProxy(t, "u", password)
				origin := startSite(t, secure)
				s := stubOf(p)
				base := trusting(origin)
				base.DisableKeepAlives = true
				lease := s.lease(t, base)
				web := &http.Client{Transport: lease.Transport()}
				fetch(t, web, origin.URL)
				spoil(p)
				s.set(func(s *stub) { s.lost = &LostError{Reason: ReasonProxyReplaced} })
				answer, err := web.Do(get(t, origin.URL))
				if err == nil {
					_ = answer.Body.Close()
				}
				if refused, ok := errors.AsType[*ConnectError](err); name != "gone" && secure && (!ok || refused.StatusCode/100 != 4) {
					t.Errorf("%v", err)
				}
				select {
				case <-lease.Done():
				case <-time.After(20 * time.Second):
					t.Fatal("nobody looked")
				}
				if err := lease.Err(); !errors.Is(err, ErrLost) {
					t.Error(err)
				}
				closeLease(t, lease)
			})
		}
	}
}

// A password that was changed is used as soon as the old one has been refused.
func TestTransportTakesChangedCredentials(t *testing.T) {
	p := startProxy(t, "u", "old")
	origin := startSite(t, true)
	s := stubOf(p)
	base := trusting(origin)
	base.DisableKeepAlives = true
	lease := s.lease(t, base)
	defer closeLease(t, lease)
	web := &http.Client{Transport: lease.Transport()}
	fetch(t, web, origin.URL)
	p.password.Store(new("new"))
	s.set(func(s *stub) { s.terms.Credentials = NewCredentials("u", "new") })
	deadline := time.After(20 * time.Second)
	for {
		answer, err := web.Do(get(t, origin.URL))
		if err == nil {
			_ = answer.Body.Close()
			return
		}
		select {
		case <-deadline:
			t.Fatal(err)
		default:
		}
	}
}

func TestCloseLeavesNothingRunning(t *testing.T) {
	p := startProxy(t, "u", "p")
	plain, secure := startSite(t, false), startSite(t, true)
	before := goleak.IgnoreCurrent()
	lease := stubOf(p).lease(t, trusting(secure))
	web := &http.Client{Transport: lease.Transport()}
	var underWay []*http.Response
	for _, page := range []string{plain.URL, secure.URL} {
		fetch(t, web, page)
		answer, err := web.Do(get(t, page+"/hang"))
		if err != nil {
			t.Fatal(err)
		}
		underWay = append(underWay, answer)
	}
	closeLease(t, lease)
	for _, answer := range underWay {
		_ = answer.Body.Close()
	}
	// What is left is the test's own.
	p.stop()
	plain.CloseClientConnections()
	secure.CloseClientConnections()
	http.DefaultClient.CloseIdleConnections()
	goleak.VerifyNone(t, before)
}

func TestNothingPrintsCredentials(t *testing.T) {
	p := startProxy(t, "visible-name", "topsecret")
	origin := startSite(t, true)
	lease := stubOf(p).lease(t, trusting(origin))
	defer closeLease(t, lease)
	fetch(t, &http.Client{Transport: lease.Transport()}, origin.URL)
	terms := lease.terms
	holder := struct {
		lease     *Lease
		transport http.RoundTripper
		c         *Credentials
		terms     Terms
	}{lease, lease.Transport(), lease.Credentials(), terms}
	for _, v := range []any{lease, lease.Credentials(), *lease.Credentials(), lease.Transport(), terms, &terms, holder, &holder, lease.Proxy()} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			if text := fmt.Sprintf(verb, v); strings.Contains(text, "topsecret") || strings.Contains(text, "746f70736563726574") || strings.Contains(text, "proof") {
				t.Errorf("%s of %T: %s", verb, v, text)
			}
		}
		data, err := json.Marshal(v)
		if err == nil && strings.Contains(string(data), "topsecret") {
			t.Errorf("JSON of %T: %s", v, data)
		}
		var log strings.Builder
		slog.New(slog.NewTextHandler(&log, nil)).Info("x", "v", v)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v)
		if strings.Contains(log.String(), "topsecret") {
			t.Errorf("log of %T: %s", v, log.String())
		}
	}
	if got := fmt.Sprint(lease); got != "default/l of proxy default/p" {
		t.Error(got)
	}
	if got := lease.ProxyURL().Redacted(); strings.Contains(got, "topsecret") {
		t.Error(got)
	}
}
