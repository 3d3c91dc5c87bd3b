package libvirt

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/vm"
)

// eventBuffer is how many events may wait for a reader. What does not fit is dropped: everything is polled as well.
const eventBuffer = 1024

// Provider is one class.
type Provider struct {
	settings
	policy Policy
	rt     providers.Runtime
	store  *images.Store
	hosts  map[string]*hypervisor
	// names of the hosts, in the order of the class.
	names  []string
	events chan event.TypedGenericEvent[providers.Owner]
	close  sync.Once
}

var (
	_ providers.Provider     = &Provider{}
	_ providers.Eventer      = &Provider{}
	_ providers.HostReporter = &Provider{}
)

func newProvider(f *Factory, rt providers.Runtime, s settings, m *metrics) *Provider {
	p := &Provider{
		settings: s, policy: f.Policy, rt: rt, hosts: map[string]*hypervisor{},
		events: make(chan event.TypedGenericEvent[providers.Owner], eventBuffer),
	}
	client := f.HTTP
	if client == nil {
		client = &http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}
	}
	p.store = images.New(images.Options{
		Prefix: string(f.Policy.Type) + "-base-", Clock: rt.Clock, HTTP: client, Logger: rt.Logger, Open: p.openForImages,
		Wake: p.imageArrived, Metrics: m.images,
	})
	auth, refused := f.credentials(s, rt)
	for _, config := range s.hosts {
		p.hosts[config.Name] = newHypervisor(p, config, f.lostOn(config), auth, refused, m)
		p.names = append(p.names, config.Name)
	}
	return p
}

// imageArrived wakes those who wait for an image.
func (p *Provider) imageArrived(host, _ string) {
	if h := p.hosts[host]; h != nil {
		h.engine.ImageArrived()
	}
}

// openForImages gives a download a connection of its own: nothing else waits behind gigabytes.
func (p *Provider) openForImages(ctx context.Context, name string) (images.Volumes, func() error, error) {
	h, err := p.host(name)
	if err != nil {
		return nil, nil, err
	}
	c, err := h.control.Dedicated(ctx)
	if err != nil {
		return nil, nil, fault.Classify("download the image", err)
	}
	return c, c.Close, nil
}

// Events implements providers.Eventer.
func (p *Provider) Events() <-chan event.TypedGenericEvent[providers.Owner] { return p.events }

func (p *Provider) wake(owner providers.Owner) {
	select {
	case p.events <- event.TypedGenericEvent[providers.Owner]{Object: owner}:
	default:
	}
}

// host finds a host. One that the class does not name any more cannot be asked: where it is and how to get in was written
// there.
func (p *Provider) host(name string) (*hypervisor, error) {
	if h := p.hosts[name]; h != nil {
		return h, nil
	}
	return nil, providers.NewError(providers.Unavailable, "", "the class does not name the host of the machine any more", nil)
}

// Create implements providers.Provider.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (receipt providers.Receipt, err error) {
	size, image, err := p.resolve(&req.Spec)
	if err != nil {
		return receipt, err
	}
	if err := checkUserData(req.UserData); err != nil {
		return receipt, err
	}
	h := p.hosts[req.Zone]
	if h == nil {
		return receipt, providers.InvalidField(fieldZone, "names no host of the class")
	}
	receipt.Operation, err = h.engine.Create(ctx, vm.Request{
		Name: req.Name, Owner: req.Owner, Hash: req.Hash, Attempt: req.Attempt, CPUs: size.cpus, MemoryBytes: size.memoryBytes,
		Image: image, UserData: append([]byte(nil), req.UserData...),
	})
	if providers.ReasonOf(err) == providers.Capacity {
		h.full()
	}
	return receipt, p.inClass(err)
}

// inClass completes an error of a host for the class. One of several hosts that does not answer is not the class's failure;
// and the path of a field of the class is completed: of a Proxy, the class is the field.
func (p *Provider) inClass(err error) error {
	known, ok := errors.AsType[*providers.Error](err)
	if ok && len(p.names) > 1 && (known.Reason == providers.Unavailable || known.Reason == providers.Auth) {
		local := *known
		local.Local = true
		return &local
	}
	if !ok || known.Reason != providers.InvalidSpec && known.Outcome != providers.InvalidSpec || known.Field == fieldClass || len(known.Field) > 4 && known.Field[:5] == "spec." {
		return err
	}
	whole := *known
	whole.Message = "spec." + string(p.policy.Type) + "." + known.Field + " of the class: " + known.Message
	whole.Field = fieldClass
	return &whole
}

// Get implements providers.Provider.
func (p *Provider) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	if ref.Zone != "" {
		h, err := p.host(ref.Zone)
		if err != nil {
			return providers.Instance{}, err
		}
		i, err := h.engine.Get(ctx, ref)
		return i, p.inClass(err)
	}
	answers := each(p, func(h *hypervisor) (providers.Instance, error) { return h.engine.Get(ctx, ref) })
	var missing error
	answered := false
	for _, a := range answers {
		answered = answered || a.err == nil || providers.IsNotFound(a.err)
		if a.err == nil && a.value.Owner.ClusterID == p.rt.ClusterID {
			return a.value, nil
		}
		if !providers.IsNotFound(a.err) {
			missing = a.err
		}
	}
	for _, a := range answers {
		if a.err == nil {
			return a.value, nil
		}
	}
	if missing == nil {
		return providers.Instance{}, answers[0].err
	}
	missing = p.inClass(missing)
	if known, ok := errors.AsType[*providers.Error](missing); ok && answered {
		partial := *known
		partial.Partial = true
		missing = &partial
	}
	return providers.Instance{}, missing
}

// Delete implements providers.Provider.
func (p *Provider) Delete(ctx context.Context, ref providers.Ref) error {
	zone := ref.Zone
	if zone == "" {
		i, err := p.Get(ctx, providers.Ref{Namespace: ref.Namespace, Name: ref.Name})
		if err != nil {
			return err
		}
		zone = i.Zone
	}
	h, err := p.host(zone)
	if err != nil {
		return err
	}
	return p.inClass(h.engine.Delete(ctx, ref.Name, ref.ID))
}

// List implements providers.Provider. All hosts must answer: a host that is down may have machines.
func (p *Provider) List(ctx context.Context) ([]providers.Instance, error) {
	var out []providers.Instance
	for _, a := range each(p, func(h *hypervisor) ([]providers.Instance, error) { return h.engine.List(ctx) }) {
		if a.err != nil {
			return nil, p.inClass(a.err)
		}
		out = append(out, a.value...)
	}
	return out, nil
}

// answer of one host.
type answer[T any] struct {
	value T
	err   error
}

// each asks all hosts at once, so that one that is slow does not take the time of the others.
func each[T any](p *Provider, ask func(*hypervisor) (T, error)) []answer[T] {
	out := make([]answer[T], len(p.names))
	var wg sync.WaitGroup
	for i, name := range p.names {
		wg.Go(func() { out[i].value, out[i].err = ask(p.hosts[name]) })
	}
	wg.Wait()
	return out
}

// Close implements providers.Provider.
func (p *Provider) Close() error {
	p.close.Do(func() {
		p.store.Close()
		each(p, func(h *hypervisor) (struct{}, error) { return struct{}{}, h.close() })
	})
	return nil
}
