package vm

import (
	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Messages of instances. They name nothing, since they are the same for all machines in one situation.
const (
	messageStarting   = "the machine is starting"
	messageElsewhere  = "the machine is being made"
	messageIdle       = "the machine does not run: it was shut off, or its making was interrupted"
	messageShutOff    = "the machine was shut off"
	messageCrashed    = "the machine has crashed or was killed"
	messageNotStarted = "the host could not start the machine"
	messageDiskFull   = "the machine is paused: the host has no space left for its disk"
	messagePaused     = "the machine was paused"
	messageSuspended  = "the guest has suspended the machine"
	messageStopping   = "the machine is shutting down"
)

// judge is what a domain's state means. libvirt's state and reason are those of DomainGetState. A machine that is shut off
// will not run by itself again: what may still start it (a build, the host's autostart) is the caller's to know.
func judge(state, reason int32) (providers.State, string) {
	switch libvirt.DomainState(state) {
	case libvirt.DomainRunning:
		return providers.StateRunning, ""
	case libvirt.DomainNostate, libvirt.DomainBlocked:
		return providers.StatePending, messageStarting
	case libvirt.DomainPaused:
		return judgePaused(libvirt.DomainPausedReason(reason))
	case libvirt.DomainShutdown:
		// It ends in shut off, or hangs; too long in it, and the operator replaces it.
		return providers.StatePending, messageStopping
	case libvirt.DomainShutoff:
		switch libvirt.DomainShutoffReason(reason) {
		case libvirt.DomainShutoffCrashed:
			return providers.StateFailed, messageCrashed
		case libvirt.DomainShutoffFailed:
			return providers.StateFailed, messageNotStarted
		case libvirt.DomainShutoffUnknown:
			return providers.StateStopped, messageIdle
		}
		return providers.StateStopped, messageShutOff
	case libvirt.DomainCrashed:
		return providers.StateFailed, messageCrashed
	case libvirt.DomainPmsuspended:
		return providers.StateStopped, messageSuspended
	}
	return providers.StatePending, messageStarting
}

func judgePaused(reason libvirt.DomainPausedReason) (providers.State, string) {
	switch reason {
	case libvirt.DomainPausedIoerror:
		return providers.StateFailed, messageDiskFull
	case libvirt.DomainPausedStartingUp, libvirt.DomainPausedMigration, libvirt.DomainPausedSave, libvirt.DomainPausedDump,
		libvirt.DomainPausedFromSnapshot, libvirt.DomainPausedSnapshot, libvirt.DomainPausedShuttingDown:
		return providers.StatePending, messageStarting
	case libvirt.DomainPausedCrashed:
		return providers.StateFailed, messageCrashed
	}
	// A person has paused it, and may go on with it: nothing tells how long.
	return providers.StateStopped, messagePaused
}
