package client

import (
	"math"
	"net/url"
	"strings"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Mode says whether a lease shares its proxy.
type Mode string

// Modes of a lease.
const (
	// Shared leases share their proxy up to its capacity. This is the default.
	Shared Mode = wire.ModeShared
	// Exclusive leases have their proxy to themselves.
	Exclusive Mode = wire.ModeExclusive
)

// NoWait as Request.Wait asks for a proxy that is free now.
const NoWait time.Duration = -1

// Request says what is asked for. The zero value means any proxy of the default namespace.
type Request struct {
	// Namespace of the proxies; empty: the API's default, or with package kube that of its options.
	Namespace string
	// Selector are labels that the proxy must have.
	Selector map[string]string
	// Pool asks for a member of this ProxyPool; it may be combined with a Selector.
	Pool string
	// Proxy asks for this very proxy, by name; not together with Selector or Pool.
	Proxy string
	// Targets are the lower-case hosts that will be crawled: a proxy that cools for one of them is not given. See Target.
	Targets []string
	// TTL is how long the lease lives without being renewed: 10 s to a day in whole seconds, the rest of one counting as
	// another. It bounds how long a proxy stays taken after a crash. 0: the pool's default. The pool may clamp it.
	TTL time.Duration
	// Mode is Shared unless set.
	Mode Mode
	// Holder tells your workers apart; it is added to your identity.
	Holder string
	// Wait is how long to wait while no proxy is free, in whole seconds: 0 waits until the context ends, and NoWait not at
	// all.
	Wait time.Duration
	// Exclude are names of proxies that must not be given.
	Exclude []string
	// Key makes the request repeatable beyond this process: another Acquire with the same key and the same request gets the
	// same lease as long as that lives. It must be new for each lease, and be used by one process at a time. 1 to 255
	// printable ASCII characters without spaces; empty: a random one.
	Key string
}

// Result is what a crawler saw at a target.
type Result string

// Results of a report.
const (
	// RateLimited: the proxy is not leased for this target for a quarter of an hour, or as long as the target asked for.
	RateLimited Result = wire.ResultRateLimited
	// Banned: the same for an hour.
	Banned Result = wire.ResultBanned
	// Failed: the proxy is looked at soon. It does not cool.
	Failed Result = wire.ResultFailed
	// OK is counted and changes nothing.
	OK Result = wire.ResultOK
)

// Report is what a crawler saw at a target.
type Report struct {
	Target string
	Result Result
	// RetryAfter is what the target asked for; 0: nothing.
	RetryAfter time.Duration
}

// Target is the host of a URL as Request.Targets and Report want it: in lower case, without port, brackets and trailing dot.
func Target(u *url.URL) string {
	return strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
}

// maxRetryAfter is the longest wait that is passed on or kept to.
const maxRetryAfter = wire.MaxRetryAfterSeconds * time.Second

// seconds rounds up to whole seconds, within what the API can read.
func seconds(d time.Duration) int32 {
	const most = math.MaxInt32
	return int32((min(max(d, 0), most*time.Second) + time.Second - 1) / time.Second)
}
