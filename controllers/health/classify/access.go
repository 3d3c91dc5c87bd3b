package classify

import (
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// Answer is what a proxy did with a request that it should refuse.
type Answer uint8

const (
	// Unclear answers decide nothing: a timeout, a closed connection, or a server error, after which nobody knows
	// whether the proxy's rules or its network kept the request back.
	Unclear Answer = iota
	// Refused by the proxy's own rules.
	Refused
	// Reached means that the proxy did what it should not do.
	Reached
)

// String returns the name used in metrics.
func (a Answer) String() string {
	switch a {
	case Refused:
		return "refused"
	case Reached:
		return "reached"
	default:
		return "unclear"
	}
}

// Forbidden judges the answer to a CONNECT to an address that no client may reach.
func Forbidden(r probe.Result) Answer {
	switch {
	case r.Stage != probe.StageConnect || r.Code == 0:
		return Unclear
	case r.Code >= 200 && r.Code <= 299:
		return Reached // also with bytes behind the head
	case r.Err != nil, r.Code == 429, r.Code == 407, r.Code == 401:
		return Unclear // throttled, or our credentials failed before any rule about the address
	case r.Code >= 400 && r.Code <= 499:
		return Refused
	}
	return Unclear
}

// ForbiddenPlain judges the answer to a plain GET of a metadata address. Only answers that proxies give to forbidden
// or unsupported requests are refusals; anything else that is no server error came from the address itself (AWS
// answers 401 to requests without its token).
func ForbiddenPlain(r probe.Result) Answer {
	switch {
	case r.Stage != probe.StageConnect || r.Err != nil || r.Code == 0:
		return Unclear
	case r.Code == 400, r.Code == 403, r.Code == 405, r.Code == 501:
		return Refused
	case r.Code == 407, r.Code == 429, r.Code >= 500:
		return Unclear
	}
	return Reached
}

// Anonymous judges the answer to a CONNECT without credentials.
func Anonymous(r probe.Result) Answer {
	switch {
	case r.Stage != probe.StageConnect || r.Code == 0:
		return Unclear
	case r.Code >= 200 && r.Code <= 299:
		return Reached
	case r.Err == nil && (r.Code == 407 || r.Code == 403 || r.Code == 401):
		return Refused
	}
	return Unclear
}
