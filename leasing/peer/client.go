package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/internal/version"
)

var errAvoided = errors.New("it could not be reached a moment ago")

// Client asks the leader, over one connection.
type Client struct {
	// Leader is the address of the replica that leads, as far as is known; empty: unknown, or one that cannot be asked.
	Leader func() string
	// Seed is the secret of the installation; false: it is not known yet.
	Seed  func() ([]byte, bool)
	Clock clock.PassiveClock

	mu        sync.Mutex
	transport *http.Transport
	// conn is to address. dialing is closed when a connection under way has succeeded or failed; nil: there is none.
	conn    *http.ClientConn
	address string
	dialing chan struct{}
	// avoided is not asked before a certain time.
	avoided string
	until   time.Time
}

// Lease asks the leader for a lease. The error is ErrNotAsked when it does not act, and ErrUnknown when it may.
func (c *Client) Lease(ctx context.Context, call Call) (Answer, error) {
	ctx, span := tracing.Start(ctx, "Ask the leader")
	defer span.End()
	var answer Answer
	err := c.post(ctx, pathLease, call, &answer)
	return answer, err
}

// Tell tells the leader of what was written. The error says that it may not have heard of it.
func (c *Client) Tell(ctx context.Context, n Notice) error {
	ctx, span := tracing.Start(ctx, "Tell the leader")
	defer span.End()
	return c.post(ctx, pathNotice, n, &struct{}{})
}

// post sends what the leader shall know, and reads what it answers.
func (c *Client) post(ctx context.Context, path string, what, answer any) error {
	address := c.Leader()
	if address == "" {
		return ErrNotAsked
	}
	data, err := json.Marshal(what)
	if err != nil {
		return errors.Join(ErrNotAsked, err)
	}
	var sent atomic.Bool
	tracked := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteHeaders: func() { sent.Store(true) }})
	request, err := http.NewRequestWithContext(tracked, http.MethodPost, "https://"+address+path, bytes.NewReader(data))
	if err != nil {
		return errors.Join(ErrNotAsked, err)
	}
	request.Header.Set(headerVersion, version.String())
	otel.GetTextMapPropagator().Inject(ctx, propagation.HeaderCarrier(request.Header))
	conn, err := c.connection(ctx, address)
	if err != nil {
		return errors.Join(ErrNotAsked, err)
	}
	response, err := conn.RoundTrip(request)
	switch {
	case err != nil && !sent.Load():
		return errors.Join(ErrNotAsked, err)
	case err != nil:
		return errors.Join(ErrUnknown, err)
	}
	return read(response, answer)
}

func read(response *http.Response, answer any) error {
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	switch {
	case response.StatusCode == http.StatusMisdirectedRequest:
		return ErrNotAsked
	case err != nil:
		return errors.Join(ErrUnknown, err)
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("%w: %s", ErrUnknown, response.Status)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return errors.Join(ErrUnknown, err)
	}
	return nil
}

// connection is the one to an address. Who finds none makes it, and the others wait for that.
func (c *Client) connection(ctx context.Context, address string) (*http.ClientConn, error) {
	for {
		c.mu.Lock()
		switch {
		case c.address == address && c.conn != nil && c.conn.Err() == nil:
			defer c.mu.Unlock()
			return c.conn, nil
		case c.avoided == address && c.Clock.Now().Before(c.until):
			c.mu.Unlock()
			return nil, errAvoided
		case c.dialing == nil:
			done := make(chan struct{})
			c.dialing = done
			c.mu.Unlock()
			conn, err := c.connect(address)
			c.mu.Lock()
			c.dialing = nil
			close(done)
			if err != nil {
				c.avoided, c.until = address, c.Clock.Now().Add(avoidance)
				c.mu.Unlock()
				return nil, err
			}
			retire(c.conn)
			c.conn, c.address = conn, address
			c.mu.Unlock()
			return conn, nil
		}
		done := c.dialing
		c.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// retire closes a connection once nobody waits for an answer by it.
func retire(conn *http.ClientConn) {
	if conn == nil || conn.Err() != nil {
		return
	}
	conn.SetStateHook(func(c *http.ClientConn) {
		if c.InFlight() == 0 {
			_ = c.Close()
		}
	})
	if conn.InFlight() == 0 {
		_ = conn.Close()
	}
}

// connect is called by one at a time. It does not end with the call that happens to need it.
func (c *Client) connect(address string) (*http.ClientConn, error) {
	if c.transport == nil {
		seed, ok := c.Seed()
		if !ok {
			return nil, errors.New("the secret of the replicas is not known yet")
		}
		config, err := clientTLS(seed)
		if err != nil {
			return nil, err
		}
		c.transport = &http.Transport{TLSClientConfig: config, Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}}
		c.transport.Protocols.SetHTTP2(true)
	}
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	return c.transport.NewClientConn(ctx, "https", address)
}
