package host

import (
	"context"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// Run looks after the shared connection until ctx ends or the host is closed: one that is half dead is closed, and a host
// that was in use and is down is tried again, so that State tells when it is back.
func (h *Host) Run(ctx context.Context) {
	ticker := h.options.Clock.NewTicker(WatchPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
			h.watch(ctx)
		case <-ctx.Done():
			return
		case <-h.ctx.Done():
			return
		}
	}
}

// watch takes one look. It takes none of the callers' places: they may all be stuck.
func (h *Host) watch(ctx context.Context) {
	h.mu.Lock()
	h.lose()
	conn, used := h.conn, h.checked
	h.mu.Unlock()
	if conn == nil {
		if used {
			// Its outcome is in State, and in the log.
			_, _ = h.shared(ctx)
		}
		return
	}
	if !h.answers(ctx, conn) && ctx.Err() == nil && h.ctx.Err() == nil {
		conn.Abort(errSilent)
		h.forget(conn)
	}
}

// answers tells whether the connection is alive: an error of the daemon's is an answer, too. The limit is one of I/O, and so
// of real time.
func (h *Host) answers(ctx context.Context, conn *rpc.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, WatchLimit)
	defer cancel()
	_, err := conn.LibVersion(ctx)
	return err == nil || rpc.CodeOf(err) != 0
}
