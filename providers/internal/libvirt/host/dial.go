package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// DialLimit bounds a whole dial: SSH, libvirt, and the question who it is.
const DialLimit = 20 * time.Second

// dial opens a connection to the host and makes sure that it is the same machine as before.
func (h *Host) dial(ctx context.Context) (*rpc.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, DialLimit)
	defer cancel()
	auth, err := h.auth(ctx)
	if err != nil {
		return nil, fmt.Errorf("get the SSH key of host %s: %w", h.config.Name, err)
	}
	stream, err := sshdial.Dial(ctx, sshdial.Target{
		Address: h.config.Address, Port: h.config.Port, User: h.config.User, Socket: h.config.Socket,
	}, auth)
	if err != nil {
		if refused, ok := errors.AsType[*sshdial.Error](err); ok && refused.Credentials() && h.options.Refused != nil {
			h.options.Refused()
		}
		return nil, fmt.Errorf("dial host %s: %w", h.config.Name, err)
	}
	conn, err := rpc.Open(ctx, stream, h.config.URI, rpc.Options{Host: h.config.Name, Spans: h.options.Spans, Observe: h.options.Observe})
	if err != nil {
		return nil, fmt.Errorf("open %s on host %s: %w", h.config.URI, h.config.Name, err)
	}
	if err := h.identify(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// identify compares the machine with the one that was there first. Without this a host that was replaced, or an address
// that moved, would make all of its machines look deleted.
func (h *Host) identify(ctx context.Context, conn *rpc.Conn) error {
	capabilities, err := conn.Capabilities(ctx)
	if err != nil {
		return fmt.Errorf("identify host %s: %w", h.config.Name, err)
	}
	uuid, err := virtxml.HostUUID(capabilities)
	if err != nil {
		return fmt.Errorf("identify host %s: %w", h.config.Name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uuid == "" {
		h.uuid = uuid
	}
	if h.uuid != uuid {
		return fmt.Errorf("host %s: %w: its UUID is %q, it was %q", h.config.Name, ErrOtherMachine, uuid, h.uuid)
	}
	return nil
}
