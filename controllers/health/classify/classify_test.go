package classify_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

func errno(n syscall.Errno) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", n)}
}

// Trouble of this process or host is never held against a proxy.
func TestE37_LocalErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		stage  probe.Stage
		err    error
		reason string
	}{
		{"E37 file descriptors of the process", probe.StageDial, errno(syscall.EMFILE), classify.ReasonLocalResources},
		{"E37 file descriptors of the host", probe.StageDial, errno(syscall.ENFILE), classify.ReasonLocalResources},
		{"E37 ports", probe.StageDial, errno(syscall.EADDRNOTAVAIL), classify.ReasonLocalResources},
		{"E37 buffers", probe.StageDial, errno(syscall.ENOBUFS), classify.ReasonLocalResources},
		{"no route", probe.StageDial, errno(syscall.ENETUNREACH), classify.ReasonLocalNetwork},
		{"forbidden by a local firewall", probe.StageDial, errno(syscall.EPERM), classify.ReasonLocalNetwork},
		{"resolver does not answer", probe.StageResolve, &net.DNSError{Err: "timeout", IsTimeout: true}, classify.ReasonLocalResolver},
		{"resolver fails", probe.StageResolve, &net.DNSError{Err: "server misbehaving", IsTemporary: true}, classify.ReasonLocalResolver},
		{"shutdown", probe.StageTLS, fmt.Errorf("probe cancelled: %w", context.Canceled), classify.ReasonCancelled},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := classify.Classify(probe.Result{Stage: tc.stage, Err: tc.err}, classify.Expect{})
			if o.Class != classify.Local || o.Reason != tc.reason {
				t.Errorf("got %s %s", o.Class, o.Reason)
			}
		})
	}
}

func TestDialFailures(t *testing.T) {
	for _, tc := range []struct {
		stage   probe.Stage
		err     error
		reason  string
		timeout bool
	}{
		{probe.StageDial, errno(syscall.ECONNREFUSED), classify.ReasonConnectionRefused, false},
		{probe.StageDial, errno(syscall.EHOSTUNREACH), classify.ReasonConnectionFailed, false},
		{probe.StageDial, errno(syscall.ECONNRESET), classify.ReasonConnectionFailed, false},
		{probe.StageDial, errno(syscall.ETIMEDOUT), classify.ReasonDialTimeout, true},
		{probe.StageDial, context.DeadlineExceeded, classify.ReasonDialTimeout, true},
		{probe.StageResolve, &net.DNSError{Err: "no such host", IsNotFound: true}, classify.ReasonNameNotResolved, false},
		// The same number from the other side of a connection is not ours.
		{probe.StageConnect, errno(syscall.EPERM), classify.ReasonConnectClosed, false},
	} {
		o := classify.Classify(probe.Result{Stage: tc.stage, Err: tc.err}, classify.Expect{})
		if o.Class != classify.Failure || o.Reason != tc.reason || o.Timeout != tc.timeout || o.AboutTarget != (tc.stage == probe.StageConnect) {
			t.Errorf("%v: got %+v", tc.err, o)
		}
	}
}

// Nothing of what a proxy or target sent, and no error text, gets into a message.
func TestE48_MessagesAreOurs(t *testing.T) {
	const foreign = "<b>SECRET</b>"
	for stage := probe.StageResolve; stage <= probe.StageDone; stage++ {
		for _, err := range []error{errors.New(foreign), fmt.Errorf("%s: %w", foreign, probe.ErrNotATunnel), fmt.Errorf("%s: %w", foreign, os.ErrDeadlineExceeded), nil} {
			for _, code := range []int{0, 200, 302, 403, 407, 429, 503} {
				r := probe.Result{Stage: stage, Err: err, Code: code, Body: []byte(foreign)}
				for _, expect := range []classify.Expect{{}, {Strict: true, BodyContains: "x"}} {
					if o := classify.Classify(r, expect); strings.Contains(o.Message+o.Reason, "SECRET") || o.Reason == "" {
						t.Errorf("stage %s, code %d: %s: %s", stage, code, o.Reason, o.Message)
					}
				}
			}
		}
	}
}
