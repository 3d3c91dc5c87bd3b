package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

const (
	// MaxCalls on the shared connection at once. libvirtd works on five of one connection at a time and lets the rest wait
	// where nobody sees it; the fifth is the watchdog's.
	MaxCalls = 4
	// WatchPeriod is the time between two looks at the shared connection. They cover what SSH's own keepalive does not: an
	// sshd that is fine before a libvirtd that hangs.
	WatchPeriod = 10 * time.Second
	// WatchLimit is how long a look may take before the connection is closed.
	WatchLimit = 5 * time.Second
)

// Config is a host of a class, complete.
type Config struct {
	// Name of the host in the class.
	Name string
	// Address and Port of its SSH server.
	Address string
	Port    int
	User    string
	// Socket is the path of libvirt's socket on the host, URI the driver behind it.
	Socket, URI string
	// Pool for volumes. Machines are on Bridge, or where that is empty on libvirt's network Network.
	Pool, Bridge, Network string
}

// Options of a host.
type Options struct {
	Clock  clock.WithTicker
	Logger logr.Logger
	// Spans and Observe are those of rpc.Options.
	Spans   bool
	Observe func(procedure string, code int, took time.Duration)
	// Refused is told when a dial has failed for its credentials; nil when nobody needs to know.
	Refused func()
}

var (
	// ErrClosed is the error of calls after Close.
	ErrClosed = errors.New("the connections of the host are closed")
	// ErrOtherMachine says that a machine answers that is not the one that was there before. Nothing it says is about our
	// machines. It stays an error until the process is started again.
	ErrOtherMachine = errors.New("another machine answers under the host's name")

	errSilent = errors.New("the host does not answer")
)

// Host is one hypervisor host. Its methods may be called at the same time.
type Host struct {
	config  Config
	auth    sshdial.Source
	options Options
	slots   chan struct{}
	// ctx ends with Close.
	ctx  context.Context
	stop context.CancelFunc

	mu      sync.Mutex
	conn    *rpc.Conn
	attempt *attempt
	backoff backoff
	checked bool
	err     error
	uuid    string
	all     map[*rpc.Conn]struct{}
	wg      sync.WaitGroup
}

// attempt is a dial for all who wait for it.
type attempt struct {
	done chan struct{}
	conn *rpc.Conn
	err  error
}

// New makes a host. Nothing is dialled before it is used.
func New(cfg Config, auth sshdial.Source, o Options) *Host {
	h := &Host{config: cfg, auth: auth, options: o, slots: make(chan struct{}, MaxCalls), all: map[*rpc.Conn]struct{}{}}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Do makes calls on the shared connection. It waits for a place among the MaxCalls, and for the connection. The error is
// call's own, or the one that kept it from being called; one of these wraps *sshdial.Error, *rpc.Error or ErrOtherMachine.
func (h *Host) Do(ctx context.Context, call func(*rpc.Conn) error) error {
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("wait for a call to host %s: %w", h.config.Name, ctx.Err())
	case <-h.ctx.Done():
		return ErrClosed
	}
	defer func() { <-h.slots }()
	conn, err := h.shared(ctx)
	if err != nil {
		return err
	}
	defer h.forget(conn)
	return call(conn)
}

// Dedicated opens a connection of the caller's own, which the caller closes; Close of the host closes it, too. While the
// host is down it fails at once like Do.
func (h *Host) Dedicated(ctx context.Context) (*rpc.Conn, error) {
	h.mu.Lock()
	if err := h.refused(); err != nil {
		h.mu.Unlock()
		return nil, err
	}
	h.wg.Add(1)
	h.mu.Unlock()
	defer h.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(h.ctx, cancel)()
	conn, err := h.dial(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		// A caller who gives up says nothing about the host, and neither does one dial beside a connection that works.
		if ctx.Err() == nil && (h.conn == nil || h.conn.Lost()) {
			h.down(err)
		}
		return nil, err
	}
	if h.ctx.Err() != nil {
		conn.Abort(ErrClosed)
		return nil, ErrClosed
	}
	h.up()
	h.keep(conn)
	return conn, nil
}

// State is what the last calls have found: whether there is an outcome at all, and why the host cannot be used.
func (h *Host) State() (checked bool, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lose()
	return h.checked, h.err
}

// UUID is the host's own, from its capabilities; "" as long as it is not known, or where the host has none.
func (h *Host) UUID() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.uuid
}

// Close ends all connections. Calls under way are lost.
func (h *Host) Close() error {
	h.stop()
	h.mu.Lock()
	var wg sync.WaitGroup
	for conn := range h.all {
		wg.Go(func() { _ = conn.Close() })
	}
	h.mu.Unlock()
	wg.Wait()
	h.wg.Wait()
	return nil
}

// shared is the shared connection. Who comes while it is being dialled waits for that.
func (h *Host) shared(ctx context.Context) (*rpc.Conn, error) {
	h.mu.Lock()
	h.lose()
	if h.conn != nil {
		defer h.mu.Unlock()
		return h.conn, nil
	}
	a := h.attempt
	if a == nil {
		if err := h.refused(); err != nil {
			h.mu.Unlock()
			return nil, err
		}
		a = &attempt{done: make(chan struct{})}
		h.attempt = a
		// The dial is not the first caller's alone, so it does not end with that one's context; its span does.
		dialCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		stop := context.AfterFunc(h.ctx, cancel)
		h.wg.Go(func() {
			defer cancel()
			defer stop()
			h.connect(dialCtx, a)
		})
	}
	h.mu.Unlock()
	select {
	case <-a.done:
		return a.conn, a.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the connection to host %s: %w", h.config.Name, ctx.Err())
	}
}

// connect makes one attempt at the shared connection.
func (h *Host) connect(ctx context.Context, a *attempt) {
	conn, err := h.dial(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	defer close(a.done)
	h.attempt = nil
	if h.ctx.Err() != nil {
		if err == nil {
			conn.Abort(ErrClosed)
		}
		a.err = ErrClosed
		return
	}
	if err != nil {
		a.err = err
		h.down(err)
		return
	}
	a.conn, h.conn = conn, conn
	h.keep(conn)
	h.up()
}

// refused is why there is no dial now; nil when there may be one. The lock is held.
func (h *Host) refused() error {
	if h.ctx.Err() != nil {
		return ErrClosed
	}
	if h.err != nil && h.backoff.waits(h.options.Clock.Now()) {
		return fmt.Errorf("host %s is down, it is tried again later: %w", h.config.Name, h.err)
	}
	return nil
}

// forget drops a connection that was lost.
func (h *Host) forget(conn *rpc.Conn) {
	if !conn.Lost() {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn == conn {
		h.lose()
	}
}

// lose drops the shared connection if it is lost. The next caller dials at once. The lock is held.
func (h *Host) lose() {
	if h.conn == nil || !h.conn.Lost() {
		return
	}
	if h.checked = true; h.err == nil {
		// A dial of somebody else's that has failed meanwhile says more.
		h.err = fmt.Errorf("the connection to host %s was lost: %w", h.config.Name, h.conn.Cause())
	}
	h.options.Logger.Info("Lost the connection to a host", "host", h.config.Name, "cause", h.conn.Cause().Error())
	h.conn = nil
}

// down notes a failed dial. The lock is held.
func (h *Host) down(err error) {
	h.checked, h.err = true, err
	pause := h.backoff.failed(h.options.Clock.Now())
	h.options.Logger.Info("Cannot connect to a host", "host", h.config.Name, "error", err.Error(), "retryAfter", pause.String())
}

// up notes that the host can be used. The lock is held.
func (h *Host) up() {
	h.checked, h.err = true, nil
	h.backoff = backoff{}
}

// keep remembers a connection for Close as long as it lives. The lock is held.
func (h *Host) keep(conn *rpc.Conn) {
	h.all[conn] = struct{}{}
	h.wg.Go(func() {
		<-conn.Done()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.all, conn)
	})
}
