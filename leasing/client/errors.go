package client

import (
	"errors"
	"strings"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Errors to be told apart with errors.Is. An *Error says more, and a *LostError why a lease was lost.
var (
	// ErrNoProxy: no proxy fits that is free and does not cool for a target.
	ErrNoProxy = errors.New("no proxy is available")
	// ErrUnauthorized: there is no token, or it is not known.
	ErrUnauthorized = errors.New("unauthorized")
	// ErrForbidden: the token's owner may not do this in this namespace.
	ErrForbidden = errors.New("forbidden")
	// ErrInvalid: the request cannot be understood or has a value that is not allowed.
	ErrInvalid = errors.New("invalid request")
	// ErrKeyUsed: Request.Key was used for another request, or its lease has ended.
	ErrKeyUsed = errors.New("the key was used before")
	// ErrLost: the lease has ended although its holder did not end it.
	ErrLost = errors.New("the lease is lost")
	// ErrClosed: Close was called.
	ErrClosed = errors.New("the lease is closed")
)

// Error is an answer that says what went wrong. What was asked for has not happened, unless Status is 500 or more.
type Error struct {
	// Status is the HTTP status code; that of the corresponding answer where no HTTP API was asked.
	Status int
	// Code is stable; see docs/api.md and the constants in package wire. Empty when something else than the API answered.
	Code string
	// Field of the request that is wrong, if it is one.
	Field string
	// Reason is the machine-readable cause behind the code, if there is one.
	Reason string
	// Detail is a sentence for people.
	Detail string
	// RetryAfter is when trying again makes sense; 0: not said.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Code)
	if e.Reason != "" {
		b.WriteString(" (" + e.Reason + ")")
	}
	for _, part := range []string{e.Field, e.Detail} {
		if part != "" && b.Len() > 0 {
			b.WriteString(": ")
		}
		b.WriteString(part)
	}
	return b.String()
}

// Is implements errors.Is.
func (e *Error) Is(target error) bool {
	switch e.Code {
	case wire.CodeNoProxy:
		return target == ErrNoProxy
	case wire.CodeUnauthorized:
		return target == ErrUnauthorized
	case wire.CodeForbidden:
		return target == ErrForbidden
	case wire.CodeKeyReused, wire.CodeKeyConsumed:
		return target == ErrKeyUsed
	case wire.CodeLeaseEnded:
		return target == ErrLost
	case wire.CodeInvalidField, wire.CodeInvalidBody, wire.CodeInvalidHeader, wire.CodeInvalidQuery, wire.CodeBodyTooLarge:
		return target == ErrInvalid
	}
	return false
}

// Reasons of a LostError. The set is open: expect others.
const (
	// ReasonExpired: it was not renewed in time, or nobody confirmed that it was.
	ReasonExpired = wire.ReasonExpired
	// ReasonProxyReplaced: another instance, with another address, took the place of the proxy's.
	ReasonProxyReplaced = wire.ReasonProxyReplaced
	// ReasonProxyDeleted: the proxy was deleted.
	ReasonProxyDeleted = wire.ReasonProxyDeleted
	// ReasonProxyUnhealthy: the proxy does not work, and the lease asked to be revoked in that case.
	ReasonProxyUnhealthy = wire.ReasonProxyUnhealthy
	// ReasonDrainDeadline: the proxy had to become empty.
	ReasonDrainDeadline = wire.ReasonDrainDeadline
	// ReasonConflict: another exclusive lease holds the proxy.
	ReasonConflict = wire.ReasonConflict
	// ReasonGone: somebody else released it, or it ended a while ago.
	ReasonGone = wire.ReasonGone
)

// LostError says why a lease was lost. It is ErrLost.
type LostError struct {
	// Reason is one of the constants, or one that is not known yet.
	Reason string
	// Detail is a sentence for people.
	Detail string
	// Cause is what kept the lease from being renewed, if that is why it was lost.
	Cause error
}

// Error implements error.
func (e *LostError) Error() string {
	text := "the lease is lost (" + e.Reason + ")"
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	if e.Cause != nil {
		text += ": " + e.Cause.Error()
	}
	return text
}

// Is implements errors.Is.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap implements errors.Unwrap.
func (e *LostError) Unwrap() error { return e.Cause }

// permanentError is one that the same call will meet again.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }
