// Package probe asks one proxy one question over exactly one connection.
//
// A probe is a fresh CONNECT, a verified TLS handshake with the target inside the tunnel, and one HTTP/1.1 GET,
// all under one absolute deadline that starts when the probe starts. Anything less passes proxies that do not work:
// a TCP dial succeeds against a proxy that never answers, a plain GET is answered by a cache or a portal, and a
// kept tunnel outlives a proxy that refuses every new one.
//
// It is written on crypto/tls and not on http.Client, because http.Client retries by itself (hundreds of connections
// for one probe when an HTTP/2 origin says GOAWAY), accepts 10 MiB of CONNECT head, and loses the status of a
// refused CONNECT. There are no redirects, no cookies and no retries here, the proxy variables of the environment
// are never read, and the target's name is resolved by the proxy.
//
// The package keeps no state and knows nothing about thresholds: what a result means is decided by package classify.
package probe
