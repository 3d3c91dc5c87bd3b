// Package classify says what the result of a probe means: whose fault it is, whether it counts, and which reason of a
// closed set it gets. It is pure, and nothing that a proxy or a target sent gets into its texts.
package classify

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// Class is how a result counts.
type Class uint8

const (
	// Success proves that the proxy tunnels.
	Success Class = iota
	// Failure counts against the proxy.
	Failure
	// Neutral says nothing about the proxy's health.
	Neutral
	// Local is trouble on the operator's side and is never held against a proxy.
	Local
)

// String returns the name used in metrics.
func (c Class) String() string {
	switch c {
	case Success:
		return "success"
	case Failure:
		return "failure"
	case Neutral:
		return "neutral"
	default:
		return "local"
	}
}

// Outcome is the meaning of one probe.
type Outcome struct {
	Class  Class
	Reason string
	// Message is a sentence for users, stable for equal results: no addresses, ids, times or foreign text.
	Message string
	// Immediate failures need no second opinion in time: the proxy's address is not allowed, or it breaks TLS open.
	Immediate bool
	// AboutTarget failures may just as well be the target's fault; they feed the target's breaker.
	AboutTarget bool
	// NoFast failures are answers that repeating soon does not improve (wrong credentials load the proxy's helper and
	// may lock the account).
	NoFast bool
	// Timeout says that the deadline ended the probe.
	Timeout bool
	// RetryAfter is how long a throttling proxy asked to be left alone; unclamped.
	RetryAfter time.Duration
}

// Expect is what a target's answer must look like. The zero value takes any whole HTTP answer: it came over verified
// TLS, so the tunnel works, and a target that is overloaded or blocks the exit is not the proxy's health.
type Expect struct {
	// Strict makes an unexpected answer a failure. Without it the status is not looked at, and an unexpected body is
	// neutral.
	Strict bool
	// Statuses that are expected when Strict is set; empty means 200 to 399.
	Statuses []int32
	// BodyContains must occur in the part of the body that is read.
	BodyContains string
}

func (e Expect) status(code int) bool {
	if !e.Strict {
		return true
	}
	if len(e.Statuses) == 0 {
		return code >= 200 && code <= 399
	}
	return slices.Contains(e.Statuses, int32(code))
}

// AgainstProxy is what a failure of our network or resolver means when other proxies were reached in the meantime: then it
// is not ours. Other outcomes stay as they are.
func (o Outcome) AgainstProxy() Outcome {
	switch {
	case o.Class != Local:
		return o
	case o.Reason == ReasonLocalNetwork:
		return Outcome{
			Class: Failure, Reason: ReasonConnectionFailed,
			Message: "There is no way from the operator to the proxy, while other proxies are reached.",
		}
	case o.Reason == ReasonLocalResolver:
		return Outcome{
			Class: Failure, Reason: ReasonNameNotResolved,
			Message: "The proxy's host name cannot be resolved, while others can.",
		}
	}
	return o
}

// Classify decides what a result means.
func Classify(r probe.Result, expect Expect) Outcome {
	o := classify(r, expect)
	o.Timeout = o.Class == Failure && isTimeout(r.Err)
	return o
}

func classify(r probe.Result, expect Expect) Outcome {
	if r.Err != nil {
		if errors.Is(r.Err, context.Canceled) {
			return Outcome{Class: Local, Reason: ReasonCancelled}
		}
		if reason := localReason(r.Err); reason != "" && r.Stage <= probe.StageDial {
			return Outcome{Class: Local, Reason: reason}
		}
	}
	switch r.Stage {
	case probe.StageResolve:
		return resolveOutcome(r.Err)
	case probe.StageDial:
		return dialOutcome(r.Err)
	case probe.StageConnect:
		return connectOutcome(r)
	case probe.StageTLS:
		return tlsOutcome(r.Err)
	case probe.StageResponse:
		return Outcome{
			Class: Failure, Reason: ReasonNoResponse, AboutTarget: true,
			Message: "The tunnel and its TLS handshake worked, but no HTTP answer came through.",
		}
	default:
		return answerOutcome(r, expect)
	}
}

// localReason recognises errors of this process and host. They can only be told apart while dialling; afterwards the
// same numbers come from the other side.
func localReason(err error) string {
	is := func(numbers ...syscall.Errno) bool {
		return slices.ContainsFunc(numbers, func(n syscall.Errno) bool { return errors.Is(err, n) })
	}
	switch {
	case is(syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM, syscall.EAGAIN):
		return ReasonLocalResources
	case is(syscall.ENETUNREACH, syscall.ENETDOWN, syscall.EPERM, syscall.EACCES, syscall.EAFNOSUPPORT):
		return ReasonLocalNetwork
	}
	return ""
}

func resolveOutcome(err error) Outcome {
	var dns *net.DNSError
	switch {
	case errors.Is(err, probe.ErrAddressNotAllowed):
		return Outcome{
			Class: Failure, Reason: ReasonAddressNotAllowed, Immediate: true, NoFast: true,
			Message: "The proxy's address is loopback, link-local, multicast or a metadata service; --allow-proxy-cidrs opens ranges.",
		}
	case errors.Is(err, probe.ErrBadAddress):
		return Outcome{
			Class: Failure, Reason: ReasonAddressNotAllowed, Immediate: true, NoFast: true,
			Message: "The proxy's address is not a host and a port.",
		}
	case errors.As(err, &dns) && dns.IsNotFound:
		return Outcome{Class: Failure, Reason: ReasonNameNotResolved, Message: "The proxy's host name does not resolve."}
	default:
		return Outcome{Class: Local, Reason: ReasonLocalResolver}
	}
}

func dialOutcome(err error) Outcome {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Outcome{Class: Failure, Reason: ReasonConnectionRefused, Message: "The proxy's port refuses connections."}
	case isTimeout(err):
		return Outcome{Class: Failure, Reason: ReasonDialTimeout, Message: "The proxy does not accept a TCP connection in time."}
	default:
		return Outcome{Class: Failure, Reason: ReasonConnectionFailed, Message: "The proxy cannot be reached over TCP."}
	}
}

func connectOutcome(r probe.Result) Outcome {
	switch {
	case errors.Is(r.Err, probe.ErrNotATunnel), errors.Is(r.Err, probe.ErrHeadTooLarge):
		return notATunnel()
	case r.Code != 0:
		return refusedOutcome(r)
	case isTimeout(r.Err):
		// A proxy that hangs and a proxy whose way to the target hangs look the same here.
		return Outcome{
			Class: Failure, Reason: ReasonConnectTimeout, AboutTarget: true,
			Message: "The proxy accepts TCP connections but does not answer CONNECT in time.",
		}
	default:
		return Outcome{
			Class: Failure, Reason: ReasonConnectClosed, AboutTarget: true, // some proxies say "unreachable" this way
			Message: "The proxy closes the connection instead of answering CONNECT.",
		}
	}
}

func refusedOutcome(r probe.Result) Outcome {
	switch code := r.Code; {
	case code == 407 || code == 401:
		return Outcome{
			Class: Failure, Reason: ReasonProxyAuthFailed, NoFast: true,
			Message: fmt.Sprintf("The proxy wants other credentials (status %d to CONNECT).", code),
		}
	case code == 429:
		return Outcome{
			Class: Neutral, Reason: ReasonProxyThrottled, RetryAfter: r.RetryAfter,
			Message: "The proxy limits the rate of CONNECT (status 429).",
		}
	case code >= 500:
		return Outcome{
			Class: Failure, Reason: ReasonEgressFailed, AboutTarget: true,
			Message: fmt.Sprintf("The proxy could not reach the probe target (status %d to CONNECT).", code),
		}
	case code >= 400:
		return Outcome{
			Class: Failure, Reason: ReasonConnectDenied,
			Message: fmt.Sprintf("The proxy's rules deny CONNECT to the probe target (status %d).", code),
		}
	default:
		return notATunnel()
	}
}

func notATunnel() Outcome {
	return Outcome{
		Class: Failure, Reason: ReasonNotATunnel,
		Message: "The proxy answers CONNECT with content of its own instead of a tunnel.",
	}
}

func tlsOutcome(err error) Outcome {
	var record tls.RecordHeaderError
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &record):
		return notATunnel()
	case errors.As(err, &certificate), errors.As(err, &authority), errors.As(err, &host), errors.As(err, &invalid):
		return Outcome{
			Class: Failure, Reason: ReasonTLSIntercepted, Immediate: true, AboutTarget: true,
			Message: "The certificate that came through the proxy is not the probe target's.",
		}
	case isTimeout(err):
		return Outcome{
			Class: Failure, Reason: ReasonEgressFailed, AboutTarget: true,
			Message: "The proxy opened a tunnel in which nothing answers.",
		}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return Outcome{
			Class: Failure, Reason: ReasonEgressFailed, AboutTarget: true,
			Message: "The proxy opened a tunnel and closed it during the TLS handshake.",
		}
	default:
		return Outcome{
			Class: Failure, Reason: ReasonEgressFailed, AboutTarget: true,
			Message: "The TLS handshake through the tunnel failed.",
		}
	}
}

// answerOutcome judges an answer that came over verified TLS.
func answerOutcome(r probe.Result, expect Expect) Outcome {
	unexpected := func(reason, message string) Outcome {
		o := Outcome{Class: Neutral, Reason: reason, Message: message, AboutTarget: true}
		if expect.Strict {
			o.Class = Failure
		}
		return o
	}
	if !expect.status(r.Code) {
		return unexpected(ReasonUnexpectedStatus, fmt.Sprintf("The probe target answered with an unexpected status (%d).", r.Code))
	}
	if r.Err != nil {
		return unexpected(ReasonUnexpectedBody, "The body of the probe target's answer did not arrive whole.")
	}
	if expect.BodyContains != "" && !bytes.Contains(r.Body, []byte(expect.BodyContains)) {
		return unexpected(ReasonUnexpectedBody, "The body of the probe target's answer does not contain the expected text.")
	}
	return Outcome{Class: Success, Reason: ReasonProbeSucceeded, Message: "A fresh tunnel through the proxy reached the probe target."}
}

func isTimeout(err error) bool {
	var network net.Error
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &network) && network.Timeout()
}
