package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/internal/version"
)

// Client asks the leader.
type Client struct {
	// Leader is the address of the replica that leads, as far as is known; empty: unknown, or one that cannot be asked.
	Leader func() string
	// Seed is the secret of the installation; false: it is not known yet.
	Seed  func() ([]byte, bool)
	Clock clock.PassiveClock

	mu        sync.Mutex
	transport http.RoundTripper
	// avoided is not asked before a certain time.
	avoided string
	until   time.Time
}

// Lease asks the leader for a lease. The error is ErrNotAsked when it does not act, and ErrUnknown when it may.
func (c *Client) Lease(ctx context.Context, call Call) (Answer, error) {
	address := c.Leader()
	if address == "" || c.avoids(address) {
		return Answer{}, ErrNotAsked
	}
	transport, err := c.connections()
	if err != nil {
		return Answer{}, errors.Join(ErrNotAsked, err)
	}
	data, err := json.Marshal(call)
	if err != nil {
		return Answer{}, errors.Join(ErrNotAsked, err)
	}
	var sent atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+address+path, bytes.NewReader(data))
	if err != nil {
		return Answer{}, errors.Join(ErrNotAsked, err)
	}
	request.Header.Set(headerVersion, version.String())
	response, err := transport.RoundTrip(request)
	if err != nil && !sent.Load() {
		if ctx.Err() == nil {
			c.avoid(address)
		}
		return Answer{}, errors.Join(ErrNotAsked, err)
	}
	if err != nil {
		return Answer{}, errors.Join(ErrUnknown, err)
	}
	return read(response)
}

func read(response *http.Response) (Answer, error) {
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxBody))
	switch {
	case response.StatusCode == http.StatusMisdirectedRequest:
		return Answer{}, ErrNotAsked
	case err != nil:
		return Answer{}, errors.Join(ErrUnknown, err)
	case response.StatusCode != http.StatusOK:
		return Answer{}, fmt.Errorf("%w: %s", ErrUnknown, response.Status)
	}
	var answer Answer
	if err := json.Unmarshal(body, &answer); err != nil {
		return Answer{}, errors.Join(ErrUnknown, err)
	}
	return answer, nil
}

// avoid does not ask an address for a while.
func (c *Client) avoid(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.avoided, c.until = address, c.Clock.Now().Add(avoidance)
}

func (c *Client) avoids(address string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.avoided == address && c.Clock.Now().Before(c.until)
}

// connections are made once the secret is known.
func (c *Client) connections() (http.RoundTripper, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.transport != nil {
		return c.transport, nil
	}
	seed, ok := c.Seed()
	if !ok {
		return nil, errors.New("the secret of the replicas is not known yet")
	}
	config, err := clientTLS(seed)
	if err != nil {
		return nil, err
	}
	c.transport = tracing.Transport(&http.Transport{
		DialContext: (&net.Dialer{Timeout: connectTimeout}).DialContext, TLSClientConfig: config, TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2: true, IdleConnTimeout: idleTimeout,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout, StrictMaxConcurrentRequests: true},
	})
	return c.transport, nil
}
