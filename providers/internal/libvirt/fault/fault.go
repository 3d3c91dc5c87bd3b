// Package fault sorts what goes wrong on the way to a host, and on it, into the taxonomy of providers.
package fault

import (
	"context"
	"errors"
	"strings"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

// Messages of errors.
const (
	// MessageNoSpace is also what a look beforehand says.
	MessageNoSpace    = "the storage pool of the host has no space left for the disk"
	messageNoPool     = "the storage pool of the host is missing or not active"
	messageNoNetwork  = "the network of the host is missing or not active"
	messageNoVolume   = "a volume of the machine is missing on the host"
	messageNoMemory   = "the host has no memory left for the machine"
	messageUser       = "libvirt refuses the user of the host: the user must be in the group libvirt, or polkit must admit it"
	messageDenied     = "the host's QEMU may not read a file of the machine: see AppArmor, SELinux and the rights of the storage pool"
	messageDefinition = "the host refuses the definition of the machine: see domainType, machineTypes, network and bridge of the class"
	messageOther      = "another machine answers under the address of the host: it was installed anew or replaced; restart the provider manager if that is right"
	messageClosing    = "the provider of the class is closing"
	// messageLost is one for a host that does not answer and a connection that was just lost: one follows the other.
	messageLost       = "the host cannot be reached over SSH, or its libvirtd does not answer: check address, port and network, and that both run"
	messageUnexpected = "the host has answered with an error, see the log of the provider manager"
)

// fieldClass is how the class is named in errors about a Proxy.
const fieldClass = "spec.provider"

// Classify turns any error of a call to a host into one of the taxonomy; nil stays nil. It never gives NotFound: only the
// look-up of a domain may, see vm.Engine.
func Classify(op string, err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*providers.Error](err); ok {
		return known
	}
	if refused, ok := errors.AsType[*sshdial.Error](err); ok {
		reason := providers.Unavailable
		if refused.Credentials() {
			reason = providers.Auth
		}
		message := refused.Kind.Message()
		if refused.Kind == sshdial.Unreachable {
			message = messageLost
		}
		return providers.NewError(reason, op, message, err)
	}
	switch {
	case errors.Is(err, host.ErrOtherMachine):
		return providers.NewError(providers.Unavailable, op, messageOther, err)
	case errors.Is(err, host.ErrClosed):
		return providers.NewError(providers.Unavailable, op, messageClosing, err)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || rpc.CodeOf(err) == 0 {
		return providers.NewError(providers.Unavailable, op, messageLost, err)
	}
	reason, message := classifyCode(rpc.CodeOf(err), err.Error())
	known := providers.NewError(reason, op, message, err)
	if reason == providers.InvalidSpec {
		known.Field = fieldClass
	}
	return known
}

// classifyCode is the table of libvirt's codes. A lack on the host (pool, network, a right) is one of capacity: another host
// may have it, waiting may help, and the class as a whole works.
func classifyCode(code int, text string) (providers.Reason, string) {
	switch code {
	case rpc.NoPool, rpc.InvalidPool:
		return providers.Capacity, messageNoPool
	case rpc.NoNetwork, rpc.InvalidNetwork:
		return providers.Capacity, messageNoNetwork
	case rpc.AuthFailed, rpc.AuthCancelled, rpc.AccessDenied, rpc.AuthUnavailable:
		return providers.Auth, messageUser
	case rpc.NoVolume:
		return providers.Capacity, messageNoVolume
	case rpc.XMLError, rpc.XMLDetail, rpc.XMLInvalidSchema, rpc.ConfigUnsupported, rpc.InvalidArg, rpc.NoSupport:
		return providers.InvalidSpec, messageDefinition
	}
	text = strings.ToLower(text)
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(text, part) {
				return true
			}
		}
		return false
	}
	switch {
	case has("no space left", "not enough free space", "disk quota exceeded"):
		return providers.Capacity, MessageNoSpace
	case has("cannot allocate memory", "cannot set up guest memory", "out of memory"):
		return providers.Capacity, messageNoMemory
	case has("permission denied"):
		return providers.Capacity, messageDenied
	case has("storage pool") && has("not active"):
		return providers.Capacity, messageNoPool
	case has("network") && has("not active"), has("cannot get interface mtu", "no such device", "network bridge"):
		return providers.Capacity, messageNoNetwork
	}
	return providers.Unavailable, messageUnexpected
}
