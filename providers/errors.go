package providers

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Reason is the class of a provider error. The set is closed: the controllers have one reaction to each, listed in
// docs/provider-contract.md.
type Reason string

const (
	// NotFound says: the instance does not exist, for sure. Of Get it releases a Proxy, so a doubt is Unavailable. A network,
	// an image or a namespace that is missing is something else.
	NotFound Reason = "NotFound"
	// AlreadyExists says, of Create: an instance of this name and owner exists, in whatever state.
	AlreadyExists Reason = "AlreadyExists"
	// Conflict says: the name is held by something of another owner. It is never deleted.
	Conflict Reason = "Conflict"
	// InvalidSpec says: it cannot work until the specification or the class changes; Field names the field.
	InvalidSpec Reason = "InvalidSpec"
	// Capacity says: quota, stock-out or no space. Waiting helps, or another place.
	Capacity Reason = "Capacity"
	// RateLimited says: the whole class must slow down, for RetryAfter if that is known.
	RateLimited Reason = "RateLimited"
	// Auth says: the class's credentials do not work, or lack a right.
	Auth Reason = "Auth"
	// Unavailable says: everything else, deadlines and unknown answers included. Nothing is known.
	Unavailable Reason = "Unavailable"
)

// Error is an error of the taxonomy. Message is a stable sentence that may be shown in a condition; Err is the raw error
// and goes to the log and the span only, since ids and times in it would cause endless status writes.
type Error struct {
	Reason Reason
	// Op is what was being done, for example "create instance"; where it is empty, providers/guard fills it in.
	Op string
	// Field is the path of the field that is wrong, for InvalidSpec.
	Field string
	// Message is stable: the same for every instance in the same situation, without ids, times and counts. Empty means a
	// sentence that fits the reason. At most MaxMessage characters, Field included.
	Message string
	// RetryAfter is the provider's wish; 0 when it has none.
	RetryAfter time.Duration
	// Outcome is set by Get, beside NotFound, when the operation of the last accepted Create (Ref.Operation) has ended
	// without an instance and nothing more can come of that attempt: InvalidSpec, Capacity or Auth, with Field and Message
	// as a refusing Create has them.
	Outcome Reason
	// Local says that it concerns one place of the class while others may work: it does not open the breaker of the class.
	Local bool
	// Partial says, of a Get without a zone, that some places of the class have not answered while others have, and that the
	// instance was not seen there.
	Partial bool
	// Err is the raw error. It must not contain user data or credentials: it is logged.
	Err error
}

// Error implements error with stable text.
func (e *Error) Error() string {
	text := string(e.Reason)
	if e.Op != "" {
		text = e.Op + ": " + text
	}
	if e.Field != "" {
		text += ": " + e.Field
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap gives the raw error.
func (e *Error) Unwrap() error { return e.Err }

// NewError makes an error of the taxonomy; op, message and raw may be empty. It gives an *Error so that its fields can be
// set. A function that passes it on should return error: a nil *Error in an error is not nil.
func NewError(reason Reason, op, message string, raw error) *Error {
	return &Error{Reason: reason, Op: op, Message: message, Err: raw}
}

// InvalidField makes an InvalidSpec error for a field of the Proxy, for example "spec.placement.zone".
func InvalidField(path, format string, args ...any) *Error {
	return &Error{Reason: InvalidSpec, Field: path, Message: fmt.Sprintf(format, args...)}
}

// ReasonOf classifies any error; "" for nil. What is not of the taxonomy, deadlines and network errors included, is
// Unavailable and never NotFound: an unknown answer is no answer.
func ReasonOf(err error) Reason {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return Unavailable
}

// ErrBreakerOpen is wrapped by the error of a call that was not made because the class's breaker is open. That error has
// the reason and the message of the failure that opened it, Unavailable or Auth, so that conditions stay as they are.
var ErrBreakerOpen = errors.New("the breaker of the class is open")

// IsPartial tells whether a Get without a zone has failed for some places only.
func IsPartial(err error) bool {
	known, ok := errors.AsType[*Error](err)
	return ok && known.Partial
}

// IsNotFound tells whether the instance is known not to exist.
func IsNotFound(err error) bool { return ReasonOf(err) == NotFound }

// IsAlreadyExists tells whether an instance of the name exists.
func IsAlreadyExists(err error) bool { return ReasonOf(err) == AlreadyExists }

// RetryAfterOf is how long the provider asks to wait; 0 when it does not say.
func RetryAfterOf(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// OutcomeOf is how the last accepted Create has ended according to a NotFound of Get; "" when that is not known.
func OutcomeOf(err error) Reason {
	if e, ok := errors.AsType[*Error](err); ok && e.Reason == NotFound {
		return e.Outcome
	}
	return ""
}

// fallbackMessage is shown when an error brings no stable message of its own.
var fallbackMessage = map[Reason]string{
	NotFound:      "the instance does not exist",
	AlreadyExists: "an instance of this name exists",
	Conflict:      "the name is held by an instance of another owner, which is left alone",
	InvalidSpec:   "the specification cannot be provisioned",
	Capacity:      "the provider has no capacity or quota left",
	RateLimited:   "the provider asks to slow down",
	Auth:          "the credentials of the class are refused",
	Unavailable:   "the provider cannot be reached or did not answer",
}

// MaxMessage is the most characters a message may have that is stored in status.instance.message.
const MaxMessage = 1024

// RawText is an error with its cause, for logs: the taxonomy's own text leaves the cause out.
func RawText(err error) string {
	if known, ok := errors.AsType[*Error](err); ok && known.Err != nil {
		return known.Error() + ": " + known.Err.Error()
	}
	return err.Error()
}

// StableMessage is the text of an error that may be written to status: the field and the stable message, never the raw
// error. It is cut where it would not fit.
func StableMessage(err error) string {
	if err == nil {
		return ""
	}
	e, ok := errors.AsType[*Error](err)
	if !ok {
		return fallbackMessage[Unavailable]
	}
	message := e.Message
	if message == "" {
		message = fallbackMessage[e.Reason]
	}
	if e.Field != "" {
		message = e.Field + ": " + message
	}
	if utf8.RuneCountInString(message) > MaxMessage {
		message = string([]rune(message)[:MaxMessage])
	}
	return message
}
