package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Lease is the right to use a proxy for a while. It is renewed in the background until Close. It is safe for concurrent use,
// and prints without credentials.
type Lease struct {
	handle    Handle
	proxy     Proxy
	url       *url.URL
	transport *transport

	// ctx ends with the lease; running is what goes on in the background.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	// suspect asks for a look whether the lease lives.
	suspect chan struct{}

	done chan struct{}
	end  sync.Once
	// err and told are set before done is closed: why the lease ended, and whether it was the operator who said so.
	err  error
	told bool

	mu    sync.Mutex
	terms Terms
	// trouble is why the last renewal failed.
	trouble error

	// closing is held by the call of Close that gives the lease back.
	closing  chan struct{}
	released atomic.Bool
}

// newLease starts to look after a lease.
func newLease(ctx context.Context, h Handle, terms Terms, base *http.Transport) (*Lease, error) {
	address, err := url.Parse(terms.Proxy.URL)
	if err != nil || address.Host == "" {
		return nil, permanentError{fmt.Errorf("proxy %s has no usable URL", terms.Proxy.ID())}
	}
	l := &Lease{
		handle: h, proxy: terms.Proxy, url: address, terms: terms,
		done: make(chan struct{}), suspect: make(chan struct{}, 1), closing: make(chan struct{}, 1),
	}
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	l.transport = newTransport(l, base)
	l.running.Go(l.keep)
	if w, ok := h.(Watcher); ok {
		l.running.Go(func() { l.follow(w) })
	}
	return l, nil
}

// ID is the lease's id. Whoever has it and may call the API can use and release the lease, so keep it out of logs; String is
// for them.
func (l *Lease) ID() string { return l.handle.ID() }

// Proxy is what was leased.
func (l *Lease) Proxy() Proxy { return l.proxy }

// Credentials of the proxy; nil when it has none. They may be changed during the lease.
func (l *Lease) Credentials() *Credentials {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terms.Credentials
}

// ProxyURL is the proxy's URL with its credentials, for programs and libraries that want one. Log its Redacted form only.
// Whoever uses it must stop when Done is closed.
func (l *Lease) ProxyURL() *url.URL {
	u := *l.url
	if c := l.Credentials(); c != nil {
		u.User = url.UserPassword(c.Reveal())
	}
	return &u
}

// Transport sends HTTP requests and, for https, CONNECT through the proxy, with its credentials, and never in another way.
// When the lease ends it breaks off what is under way and refuses what is new with the error of Err. It is the same at every
// call, and keeps connections alive between requests.
func (l *Lease) Transport() http.RoundTripper { return l.transport }

// ExpiresAt is until when the lease lives for certain unless it is revoked. Renewals move it.
func (l *Lease) ExpiresAt() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terms.Until
}

// TTL is how long the lease lives without being renewed.
func (l *Lease) TTL() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terms.TTL
}

// Draining asks to lease another proxy soon: this one is to become empty. Over the HTTP API it is known since the last renewal.
func (l *Lease) Draining() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terms.Draining
}

// Done is closed when the lease has ended, because it was lost or closed.
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err is nil while the lease lives, then a *LostError, or ErrClosed when it was closed.
func (l *Lease) Err() error {
	select {
	case <-l.done:
		return l.err
	default:
	}
	// A process that did not run for a while must not go on before its timers have caught up.
	if !time.Now().Before(l.ExpiresAt()) {
		l.expire()
		return l.err
	}
	return nil
}

// Report tells what was seen at a target, so that the proxy cools for it or is looked at; nil means that this is stored.
// retryAfter is what the target asked for, 0 for nothing (RetryAfter reads it from an answer); package kube cannot pass it
// on. It may be told for two minutes after the lease was lost, and not after Close. It is repeated until ctx ends.
func (l *Lease) Report(ctx context.Context, target string, result Result, retryAfter time.Duration) error {
	if l.released.Load() {
		return fmt.Errorf("report: %w", ErrClosed)
	}
	report := Report{Target: target, Result: result, RetryAfter: retryAfter}
	return retry(ctx, func(ctx context.Context) error { return l.handle.Report(ctx, report) })
}

// Close ends the lease and gives the proxy back. Requests under way through Transport are broken off. It may be called again,
// and tries again when it failed; a lease that was not given back ends with its TTL.
//
// It takes five seconds at most, or less if ctx's deadline says so. A ctx that was cancelled, or is over or nearly so, does not
// keep it from giving the proxy back.
func (l *Lease) Close(ctx context.Context) error {
	l.finish(ErrClosed, false)
	l.running.Wait()
	l.closing <- struct{}{}
	defer func() { <-l.closing }()
	if l.released.Load() || l.told {
		l.released.Store(true)
		return nil
	}
	timeout := releaseTimeout
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) > minAttempt {
		timeout = min(timeout, time.Until(deadline))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if err := retry(ctx, l.handle.Release); err != nil {
		return fmt.Errorf("close a lease: %w", err)
	}
	l.released.Store(true)
	return nil
}

// String names the lease and its proxy.
func (l *Lease) String() string { return l.handle.Name() + " of proxy " + l.proxy.ID() }

// Format implements fmt.Formatter for every verb and flag.
func (l *Lease) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, l.String()) }

// finish ends the lease, once.
func (l *Lease) finish(err error, told bool) {
	l.end.Do(func() {
		l.err, l.told = err, told
		close(l.done)
		l.cancel()
		l.transport.shut()
	})
}

// expire ends a lease that nobody has confirmed in time.
func (l *Lease) expire() {
	l.mu.Lock()
	trouble := l.trouble
	l.mu.Unlock()
	l.finish(&LostError{Reason: ReasonExpired, Detail: "its renewal was not confirmed in time", Cause: trouble}, false)
}
