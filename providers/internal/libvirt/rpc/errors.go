package rpc

import (
	"errors"
	"fmt"

	"github.com/digitalocean/go-libvirt"
)

// Codes of libvirt's errors, as its virterror.h numbers them.
const (
	InternalError        = int(libvirt.ErrInternalError)
	NoMemory             = int(libvirt.ErrNoMemory)
	NoSupport            = int(libvirt.ErrNoSupport)
	InvalidArg           = int(libvirt.ErrInvalidArg)
	OperationFailed      = int(libvirt.ErrOperationFailed)
	XMLError             = int(libvirt.ErrXMLError)
	DomainExists         = int(libvirt.ErrDomExist)
	XMLDetail            = int(libvirt.ErrXMLDetail)
	InvalidNetwork       = int(libvirt.ErrInvalidNetwork)
	SystemError          = int(libvirt.ErrSystemError)
	NoDomain             = int(libvirt.ErrNoDomain)
	NoNetwork            = int(libvirt.ErrNoNetwork)
	AuthFailed           = int(libvirt.ErrAuthFailed)
	InvalidPool          = int(libvirt.ErrInvalidStoragePool)
	InvalidVolume        = int(libvirt.ErrInvalidStorageVol)
	NoPool               = int(libvirt.ErrNoStoragePool)
	NoVolume             = int(libvirt.ErrNoStorageVol)
	OperationInvalid     = int(libvirt.ErrOperationInvalid)
	ConfigUnsupported    = int(libvirt.ErrConfigUnsupported)
	ArgumentUnsupported  = int(libvirt.ErrArgumentUnsupported)
	NoDomainMetadata     = int(libvirt.ErrNoDomainMetadata)
	OperationUnsupported = int(libvirt.ErrOperationUnsupported)
	AgentUnresponsive    = int(libvirt.ErrAgentUnresponsive)
	VolumeExists         = int(libvirt.ErrStorageVolExist)
	XMLInvalidSchema     = int(libvirt.ErrXMLInvalidSchema)
	AuthCancelled        = int(libvirt.ErrAuthCancelled)
	AccessDenied         = int(libvirt.ErrAccessDenied)
	AuthUnavailable      = int(libvirt.ErrAuthUnavailable)
)

// CodeLost is what Options.Observe gets for a call whose outcome is not known.
const CodeLost = -1

// Error is why a call failed.
type Error struct {
	// Procedure is libvirt's name of the call, like "DomainCreate".
	Procedure string
	// Code is libvirt's number of the error; 0 when the daemon has not answered.
	Code int
	// Lost says: the connection is gone and useless, and whether the call was carried out is not known.
	Lost bool
	// Err is the cause. The daemon's text may quote the XML it was given.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Code != 0 {
		return fmt.Sprintf("libvirt %s: error %d: %v", e.Procedure, e.Code, e.Err)
	}
	return fmt.Sprintf("libvirt %s: %v", e.Procedure, e.Err)
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// CodeOf is libvirt's number of an error; 0 for any other error, and for none.
func CodeOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return 0
}

// IsLost tells whether an error came with the loss of the connection.
func IsLost(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Lost
}

// codeOf is the number in an error of the client library; 0 if there was no answer.
func codeOf(err error) int {
	if known, ok := errors.AsType[libvirt.Error](err); ok {
		return int(known.Code)
	}
	if errors.Is(err, libvirt.ErrUnsupported) {
		// The daemon is too old for the procedure.
		return NoSupport
	}
	return 0
}

var (
	errTimeout = errors.New("no answer in time, the connection was closed")
	errClosed  = errors.New("the connection is closed")
)
