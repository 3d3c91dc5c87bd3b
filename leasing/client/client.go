package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Options of New. The zero value works where the API asks for no token.
type Options struct {
	// Token gives the bearer token; see Token and TokenFile.
	Token TokenSource
	// HTTPClient sends the calls to the API. Its redirects are not followed. nil: one of its own, that does as
	// http.DefaultTransport does, the proxy of the environment included.
	HTTPClient *http.Client
	// Transport is what Lease.Transport starts from: timeouts, TLS, limits. Its proxy and its dialling of TLS are not used.
	// nil: http.DefaultTransport.
	Transport *http.Transport
}

// Client acquires leases. It is safe for concurrent use.
type Client struct {
	backend   Backend
	transport *http.Transport
	// idle closes what the backend keeps open; may be nil.
	idle func()
	// background is what calls left to be cleaned up.
	background sync.WaitGroup
}

// New makes a client of the HTTP API at a URL such as http://host:8090. It makes no call.
func New(baseURL string, o Options) (*Client, error) {
	backend, err := newHTTPBackend(baseURL, o)
	if err != nil {
		return nil, err
	}
	c := NewFor(backend, o.Transport)
	if o.HTTPClient == nil {
		c.idle = backend.http.CloseIdleConnections
	}
	return c, nil
}

// NewFor makes a client of any backend. transport is what Lease.Transport starts from; nil: http.DefaultTransport.
func NewFor(b Backend, transport *http.Transport) *Client {
	return &Client{backend: b, transport: transport}
}

// Close waits until the leases that broken-off calls of Acquire may have left behind are given back, for a few seconds at
// most, and closes idle connections. Leases that were acquired are not touched: each has a Close of its own. It is for the end,
// when no Acquire is under way.
func (c *Client) Close() {
	c.background.Wait()
	if c.idle != nil {
		c.idle()
	}
}

// Acquire leases a proxy. It repeats the request, always for one and the same lease, until the outcome is certain or ctx
// ends: when there was no answer, when the operator is not ready or overloaded, and when no proxy is free, as Request.Wait
// says. A refusal that would be the same again is returned at once.
//
// The lease lives on when ctx ends; it has to be closed. When Acquire fails nothing is left behind.
//
// Errors are *Error, to be told apart with errors.Is (ErrNoProxy, ErrForbidden, …). When ctx ends the error is that of ctx,
// and that of the last attempt too.
func (c *Client) Acquire(ctx context.Context, r Request) (*Lease, error) {
	a := &acquisition{Client: c, request: r, key: r.Key}
	if r.Wait > 0 {
		a.patience = time.Now().Add(r.Wait)
	}
	lease, err := a.run(ctx)
	if err != nil {
		return nil, fmt.Errorf("acquire a lease: %w", err)
	}
	return lease, nil
}

// acquisition is one call of Acquire.
type acquisition struct {
	*Client
	request Request
	// key is that of the attempts; a random one is replaced when its lease has ended.
	key string
	// patience is when to stop waiting for a free proxy; zero: when the context ends.
	patience time.Time
	// doubt says that a lease may exist under the key.
	doubt bool
}

func (a *acquisition) run(ctx context.Context) (*Lease, error) {
	var last error
	for attempt := 0; ; attempt++ {
		if a.key == "" {
			a.key, a.doubt = rand.Text(), false
		}
		lease, err := a.try(ctx)
		if err == nil {
			return lease, nil
		}
		last = telling(ctx, err, last)
		pause := pauseAfter(err, attempt)
		switch {
		case ctx.Err() != nil:
		case a.request.Key == "" && (errors.Is(err, ErrLost) || errors.Is(err, ErrKeyUsed)):
			a.key = "" // an earlier attempt got a lease that has ended before anybody learned of it
		case !retryable(err):
			a.forget(ctx)
			return nil, err
		case !a.mayWait(err):
			a.forget(ctx)
			return nil, err
		case !a.patience.IsZero():
			pause = min(pause, max(time.Until(a.patience), minPause))
		}
		if ctx.Err() != nil || !sleep(ctx, pause) {
			a.forget(ctx)
			return nil, ended(ctx, last)
		}
	}
}

// try makes one attempt.
func (a *acquisition) try(ctx context.Context) (*Lease, error) {
	r := a.request
	if !a.patience.IsZero() {
		if r.Wait = time.Until(a.patience); r.Wait <= 0 {
			r.Wait = NoWait
		}
	}
	handle, terms, err := a.backend.Acquire(ctx, r, a.key)
	if err != nil {
		a.doubt = a.doubt || doubtful(err)
		return nil, err
	}
	a.doubt = false
	// A lease that was granted long after it was asked for, or by an earlier attempt, may have to be renewed by now.
	if time.Until(terms.Until) < terms.TTL/2 {
		err := retry(ctx, func(ctx context.Context) error {
			renewed, err := handle.Renew(ctx)
			if err == nil {
				terms = terms.merge(renewed)
			}
			return err
		})
		if err != nil {
			a.leave(ctx, handle.Release)
			return nil, err
		}
	}
	lease, err := newLease(ctx, handle, terms, a.transport)
	if err != nil {
		a.leave(ctx, handle.Release)
	}
	return lease, err
}

// mayWait tells whether to go on after a refusal that is about how much is free or waits.
func (a *acquisition) mayWait(err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Code != wire.CodeNoProxy && e.Status != http.StatusTooManyRequests {
		return true
	}
	return a.request.Wait == 0 || a.request.Wait > 0 && time.Now().Before(a.patience)
}

// forget gives back what the attempts may have left under their key.
func (a *acquisition) forget(ctx context.Context) {
	if a.doubt {
		a.leave(ctx, func(ctx context.Context) error { return a.backend.Forget(ctx, a.request, a.key) })
	}
}

// leave does something in the background, whether or not ctx has ended, for as long as a release may take.
func (c *Client) leave(ctx context.Context, call func(context.Context) error) {
	c.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
		defer cancel()
		// Nobody is there to be told. What could not be given back ends with its TTL.
		_ = retry(ctx, call)
	})
}

// merge takes later terms in. A promise is never taken back by another one.
func (t Terms) merge(later Terms) Terms {
	t.Credentials, t.Draining = later.Credentials, later.Draining
	if later.TTL > 0 {
		t.TTL = later.TTL
	}
	if later.Until.After(t.Until) {
		t.Until = later.Until
	}
	return t
}
