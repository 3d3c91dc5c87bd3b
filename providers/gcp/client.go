package gcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/auth/credentials"
	compute "cloud.google.com/go/compute/apiv1"
	"google.golang.org/api/option"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// CallTimeout bounds every request to Compute Engine, whatever its context says: the client library's AggregatedList
	// ignores contexts.
	CallTimeout = 30 * time.Second
	// tokenTimeout bounds every request for a token.
	tokenTimeout = 10 * time.Second
	// maxConnections to the endpoint that are kept for the next calls.
	maxConnections = 16
	// pingAfter so much silence a connection is asked whether it is alive, and given up after pingTimeout. HTTP/2 has one for all
	// calls: one that is dead without a word would fail them until the kernel gives it up, a quarter of an hour later.
	pingAfter   = 30 * time.Second
	pingTimeout = 15 * time.Second
	// scopeCompute is the scope of the operator's own tokens.
	scopeCompute = "https://www.googleapis.com/auth/compute"
	userAgent    = "egress-proxies-operator"
)

var errClosed = errors.New("the provider is closed")

func newTransport(pingAfter, pingTimeout time.Duration) *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = maxConnections
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	return t
}

// session is what calls are made with, for one set of credentials.
type session struct {
	transport  http.RoundTripper
	instances  *compute.InstancesClient
	operations *compute.ZoneOperationsClient
	lister     func(context.Context) (*compute.InstancesClient, error)
}

// opening is a look for credentials that is under way.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// session gives the clients, looking for credentials when there are none. That may take seconds and knows no context, so it
// goes on in the background while the caller's context counts for the caller.
func (p *Provider) session(ctx context.Context) (*session, error) {
	p.mu.Lock()
	switch {
	case p.closed:
		p.mu.Unlock()
		return nil, providers.NewError(providers.Unavailable, "", "", errClosed)
	case p.current != nil:
		defer p.mu.Unlock()
		return p.current, nil
	}
	o := p.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		p.opening = o
		go p.open(o)
	}
	p.mu.Unlock()
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, providers.NewError(providers.Unavailable, "", "the credentials were not found in time", ctx.Err())
	}
}

func (p *Provider) open(o *opening) {
	o.session, o.err = p.newSession()
	p.mu.Lock()
	p.opening = nil
	if !p.closed {
		p.current = o.session
	}
	p.mu.Unlock()
	close(o.done)
}

// renew forgets credentials that were refused, so that the next call looks for them again.
func (p *Provider) renew(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == s {
		p.current = nil
	}
}

// newSession looks for Application Default Credentials and makes clients that use them.
func (p *Provider) newSession() (*session, error) {
	found, err := credentials.DetectDefault(&credentials.DetectOptions{
		Scopes: []string{scopeCompute},
		Client: &http.Client{Transport: p.base, Timeout: tokenTimeout},
	})
	if err != nil {
		return nil, providers.NewError(providers.Auth, "find credentials", "there are no usable Application Default Credentials; the log of the manager has the details", err)
	}
	s := &session{transport: &bearer{credentials: found, base: p.base}}
	hc := &http.Client{Transport: s.transport, Timeout: CallTimeout, CheckRedirect: noRedirect}
	options := []option.ClientOption{option.WithHTTPClient(hc), option.WithEndpoint(p.endpoint)}
	if s.instances, err = compute.NewInstancesRESTClient(context.Background(), options...); err == nil {
		s.operations, err = compute.NewZoneOperationsRESTClient(context.Background(), options...)
	}
	if err != nil {
		return nil, providers.NewError(providers.Unavailable, "make client", "", err)
	}
	// The operator retries, and a retry in here would hide why a call failed.
	s.instances.CallOptions.Get, s.operations.CallOptions.Get = nil, nil
	s.lister = func(ctx context.Context) (*compute.InstancesClient, error) {
		hc := &http.Client{Transport: &bound{ctx, s.transport}, Timeout: CallTimeout, CheckRedirect: noRedirect}
		return compute.NewInstancesRESTClient(context.Background(), option.WithHTTPClient(hc), option.WithEndpoint(p.endpoint))
	}
	return s, nil
}

// noRedirect: a token goes to no other address than the endpoint.
func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// bearer puts a token on every request.
type bearer struct {
	credentials *auth.Credentials
	base        http.RoundTripper
}

// tokenError is why there was no token.
type tokenError struct{ err error }

func (e *tokenError) Error() string { return fmt.Sprintf("get a token: %v", e.err) }
func (e *tokenError) Unwrap() error { return e.err }

// RoundTrip implements http.RoundTripper.
func (b *bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := b.credentials.Token(req.Context())
	if err != nil {
		closeBody(req)
		return nil, &tokenError{err}
	}
	// Only credentials of people have a project that pays for their calls.
	quotaProject, err := b.credentials.QuotaProjectID(req.Context())
	if err != nil {
		closeBody(req)
		return nil, &tokenError{err}
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token.Value)
	req.Header.Set("User-Agent", userAgent)
	if quotaProject != "" {
		req.Header.Set("X-Goog-User-Project", quotaProject)
	}
	return b.base.RoundTrip(req)
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close() // the request is given up
	}
}

// bound ends requests with a context that the client library leaves out.
type bound struct {
	ctx  context.Context
	base http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (b *bound) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	stop := context.AfterFunc(b.ctx, func() { cancel(b.ctx.Err()) })
	end := func() { stop(); cancel(nil) }
	resp, err := b.base.RoundTrip(req.WithContext(ctx))
	if err != nil {
		end()
		return nil, err
	}
	resp.Body = &boundBody{resp.Body, end}
	return resp, nil
}

type boundBody struct {
	io.ReadCloser
	end func()
}

// Close implements io.Closer.
func (b *boundBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
