package proxylease

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
)

// fault is what happens to one request on its way to the API server.
type fault func(send func() (*http.Response, error)) (*http.Response, error)

var errLost = errors.New("the connection was lost")

// replyLost carries the request out and loses the answer.
func replyLost(send func() (*http.Response, error)) (*http.Response, error) {
	if answer, err := send(); err == nil {
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
	}
	return nil, errLost
}

// requestRefused is the API server's refusal under load.
func requestRefused(func() (*http.Response, error)) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusTooManyRequests, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"TooManyRequests","code":429,"details":{"retryAfterSeconds":7}}`)),
	}, nil
}

// requestLost never carries the request out.
func requestLost(func() (*http.Response, error)) (*http.Response, error) { return nil, errLost }

// faults meets requests whose method and path fit with the planned faults, in turn.
type faults struct {
	next http.RoundTripper

	mu    sync.Mutex
	plans []*plan
}

type plan struct {
	method, path string
	faults       []fault
	met          int
}

func (f *faults) wrap(next http.RoundTripper) http.RoundTripper {
	f.next = next
	return f
}

// plan meets the next requests of a method, with a path that ends like that, with these faults.
func (f *faults) plan(method, path string, what ...fault) *plan {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &plan{method: method, path: path, faults: what}
	f.plans = append(f.plans, p)
	return p
}

func (f *faults) take(r *http.Request) fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.plans {
		// What informers ask is left alone: they ask with a resourceVersion, or to watch.
		informer := r.URL.Query().Has("watch") || r.URL.Query().Has("resourceVersion")
		if p.met < len(p.faults) && r.Method == p.method && strings.HasSuffix(r.URL.Path, p.path) && !informer {
			p.met++
			return p.faults[p.met-1]
		}
	}
	return nil
}

// met is how many requests a plan has met.
func (f *faults) met(p *plan) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return p.met
}

func (f *faults) RoundTrip(r *http.Request) (*http.Response, error) {
	what := f.take(r)
	if what == nil {
		return f.next.RoundTrip(r)
	}
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
		_ = r.Body.Close()
	}
	return what(func() (*http.Response, error) {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(bytes.NewReader(body))
		return f.next.RoundTrip(again)
	})
}
