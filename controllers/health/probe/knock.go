package probe

import (
	"context"
	"io"
	"strings"
	"time"
)

// Knock asks a proxy for something it should refuse, and reads no more than its answer's head.
type Knock struct {
	// Proxy is the proxy's host:port.
	Proxy string
	// Credentials may be nil: then the proxy sees an anonymous client.
	Credentials *Credentials
	// Authority is the host:port asked for.
	Authority string
	// Plain asks by a GET for http://Authority/ instead of CONNECT. A proxy whose rules only mind CONNECT serves a
	// cloud's metadata to anybody that way.
	Plain bool
	// Timeout bounds the whole exchange.
	Timeout time.Duration
}

// Knock sends one request over one connection. A result at StageConnect without error carries the status in Code.
func (p *Prober) Knock(ctx context.Context, k Knock) (r Result) {
	conn, done := p.open(ctx, k.Proxy, k.Timeout, &r)
	defer done()
	if conn == nil {
		return r
	}
	if !k.Plain {
		connect(conn, k.Authority, k.Credentials, &r)
		return r
	}
	r.Stage = StageConnect
	var b strings.Builder
	// Metadata services answer only to requests that carry their header; a plain one would look like a refusal.
	b.WriteString("GET http://" + k.Authority + "/ HTTP/1.1\r\nHost: " + k.Authority +
		"\r\nMetadata-Flavor: Google\r\nMetadata: true\r\nConnection: close\r\n")
	writeCommon(&b, k.Credentials)
	if _, r.Err = io.WriteString(conn, b.String()); r.Err != nil {
		return r
	}
	readAnswer(conn, false, &r)
	return r
}
