package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

const (
	// DefaultCallTimeout is the limit of a call. The slowest are the start of a domain on a busy host, and its end.
	DefaultCallTimeout = 30 * time.Second
	// DefaultUploadIdle is how long an upload may make no progress, its end included, which waits for the host's disk.
	DefaultUploadIdle = time.Minute
	// farewell is the limit of the polite end of a connection, without which the daemon logs an error.
	farewell = time.Second
	// answerGrace is how long a call waits for its answer after the connection has ended.
	answerGrace = time.Second
)

// scope is the instrumentation scope of the spans.
const scope = "crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"

// Options of a connection. Zero fields mean the default.
type Options struct {
	// Host is the name of the host, for spans.
	Host string
	// CallTimeout is the limit of a call, UploadIdle that of an upload without progress.
	CallTimeout, UploadIdle time.Duration
	// Spans makes a span of every call that is made within a span.
	Spans bool
	// Observe is told of every call: its procedure, libvirt's number of the error, 0 for none, CodeLost when the outcome is
	// not known, and how long it took. It may be nil, and is called from many goroutines.
	Observe func(procedure string, code int, took time.Duration)
}

// Conn is one connection. Its calls may be made at the same time; libvirtd works on five of one connection at once and lets
// the rest wait, unless it is configured otherwise.
//
// A call ends with its context or with the limit, whichever comes first. When its context ends, the connection stays, and
// the call may still be carried out. When the limit ends it, the connection is closed.
type Conn struct {
	options Options
	stream  *stream
	client  *libvirt.Libvirt
}

// Open speaks with the daemon behind raw and opens the driver of uri. raw belongs to the Conn, also when Open fails.
func Open(ctx context.Context, raw net.Conn, uri string, o Options) (*Conn, error) {
	o.CallTimeout = cmp.Or(o.CallTimeout, DefaultCallTimeout)
	o.UploadIdle = cmp.Or(o.UploadIdle, DefaultUploadIdle)
	c := &Conn{options: o, stream: newStream(raw)}
	c.client = libvirt.NewWithDialer(dialers.NewAlreadyConnected(c.stream))
	_, err := call(ctx, c, "ConnectOpen", func(l *libvirt.Libvirt) (none, error) {
		return none{}, l.ConnectToURI(libvirt.ConnectURI(uri))
	})
	if err != nil {
		c.stream.end(errClosed)
		return nil, err
	}
	return c, nil
}

// Close ends the connection. It tells the daemon if that takes no time, and gives no error; calls under way are lost.
func (c *Conn) Close() error {
	if !c.Lost() {
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = c.client.ConnectClose()
		}()
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	c.stream.end(errClosed)
	return nil
}

// Abort ends the connection at once. Calls under way fail, and so do later ones, with cause as the reason.
func (c *Conn) Abort(cause error) { c.stream.end(cause) }

// Lost tells whether the connection is gone: closed, or broken by the far side.
func (c *Conn) Lost() bool { return c.stream.why() != nil }

// Done is closed when the connection is gone.
func (c *Conn) Done() <-chan struct{} { return c.stream.gone }

// Cause is why the connection is gone; nil as long as it is not.
func (c *Conn) Cause() error { return c.stream.why() }

// none is the result of calls that have none.
type none = struct{}

// result of a call.
type result[T any] struct {
	value T
	err   error
}

// call makes one call within its limits, with its span.
func call[T any](ctx context.Context, c *Conn, procedure string, do func(*libvirt.Libvirt) (T, error)) (T, error) {
	end := c.begin(ctx, procedure)
	value, err := bounded(ctx, c, procedure, do)
	end(err)
	return value, err
}

// bounded makes one call within its limits. The goroutine it starts ends at the latest with the connection.
func bounded[T any](ctx context.Context, c *Conn, procedure string, do func(*libvirt.Libvirt) (T, error)) (zero T, err error) {
	if err := ctx.Err(); err != nil {
		return zero, &Error{Procedure: procedure, Err: err}
	}
	if cause := c.stream.why(); cause != nil {
		return zero, &Error{Procedure: procedure, Lost: true, Err: cause}
	}
	answer := make(chan result[T], 1)
	go func() {
		// Also when the caller is gone: it is the stuck call that has to be ended, for those behind it.
		limit := time.AfterFunc(c.options.CallTimeout, func() { c.stream.end(errTimeout) })
		defer limit.Stop()
		value, err := guarded(c, do)
		answer <- result[T]{value, err}
	}()
	select {
	case r := <-answer:
		if r.err != nil {
			return zero, c.failure(procedure, r.err)
		}
		return r.value, nil
	case <-ctx.Done():
		return zero, &Error{Procedure: procedure, Err: ctx.Err()}
	case <-c.stream.gone:
		// The answer may have come just before: the library closes a connection that the daemon refuses, and then says why.
		grace := time.NewTimer(answerGrace)
		defer grace.Stop()
		select {
		case r := <-answer:
			if r.err == nil {
				return r.value, nil
			}
			return zero, c.failure(procedure, r.err)
		case <-ctx.Done():
		case <-grace.C:
		}
		return zero, &Error{Procedure: procedure, Lost: true, Err: c.stream.why()}
	}
}

// guarded makes an error of a panic of the client library, which decodes what the far side has sent.
func guarded[T any](c *Conn, do func(*libvirt.Libvirt) (T, error)) (value T, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("decode the answer: panic: %v", cause)
		}
	}()
	return do(c.client)
}

// failure sorts an error of the client library. What is no answer of the daemon has put the connection out of step or was
// its end.
func (c *Conn) failure(procedure string, err error) error {
	if code := codeOf(err); code != 0 {
		return &Error{Procedure: procedure, Code: code, Err: err}
	}
	c.stream.end(err)
	// The first cause says more than what the end looked like from here.
	if cause := c.stream.why(); !errors.Is(err, cause) {
		err = cause
	}
	return &Error{Procedure: procedure, Lost: true, Err: err}
}

// begin starts the span of a call and gives what ends it. Neither arguments nor texts of errors, which may quote them, are
// recorded.
func (c *Conn) begin(ctx context.Context, procedure string) (end func(error)) {
	start := time.Now()
	var span trace.Span
	if c.options.Spans && trace.SpanContextFromContext(ctx).IsValid() {
		_, span = otel.Tracer(scope).Start(ctx, "libvirt/"+procedure, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
			attribute.String("libvirt.host", c.options.Host), attribute.String("libvirt.procedure", procedure)))
	}
	return func(err error) {
		code := CodeOf(err)
		if err != nil && code == 0 {
			code = CodeLost
		}
		if c.options.Observe != nil {
			c.options.Observe(procedure, code, time.Since(start))
		}
		if span == nil {
			return
		}
		span.SetAttributes(attribute.Int("libvirt.error_code", code))
		switch {
		case code == CodeLost:
			span.SetStatus(codes.Error, "no answer")
		case code != 0:
			span.SetStatus(codes.Error, fmt.Sprintf("libvirt error %d", code))
		}
		span.End()
	}
}
