package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// callTimeout bounds a call to the API, on top of the time it asks to wait.
	callTimeout = 20 * time.Second
	// maxWait is how long one call waits for a proxy; a longer wait is made of several. It bounds how long a connection that
	// is dead goes unnoticed.
	maxWait = 2 * time.Minute
	// answerMargin is what is left of a context when a call that waits is answered.
	answerMargin = time.Second
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 1 << 20
)

// httpBackend leases by the HTTP API.
type httpBackend struct {
	base  *url.URL
	http  *http.Client
	token TokenSource
}

func newHTTPBackend(baseURL string, o Options) (*httpBackend, error) {
	base, err := url.Parse(baseURL)
	switch {
	case err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "":
		return nil, errors.New("the URL of the API must look like http://host:port")
	case base.User != nil || base.RawQuery != "" || base.Fragment != "":
		return nil, errors.New("the URL of the API must have no user, query or fragment; the token is an option")
	}
	own := &http.Client{}
	if o.HTTPClient != nil {
		*own = *o.HTTPClient
	} else if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		own.Transport = standard.Clone()
	}
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &httpBackend{base: base, http: own, token: o.Token}, nil
}

// call is one call to the API.
type call struct {
	what, method string
	path         *url.URL
	header       http.Header
	body         any // nil: none
	wait         time.Duration
	into         any // nil: no answer but the status is expected
}

func (b *httpBackend) leases(id, action string) *url.URL {
	elements := []string{strings.TrimPrefix(wire.PathLeases, "/")}
	for _, e := range []string{id, action} {
		if e != "" {
			elements = append(elements, url.PathEscape(e))
		}
	}
	return b.base.JoinPath(elements...)
}

// do makes a call. sent is a moment at which it was not sent yet; status is 0 when there was no answer.
func (b *httpBackend) do(ctx context.Context, c call) (sent time.Time, status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout+c.wait)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", c.what, err)
		}
	}()
	request, err := b.request(ctx, c)
	if err != nil {
		return sent, 0, permanentError{err}
	}
	sent = time.Now()
	answer, err := b.http.Do(request)
	if err != nil {
		return sent, 0, unanswered(err)
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return sent, 0, fmt.Errorf("read the answer: %w", err)
	}
	media, _, _ := mime.ParseMediaType(answer.Header.Get("Content-Type"))
	switch {
	case answer.StatusCode >= http.StatusMultipleChoices:
		return sent, answer.StatusCode, refusal(answer, media, data)
	case c.into == nil:
		return sent, answer.StatusCode, nil
	case media != "application/json" || json.Unmarshal(data, c.into) != nil:
		// What the decoder says is left out: it could repeat a part of the answer.
		return sent, 0, permanentError{errors.New("something else than the API answered: check the URL")}
	}
	return sent, answer.StatusCode, nil
}

func (b *httpBackend) request(ctx context.Context, c call) (*http.Request, error) {
	var body io.Reader
	if c.body != nil {
		data, err := json.Marshal(c.body)
		if err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, c.method, c.path.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	authorization, err := b.token.authorization(ctx)
	if err != nil {
		return nil, err
	}
	if authorization != "" {
		request.Header.Set("Authorization", authorization)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	maps.Copy(request.Header, c.header)
	return request, nil
}

// unanswered is the error of a call without an answer. The URL is left out: it has the id of the lease.
func unanswered(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	_, untrusted := errors.AsType[*tls.CertificateVerificationError](err)
	if untrusted || errors.Is(err, http.ErrSchemeMismatch) {
		return permanentError{err}
	}
	return err
}

// refusal is the error of an answer that is none of success.
func refusal(answer *http.Response, media string, data []byte) error {
	e := &Error{Status: answer.StatusCode, RetryAfter: RetryAfter(answer.Header)}
	var p wire.Problem
	if media == wire.ProblemType && json.Unmarshal(data, &p) == nil && p.Code != "" {
		e.Code, e.Field, e.Reason, e.Detail = p.Code, p.Field, p.Reason, p.Detail
		if e.RetryAfter == 0 {
			e.RetryAfter = time.Duration(min(max(p.RetryAfterSeconds, 0), wire.MaxRetryAfterSeconds)) * time.Second
		}
		return e
	}
	e.Detail = fmt.Sprintf("answered %d %s, and not by the API itself", e.Status, http.StatusText(e.Status))
	if e.Status < http.StatusBadRequest {
		e.Detail += ": check the URL"
	}
	return e
}

// Acquire implements Backend.
func (b *httpBackend) Acquire(ctx context.Context, r Request, key string) (Handle, Terms, error) {
	wait := b.wait(ctx, r.Wait)
	body := wire.LeaseRequest{
		Namespace: r.Namespace, Pool: r.Pool, Proxy: r.Proxy, Targets: r.Targets, Mode: string(r.Mode), Holder: r.Holder,
		WaitSeconds: new(int32(wait / time.Second)), Exclude: r.Exclude,
	}
	if r.TTL != 0 {
		body.TTLSeconds = new(seconds(r.TTL))
	}
	for label, value := range r.Selector {
		if body.Selector == nil {
			body.Selector = map[string]*string{}
		}
		body.Selector[label] = &value
	}
	var answer wire.Lease
	sent, status, err := b.do(ctx, call{
		what: "lease a proxy", method: http.MethodPost, path: b.leases("", ""), header: http.Header{wire.HeaderKey: {key}},
		body: body, wait: wait, into: &answer,
	})
	if err != nil {
		return nil, Terms{}, err
	}
	if answer.LeaseID == "" || answer.TTLSeconds <= 0 {
		return nil, Terms{}, permanentError{errors.New("lease a proxy: the answer is not a lease: check the URL")}
	}
	if answer.Proxy.URL == "" {
		return nil, Terms{}, errors.New("lease a proxy: the proxy has no address at the moment")
	}
	handle := &httpHandle{backend: b, id: answer.LeaseID, expires: answer.ExpiresAt}
	terms := termsOf(answer)
	// 201 is a lease that this very call was given; of one that existed already nobody knows how much of it is left.
	if status == http.StatusCreated {
		terms.Until = sent.Add(terms.TTL)
	}
	return handle, terms, nil
}

// wait is how long one call shall wait: not longer than it may, and so that its answer arrives before the context ends.
func (b *httpBackend) wait(ctx context.Context, wish time.Duration) time.Duration {
	if wish < 0 {
		return 0
	}
	wait := min(maxWait, wire.MaxWaitSeconds*time.Second)
	if wish > 0 {
		wait = min(wait, time.Duration(seconds(wish))*time.Second)
	}
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, max(time.Until(deadline)-answerMargin, 0).Truncate(time.Second))
	}
	return wait
}

// Forget implements Backend: whoever asks for the lease once more learns its id.
func (b *httpBackend) Forget(ctx context.Context, r Request, key string) error {
	r.Wait = NoWait
	handle, _, err := b.Acquire(ctx, r, key)
	if e, ok := errors.AsType[*Error](err); ok && (e.Code == wire.CodeNoProxy || !retryable(err)) {
		return nil
	}
	if err != nil {
		return err
	}
	return handle.Release(ctx)
}

// httpHandle is a lease of the HTTP API.
type httpHandle struct {
	backend *httpBackend
	id      string
	// expires is the end that the API last told, by a clock that is not ours: it is only ever compared with what the API
	// tells next.
	expires time.Time
	// round is when the first of the renewals was sent that have not been answered.
	round time.Time
}

// ID implements Handle.
func (h *httpHandle) ID() string { return h.id }

// Name implements Handle: the id without the part that proves it.
func (h *httpHandle) Name() string {
	if end := strings.LastIndexByte(h.id, '.'); end > 0 {
		return strings.Replace(h.id[:end], ".", "/", 1)
	}
	return "lease"
}

// Renew implements Handle. An end that has moved was moved by this renewal or by an earlier one whose answer got lost; one
// that has not moved means that more than half of the TTL is left.
func (h *httpHandle) Renew(ctx context.Context) (Terms, error) {
	if h.round.IsZero() {
		h.round = time.Now()
	}
	var answer wire.Lease
	sent, _, err := h.backend.do(ctx, call{what: "renew the lease", method: http.MethodPost, path: h.backend.leases(h.id, wire.ActionRenew), into: &answer})
	if err != nil {
		return Terms{}, lostBy(err)
	}
	terms := termsOf(answer)
	terms.Until = sent.Add(terms.TTL / 2)
	if full := h.round.Add(terms.TTL); !answer.ExpiresAt.Equal(h.expires) && full.After(terms.Until) {
		terms.Until = full
	}
	h.expires, h.round = answer.ExpiresAt, time.Time{}
	return terms, nil
}

// Check implements Handle.
func (h *httpHandle) Check(ctx context.Context) (Terms, error) {
	var answer wire.Lease
	_, _, err := h.backend.do(ctx, call{what: "look at the lease", method: http.MethodGet, path: h.backend.leases(h.id, ""), into: &answer})
	return termsOf(answer), lostBy(err)
}

// Report implements Handle.
func (h *httpHandle) Report(ctx context.Context, r Report) error {
	body := wire.ReportRequest{Result: string(r.Result), Target: r.Target}
	if r.RetryAfter > 0 {
		body.RetryAfterSeconds = new(seconds(min(r.RetryAfter, maxRetryAfter)))
	}
	_, _, err := h.backend.do(ctx, call{what: "report", method: http.MethodPost, path: h.backend.leases(h.id, wire.ActionReport), body: body})
	return err
}

// Release implements Handle.
func (h *httpHandle) Release(ctx context.Context) error {
	_, _, err := h.backend.do(ctx, call{what: "release the lease", method: http.MethodDelete, path: h.backend.leases(h.id, "")})
	return err
}

// lostBy makes the API's word that a lease has ended a LostError.
func lostBy(err error) error {
	if e, ok := errors.AsType[*Error](err); ok && e.Code == wire.CodeLeaseEnded {
		return &LostError{Reason: e.Reason, Detail: e.Detail}
	}
	return err
}

func termsOf(l wire.Lease) Terms {
	return Terms{
		Proxy: Proxy{
			Namespace: l.Proxy.Namespace, Name: l.Proxy.Name, URL: l.Proxy.URL, EgressIP: l.Proxy.EgressIP,
			Provider: l.Proxy.Provider, Pool: l.Proxy.Pool, Zone: l.Proxy.Zone, Labels: l.Proxy.Labels,
		},
		Credentials: NewCredentials(l.Proxy.Username, l.Proxy.Password),
		TTL:         time.Duration(l.TTLSeconds) * time.Second,
		Draining:    l.Draining,
	}
}
