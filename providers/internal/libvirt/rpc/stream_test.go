package rpc_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// TestWhatIsNotLibvirtIsRefusedAtOnce: a wrong socket costs neither memory nor the process.
func TestWhatIsNotLibvirtIsRefusedAtOnce(t *testing.T) {
	for name, answer := range map[string][]byte{
		"text":               []byte("HTTP/1.1 400 Bad Request\r\n\r\n"),
		"too short a length": binary.BigEndian.AppendUint32(nil, 3),
		"zeros":              make([]byte, 64),
		"nothing":            nil,
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			near, far := net.Pipe()
			go func() {
				_, _ = far.Read(make([]byte, 4096))
				_, _ = far.Write(answer)
				_ = far.Close()
			}()
			_, err := rpc.Open(t.Context(), near, libvirttest.URI, rpc.Options{})
			if !rpc.IsLost(err) || rpc.CodeOf(err) != 0 {
				t.Errorf("%v, want a lost connection", err)
			}
			if name == "text" && !strings.Contains(err.Error(), "not libvirt") {
				t.Errorf("%v does not say what is wrong", err)
			}
		})
	}
}

// TestOpenEndsWithItsContextAndWithItsLimit: on a far side that takes everything and says nothing.
func TestOpenEndsWithItsContextAndWithItsLimit(t *testing.T) {
	for name, test := range map[string]struct {
		context, limit time.Duration
		lost           bool
	}{
		"context": {context: 50 * time.Millisecond, limit: time.Hour},
		"limit":   {context: time.Hour, limit: 50 * time.Millisecond, lost: true},
	} {
		t.Run(name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			ctx, cancel := context.WithTimeout(t.Context(), test.context)
			defer cancel()
			_, err := rpc.Open(ctx, near, libvirttest.URI, rpc.Options{CallTimeout: test.limit})
			if err == nil || rpc.IsLost(err) != test.lost || errors.Is(err, context.DeadlineExceeded) == test.lost {
				t.Errorf("%v", err)
			}
			if _, err := far.Read(make([]byte, 1)); err == nil {
				t.Error("the connection is open")
			}
		})
	}
}
