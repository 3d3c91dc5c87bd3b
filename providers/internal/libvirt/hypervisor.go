package libvirt

import (
	"context"
	"errors"
	"sync"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/vm"
)

// fullFor is how long a host that had no room is left out where there is a choice.
const fullFor = 2 * time.Minute

// hypervisor is one host of a class.
type hypervisor struct {
	p      *Provider
	config host.Config
	// control makes the calls, guest those that a guest can hold up.
	control, guest *host.Host
	engine         *vm.Engine
	metrics        *metrics
	watchdogs      sync.WaitGroup

	mu      sync.Mutex
	checked bool
	err     error
	free    int64
	fullAt  time.Time
}

func newHypervisor(p *Provider, config host.Config, lost *vm.Lost, auth sshdial.Source, refused func(), m *metrics) *hypervisor {
	h := &hypervisor{p: p, config: config, metrics: m, free: -1}
	m.space.hold(h.series())
	o := host.Options{Clock: p.rt.Clock, Logger: p.rt.Logger, Spans: p.policy.Spans, Observe: m.observe(p.policy.Type), Refused: refused}
	h.control, h.guest = host.New(config, auth, o), host.New(config, auth, o)
	for _, watched := range []*host.Host{h.control, h.guest} {
		// It ends with the host's Close.
		h.watchdogs.Go(func() { watched.Run(context.Background()) })
	}
	h.engine = vm.New(vm.Options{
		Policy: p.policy.VM, Provider: p.policy.Type, Class: p.class, ClusterID: p.rt.ClusterID, Host: config,
		Control: h.control, Guest: h.guest, Images: p.store, DomainType: p.domainType, DiskBytes: p.diskBytes,
		VendorData: p.vendorData, InstallGuestAgent: p.installGuestAgent, Lost: lost, Clock: p.rt.Clock, Logger: p.rt.Logger, Wake: p.wake,
	})
	return h
}

func (h *hypervisor) series() series { return series{h.p.policy.Type, h.p.class, h.config.Name} }

// full notes that the host had no room for a machine.
func (h *hypervisor) full() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fullAt = h.p.rt.Clock.Now()
}

func (h *hypervisor) room() room {
	h.mu.Lock()
	defer h.mu.Unlock()
	full := !h.fullAt.IsZero() && h.p.rt.Clock.Since(h.fullAt) < fullFor
	return room{host: h.config.Name, free: h.free, down: full || h.checked && h.err != nil}
}

// check looks whether machines could be made here, and notes what it finds.
func (h *hypervisor) check(ctx context.Context) error {
	free, err := h.look(ctx)
	err = fault.Classify("check the host", err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tell(err)
	h.checked, h.err = true, err
	if err == nil {
		// Less than nothing, where thin disks are promised more than there is, is not unknown.
		h.free = max(0, free)
		h.metrics.space.set(h.series(), free)
	}
	return err
}

// tell logs when it changes whether the host can be used, or why not: the class is ready as long as another host is, and its
// status has no more than a word. The lock is held.
func (h *hypervisor) tell(err error) {
	switch log := h.p.rt.Logger.WithValues("class", h.p.class, "host", h.config.Name); {
	case providers.StableMessage(err) == providers.StableMessage(h.err):
	case err != nil:
		log.Info("A host of the class cannot be used", "reason", providers.ReasonOf(err), "error", providers.RawText(err))
	default:
		log.Info("A host of the class can be used again")
	}
}

func (h *hypervisor) look(ctx context.Context) (int64, error) {
	inspect := func(c *rpc.Conn) error { return h.inspect(ctx, c) }
	if h.p.policy.SeparateChecks {
		c, err := h.control.Dedicated(ctx)
		if err != nil {
			return 0, err
		}
		err = inspect(c)
		if err := errors.Join(err, c.Close()); err != nil {
			return 0, err
		}
	} else if err := h.control.Do(ctx, inspect); err != nil {
		return 0, err
	}
	if err := errors.Join(h.engine.Tidy(ctx), h.engine.Notice(ctx)); err != nil {
		return 0, err
	}
	return h.engine.Free(ctx)
}

// Messages about a host.
const (
	messagePoolInactive    = "the storage pool of the host is not active"
	messageNetworkInactive = "the network of the host is not active"
	messageNoVirtual       = "the host has no hardware virtualization for domainType kvm: is /dev/kvm there?"
)

// inspect looks at what every machine needs.
func (h *hypervisor) inspect(ctx context.Context, c *rpc.Conn) error {
	if _, err := c.LibVersion(ctx); err != nil {
		return err
	}
	pool, err := c.PoolLookupByName(ctx, h.config.Pool)
	if err != nil {
		return err
	}
	info, err := c.PoolInfo(ctx, pool)
	if err != nil {
		return err
	}
	if !info.Active {
		return providers.NewError(providers.Unavailable, "", messagePoolInactive, nil)
	}
	if h.config.Bridge == "" {
		active, err := c.NetworkActive(ctx, h.config.Network)
		if err != nil {
			return err
		}
		if !active {
			return providers.NewError(providers.Unavailable, "", messageNetworkInactive, nil)
		}
	}
	if h.p.domainType != DefaultDomainType {
		return nil
	}
	_, err = c.DomainCapabilities(ctx, h.p.domainType)
	switch rpc.CodeOf(err) {
	case 0:
		return err
	case rpc.NoSupport:
		// The driver does not tell.
		return nil
	}
	return providers.NewError(providers.Unavailable, "", messageNoVirtual, err)
}

// close ends the builds first: they need the connections.
func (h *hypervisor) close() error {
	h.engine.Close()
	h.metrics.space.release(h.series())
	err := errors.Join(h.control.Close(), h.guest.Close())
	h.watchdogs.Wait()
	return err
}

// state is what the last check has found.
func (h *hypervisor) state() providers.HostState {
	h.mu.Lock()
	defer h.mu.Unlock()
	return providers.HostState{Name: h.config.Name, Checked: h.checked, Err: h.err}
}

// Check implements providers.Provider: it looks at every host, and fails when none can be used.
func (p *Provider) Check(ctx context.Context) error {
	var failed error
	for _, a := range each(p, func(h *hypervisor) (struct{}, error) { return struct{}{}, h.check(ctx) }) {
		if a.err == nil {
			return nil
		}
		// A key that is refused says more than a host that is off.
		if failed == nil || providers.ReasonOf(a.err) == providers.Auth {
			failed = a.err
		}
	}
	return failed
}

// Hosts implements providers.HostReporter.
func (p *Provider) Hosts() []providers.HostState {
	out := make([]providers.HostState, 0, len(p.names))
	for _, name := range p.names {
		out = append(out, p.hosts[name].state())
	}
	return out
}
