package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	apiURL   = "http://api.example:8090"
	password = `p:a@s/s"w%o r'd\`
)

// model is the HTTP API in memory, with a clock that is wrong and an API server behind it that forgets nothing. It is a
// http.RoundTripper, so that it works within a synctest bubble.
type model struct {
	mu     sync.Mutex
	leases map[string]*modelLease // by key
	calls  []modelCall
	// seen counts the calls.
	seen int
	// fault meets a call; may be nil.
	fault func(n int, c modelCall) fault
	// offset is how wrong the clock is.
	offset time.Duration
	// ttl is granted when none is asked for.
	ttl time.Duration
	// free says whether there is a proxy; nil: always.
	free     func() bool
	draining bool
	username string
	password string
	unasked  string // a token that is not this one is refused, if it is set
}

type modelLease struct {
	id      string
	ttl     time.Duration
	expires time.Time // by the true clock
	reason  string    // why it has ended
	body    string
}

func (l *modelLease) alive(now time.Time) bool { return l.reason == "" && now.Before(l.expires) }

type modelCall struct {
	method, path, key, token string
	body                     wire.LeaseRequest
	report                   wire.ReportRequest
	at                       time.Time
}

func (c modelCall) String() string { return c.method + " " + c.path }

// fault is what goes wrong with a call. The zero value is nothing.
type fault struct {
	before, after time.Duration // how long the request and the answer take
	requestLost   bool
	replyLost     bool
	status        int // answered instead, before anything happens
	code          string
	retryAfter    int
	text          string // answered instead, as HTML
}

var errReset = errors.New("connection reset by peer")

func newModel() *model {
	return &model{leases: map[string]*modelLease{}, ttl: 300 * time.Second, offset: time.Hour, username: "crawler", password: password}
}

func (m *model) client(t testing.TB) *Client {
	t.Helper()
	c, err := New(apiURL, Options{HTTPClient: &http.Client{Transport: m}, Token: Token("secret-token")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// RoundTrip implements http.RoundTripper.
func (m *model) RoundTrip(r *http.Request) (*http.Response, error) {
	c := modelCall{
		method: r.Method, path: strings.TrimPrefix(r.URL.Path, "/v1/leases"), key: r.Header.Get("Idempotency-Key"),
		token: strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), at: time.Now(),
	}
	if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(c.path, "/report") {
			err = json.Unmarshal(data, &c.report)
		} else if len(data) > 0 {
			err = json.Unmarshal(data, &c.body)
		}
		if err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	var f fault
	if m.fault != nil {
		f = m.fault(m.seen, c)
	}
	m.seen++
	m.calls = append(m.calls, c)
	m.mu.Unlock()
	if err := pass(r, f.before); err != nil {
		return nil, err
	}
	if f.requestLost {
		return nil, errReset
	}
	if f.text != "" {
		return answer(r, max(f.status, 200), "text/html", f.text), nil
	}
	if f.status != 0 {
		return problem(r, f.status, f.code, "", "as the test wants it", f.retryAfter), nil
	}
	deadline := time.Now()
	if c.body.WaitSeconds != nil {
		deadline = deadline.Add(time.Duration(*c.body.WaitSeconds) * time.Second)
	}
	for m.free != nil && c.method == http.MethodPost && c.path == "" && !m.free() {
		if !time.Now().Before(deadline) {
			return problem(r, 503, wire.CodeNoProxy, "NoProxyAvailable", "none", 5), nil
		}
		if err := pass(r, 100*time.Millisecond); err != nil {
			return nil, err
		}
	}
	reply := m.serve(r, c)
	if err := pass(r, f.after); err != nil {
		return nil, err
	}
	if f.replyLost {
		return nil, errReset
	}
	return reply, nil
}

// pass lets time pass.
func pass(r *http.Request, d time.Duration) error {
	if d > 0 && !sleep(r.Context(), d) {
		return r.Context().Err()
	}
	return nil
}

func (m *model) serve(r *http.Request, c modelCall) *http.Response {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.unasked != "" && c.token != m.unasked {
		return problem(r, 401, wire.CodeUnauthorized, "", "no", 0)
	}
	if c.method == http.MethodPost && c.path == "" {
		hash := fmt.Sprint(c.body.Holder, c.body.Targets)
		l := m.leases[c.key]
		status := 200
		switch {
		case l == nil:
			status = 201
			l = &modelLease{id: fmt.Sprintf("default.http-%d.proof", len(m.leases)), ttl: m.ttl, body: hash}
			if s := c.body.TTLSeconds; s != nil {
				l.ttl = time.Duration(*s) * time.Second
			}
			l.expires = now.Add(l.ttl)
			m.leases[c.key] = l
		case l.body != hash:
			return problem(r, 422, wire.CodeKeyReused, "", "another request", 0)
		case !l.alive(now):
			return problem(r, 409, wire.CodeKeyConsumed, "", "it has ended", 0)
		}
		return m.answer(r, status, l)
	}
	id, action, _ := strings.Cut(strings.TrimPrefix(c.path, "/"), "/")
	var l *modelLease
	for _, known := range m.leases {
		if known.id == id {
			l = known
		}
	}
	switch {
	case l == nil:
		return problem(r, 404, wire.CodeLeaseNotFound, "", "not one of ours", 0)
	case c.method == http.MethodDelete:
		if l.reason == "" {
			l.reason = "Gone"
		}
		return answer(r, 204, "", "")
	case action == "report" && l.reason != "Gone":
		return answer(r, 204, "", "")
	case !l.alive(now):
		reason := l.reason
		if reason == "" {
			reason = "Expired"
		}
		return problem(r, 410, wire.CodeLeaseEnded, reason, "it has ended", 0)
	case action == "renew" && l.expires.Sub(now) <= l.ttl/2:
		l.expires = now.Add(l.ttl)
	}
	return m.answer(r, 200, l)
}

func (m *model) answer(r *http.Request, status int, l *modelLease) *http.Response {
	data, err := json.Marshal(wire.Lease{
		LeaseID: l.id, ExpiresAt: l.expires.Add(m.offset).UTC(), TTLSeconds: int32(l.ttl / time.Second), Mode: "Shared", Draining: m.draining,
		Proxy: wire.LeasedProxy{
			Proxy:    wire.Proxy{ID: "default/p", Namespace: "default", Name: "p", URL: "http://192.0.2.1:3128", Labels: map[string]string{"geo": "eu"}, EgressIP: "203.0.113.7"},
			Username: m.username, Password: m.password,
		},
	})
	if err != nil {
		panic(err)
	}
	return answer(r, status, "application/json", string(data))
}

func problem(r *http.Request, status int, code, reason, detail string, retryAfter int) *http.Response {
	data, err := json.Marshal(wire.Problem{Status: status, Code: code, Reason: reason, Detail: detail})
	if err != nil {
		panic(err)
	}
	a := answer(r, status, wire.ProblemType, string(data))
	if retryAfter > 0 {
		a.Header.Set("Retry-After", strconv.Itoa(retryAfter))
	}
	return a
}

func answer(r *http.Request, status int, media, body string) *http.Response {
	a := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(bytes.NewBufferString(body)), Request: r}
	if media != "" {
		a.Header.Set("Content-Type", media)
	}
	return a
}

// breaks changes what goes wrong from now on; nil: nothing.
func (m *model) breaks(f func(n int, c modelCall) fault) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// of is the API's side of a lease.
func (m *model) of(l *Lease) *modelLease {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, known := range m.leases {
		if known.id == l.ID() {
			return known
		}
	}
	return nil
}

// only is the one lease there is.
func (m *model) only(t testing.TB) *modelLease {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.leases) != 1 {
		t.Fatalf("%d leases", len(m.leases))
	}
	for _, l := range m.leases {
		return l
	}
	return nil
}

// end ends the one lease there is.
func (m *model) end(t testing.TB, reason string) {
	t.Helper()
	l := m.only(t)
	m.mu.Lock()
	defer m.mu.Unlock()
	l.reason = reason
}

// living counts the leases that live now.
func (m *model) living() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.leases {
		if l.alive(time.Now()) {
			n++
		}
	}
	return n
}

// said lists the calls, and forgets them.
func (m *model) said() []modelCall {
	m.mu.Lock()
	defer m.mu.Unlock()
	said := m.calls
	m.calls = nil
	return said
}

// acquire leases or fails the test.
func acquire(t testing.TB, c *Client, r Request) *Lease {
	t.Helper()
	lease, err := c.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func closeLease(t testing.TB, l *Lease) {
	t.Helper()
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
