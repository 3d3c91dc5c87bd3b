package vm

import (
	"testing"

	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers"
)

// TestV22_WhatAStateMeans: a machine that will not run by itself again is told apart from one on its way, whatever has stopped
// it, and why is said where libvirt knows.
func TestV22_WhatAStateMeans(t *testing.T) {
	for name, c := range map[string]struct {
		state   libvirt.DomainState
		reason  int32
		want    providers.State
		message string
	}{
		"runs":                   {libvirt.DomainRunning, int32(libvirt.DomainRunningBooted), providers.StateRunning, ""},
		"runs after a crash":     {libvirt.DomainRunning, int32(libvirt.DomainRunningCrashed), providers.StateRunning, ""},
		"begins":                 {libvirt.DomainNostate, 0, providers.StatePending, messageStarting},
		"waits for the host":     {libvirt.DomainBlocked, 0, providers.StatePending, messageStarting},
		"disk full":              {libvirt.DomainPaused, int32(libvirt.DomainPausedIoerror), providers.StateFailed, messageDiskFull},
		"paused by a person":     {libvirt.DomainPaused, int32(libvirt.DomainPausedUser), providers.StateStopped, messagePaused},
		"paused by a watchdog":   {libvirt.DomainPaused, int32(libvirt.DomainPausedWatchdog), providers.StateStopped, messagePaused},
		"panicked":               {libvirt.DomainPaused, int32(libvirt.DomainPausedCrashed), providers.StateFailed, messageCrashed},
		"starts up":              {libvirt.DomainPaused, int32(libvirt.DomainPausedStartingUp), providers.StatePending, messageStarting},
		"a snapshot is taken":    {libvirt.DomainPaused, int32(libvirt.DomainPausedSnapshot), providers.StatePending, messageStarting},
		"shuts down":             {libvirt.DomainShutdown, 0, providers.StatePending, messageStopping},
		"powered off":            {libvirt.DomainShutoff, int32(libvirt.DomainShutoffShutdown), providers.StateStopped, messageShutOff},
		"destroyed by hand":      {libvirt.DomainShutoff, int32(libvirt.DomainShutoffDestroyed), providers.StateStopped, messageShutOff},
		"its process was killed": {libvirt.DomainShutoff, int32(libvirt.DomainShutoffCrashed), providers.StateFailed, messageCrashed},
		"did not start":          {libvirt.DomainShutoff, int32(libvirt.DomainShutoffFailed), providers.StateFailed, messageNotStarted},
		"after a boot":           {libvirt.DomainShutoff, int32(libvirt.DomainShutoffUnknown), providers.StateStopped, messageIdle},
		"saved":                  {libvirt.DomainShutoff, int32(libvirt.DomainShutoffSaved), providers.StateStopped, messageShutOff},
		"crashed":                {libvirt.DomainCrashed, 0, providers.StateFailed, messageCrashed},
		"suspended":              {libvirt.DomainPmsuspended, 0, providers.StateStopped, messageSuspended},
		"a state of the future":  {99, 99, providers.StatePending, messageStarting},
	} {
		if state, message := judge(int32(c.state), c.reason); state != c.want || message != c.message {
			t.Errorf("%s: %s %q, want %s %q", name, state, message, c.want, c.message)
		}
	}
}
