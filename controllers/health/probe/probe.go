package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// userAgent names the operator to the target and in the proxy's log.
const userAgent = "egress-proxies-operator"

// Stage is how far a probe got: the stage that failed, or StageDone.
type Stage uint8

// The stages of a probe, in order.
const (
	StageResolve  Stage = iota // the proxy's name, by us
	StageDial                  // TCP to the proxy
	StageConnect               // CONNECT and the proxy's answer
	StageTLS                   // the handshake with the target, through the tunnel
	StageResponse              // the request and the head of the target's answer
	StageBody                  // the body of the answer
	StageDone
	stageCount
)

// String returns the name used in metrics and spans.
func (s Stage) String() string {
	if s >= stageCount {
		return "invalid"
	}
	return [stageCount]string{"resolve", "dial", "connect", "tls", "response", "body", "done"}[s]
}

// Request is one probe.
type Request struct {
	// Proxy is the proxy's host:port.
	Proxy string
	// Credentials may be nil.
	Credentials *Credentials
	Target      *Target
	// Timeout bounds the whole probe, from its start to the end of the body.
	Timeout time.Duration
	// MaxBody is how many bytes of the body are read.
	MaxBody int
}

// Result is what a probe saw. It holds no interpretation; see package classify.
type Result struct {
	Stage Stage
	// Code is the status of the answer to CONNECT at StageConnect and before, the target's status from StageBody on.
	Code int
	// Err is nil at StageDone only. It is for deciding and debugging and may name addresses: never for users.
	Err error
	// RetryAfter is what the proxy asked for in its answer to CONNECT; unclamped.
	RetryAfter time.Duration
	// Body is the answer's body up to MaxBody bytes; Truncated says that there was more.
	Body      []byte
	Truncated bool
	// Resumed says that a TLS session was resumed.
	Resumed bool
	// Start is when the probe started, Ends[s] how long after it stage s ended (zero for stages not reached), Total
	// how long it took.
	Start time.Time
	Ends  [StageDone]time.Duration
	Total time.Duration
}

// Resolver resolves the host names of proxies; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Prober sends probes. The zero value works and denies what AddressPolicy denies. It is safe for concurrent use.
type Prober struct {
	// Policy is applied to the proxy's address after resolution.
	Policy AddressPolicy
	// Resolver defaults to net.DefaultResolver.
	Resolver Resolver
	// Dial defaults to a net.Dialer; it is called with a literal address, once per probe.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readerSize) }}

// Probe runs one probe and returns by its deadline. Cancelling ctx ends it at once.
func (p *Prober) Probe(ctx context.Context, req Request) (r Result) {
	conn, done := p.open(ctx, req.Proxy, req.Timeout, &r)
	defer done()
	if conn == nil {
		return r
	}
	if !connect(conn, req.Target.authority, req.Credentials, &r) {
		return r
	}
	if r.Code < 200 || r.Code > 299 {
		r.Err = fmt.Errorf("CONNECT answered with status %d", r.Code)
		return r
	}
	tunnel := tls.Client(conn, req.Target.tls)
	r.Stage = StageTLS
	// Without a context: it would cost a goroutine, and the connection already has the deadline.
	if r.Err = tunnel.Handshake(); r.Err != nil {
		return r
	}
	r.end(StageTLS)
	r.Resumed = tunnel.ConnectionState().DidResume
	fetch(tunnel, req, &r)
	return r
}

// open resolves and dials the proxy under the probe's deadline. The returned function closes the connection and
// completes the result.
func (p *Prober) open(parent context.Context, proxy string, timeout time.Duration, r *Result) (net.Conn, func()) {
	r.Start = time.Now()
	deadline := r.Start.Add(timeout)
	ctx, cancel := context.WithDeadline(parent, deadline)
	finish := func() {
		cancel()
		r.Total = time.Since(r.Start)
		// The parent's end explains whatever error the closed connection gave.
		if r.Err != nil && parent.Err() != nil {
			r.Err = fmt.Errorf("probe cancelled: %w", context.Cause(parent))
		}
	}
	r.Stage = StageResolve
	address, err := p.resolve(ctx, proxy)
	if err != nil {
		r.Err = err
		return nil, finish
	}
	r.end(StageResolve)
	r.Stage = StageDial
	dial := p.Dial
	if dial == nil {
		// No Happy Eyeballs: one probe is one connection. No TCP keep-alive: the deadline is shorter.
		dial = (&net.Dialer{FallbackDelay: -1, KeepAlive: -1}).DialContext
	}
	conn, err := dial(ctx, "tcp", address.String())
	if err != nil {
		r.Err = err
		return nil, finish
	}
	r.end(StageDial)
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(parent, func() { _ = conn.Close() })
	return conn, func() {
		stop()
		_ = conn.Close()
		finish()
	}
}

// resolve turns host:port into one allowed address. A name that also leads to a denied address is refused as a whole.
func (p *Prober) resolve(ctx context.Context, proxy string) (netip.AddrPort, error) {
	host, port, err := SplitAddress(proxy)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return netip.AddrPortFrom(addr.Unmap(), port), p.Policy.Check(addr)
	}
	var resolver Resolver = net.DefaultResolver
	if p.Resolver != nil {
		resolver = p.Resolver
	}
	addrs, err := resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("resolving the proxy's name: %w", err)
	}
	for _, addr := range addrs {
		if err := p.Policy.Check(addr); err != nil {
			return netip.AddrPort{}, err
		}
	}
	if len(addrs) == 0 {
		return netip.AddrPort{}, &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	return netip.AddrPortFrom(addrs[0].Unmap(), port), nil
}

// connect sends CONNECT and reads the answer's head; it reports whether there was one that can be judged.
func connect(conn net.Conn, authority string, credentials *Credentials, r *Result) bool {
	r.Stage = StageConnect
	var b strings.Builder
	b.WriteString("CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n")
	writeCommon(&b, credentials)
	if _, r.Err = io.WriteString(conn, b.String()); r.Err != nil {
		return false
	}
	return readAnswer(conn, true, r)
}

func writeCommon(b *strings.Builder, credentials *Credentials) {
	if value := credentials.authorization(); value != "" {
		b.WriteString("Proxy-Authorization: " + value + "\r\n")
	}
	b.WriteString("User-Agent: " + userAgent + "\r\n\r\n")
}

// readAnswer reads the head of the proxy's answer. After a 2xx to CONNECT the tunnel starts, and the target does not
// speak first in TLS: bytes that are there already were made up by the proxy (a portal's page, mostly).
func readAnswer(conn net.Conn, tunnel bool, r *Result) bool {
	br := readers.Get().(*bufio.Reader)
	br.Reset(&boundedReader{r: conn, n: MaxHeadBytes})
	head, err := readConnectHead(br)
	extra := br.Buffered()
	br.Reset(nil)
	readers.Put(br)
	if err != nil {
		r.Err = err
		return false
	}
	r.Code = head.code
	r.RetryAfter = parseRetryAfter(head.retryAfter, time.Now())
	if tunnel && head.code <= 299 && extra > 0 {
		r.Err = fmt.Errorf("%w: %d bytes follow the head before the handshake", ErrNotATunnel, extra)
		return false
	}
	r.end(StageConnect)
	return true
}

// fetch sends the GET and reads the answer through the verified tunnel.
func fetch(tunnel *tls.Conn, req Request, r *Result) {
	r.Stage = StageResponse
	_, r.Err = io.WriteString(tunnel, "GET "+req.Target.uri()+" HTTP/1.1\r\nHost: "+req.Target.hostHeader+
		"\r\nUser-Agent: "+userAgent+"\r\nAccept: */*\r\nAccept-Encoding: identity\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n")
	if r.Err != nil {
		return
	}
	br := readers.Get().(*bufio.Reader)
	source := &boundedReader{r: tunnel, n: MaxHeadBytes}
	br.Reset(source)
	defer func() {
		br.Reset(nil)
		readers.Put(br)
	}()
	response, err := readResponse(br)
	if err != nil {
		r.Err = fmt.Errorf("reading the target's answer: %w", err)
		return
	}
	r.end(StageResponse)
	r.Stage, r.Code = StageBody, response.StatusCode
	// Read to the end where possible: then the proxy closes first and keeps the TIME_WAIT. Chunked framing may cost
	// as much as the content.
	source.n = 2*req.MaxBody + MaxHeadBytes
	body, err := io.ReadAll(io.LimitReader(response.Body, int64(req.MaxBody)+1))
	if len(body) > req.MaxBody {
		body, r.Truncated, err = body[:req.MaxBody], true, nil
	}
	r.Body = body
	if err != nil {
		if errors.Is(err, ErrHeadTooLarge) {
			err = errors.New("the body's framing is larger than its content")
		}
		r.Err = fmt.Errorf("reading the target's body: %w", err)
		return
	}
	r.end(StageBody)
	r.Stage = StageDone
}

// readResponse reads the head of the target's final answer, skipping a few informational ones.
func readResponse(br *bufio.Reader) (*http.Response, error) {
	for range maxInformational + 1 {
		response, err := http.ReadResponse(br, nil)
		if err != nil || response.StatusCode >= 200 {
			return response, err
		}
	}
	return nil, errors.New("too many informational answers")
}

func (r *Result) end(s Stage) { r.Ends[s] = time.Since(r.Start) }
