package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// InvalidImage as spec.placement.image is what ValidateSpec refuses.
const InvalidImage = "invalid"

var (
	errReplyLost = errors.New("the reply was lost")
	errClosed    = errors.New("the provider is closed")
)

// Factory opens Providers on a Cloud. It implements providers.Factory, providers.Timed and providers.Limited.
type Factory struct {
	Cloud *Cloud
	// ProviderType is what Type answers; empty means kubernetes.
	ProviderType v1alpha1.ProviderType
	// Times are what Timing answers; zero fields mean the default.
	Times providers.Timing
	// Rate is what Limits answers; zero fields mean the default.
	Rate providers.Limits
}

// Type implements providers.Factory.
func (f *Factory) Type() v1alpha1.ProviderType {
	if f.ProviderType == "" {
		return v1alpha1.ProviderKubernetes
	}
	return f.ProviderType
}

// Timing implements providers.Timed.
func (f *Factory) Timing() providers.Timing { return f.Times }

// Limits implements providers.Limited.
func (f *Factory) Limits() providers.Limits { return f.Rate }

// Validate implements providers.Factory.
func (f *Factory) Validate(*v1alpha1.ProviderClass) field.ErrorList {
	f.Cloud.mu.Lock()
	defer f.Cloud.mu.Unlock()
	return slices.Clone(f.Cloud.rejected)
}

// Open implements providers.Factory.
func (f *Factory) Open(_ context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	p := &provider{cloud: f.Cloud, class: class.Name, cluster: rt.ClusterID, events: make(chan event.TypedGenericEvent[providers.Owner], 128)}
	f.Cloud.mu.Lock()
	defer f.Cloud.mu.Unlock()
	if f.Cloud.closed != nil {
		return nil, f.Cloud.closed
	}
	f.Cloud.listeners[p] = p.events
	return p, nil
}

type provider struct {
	cloud          *Cloud
	class, cluster string
	events         chan event.TypedGenericEvent[providers.Owner]
	closed         bool // guarded by cloud.mu
}

// Events implements providers.Eventer.
func (p *provider) Events() <-chan event.TypedGenericEvent[providers.Owner] { return p.events }

// Hosts implements providers.HostReporter.
func (p *provider) Hosts() []providers.HostState {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	return slices.Clone(p.cloud.hosts)
}

// Check implements providers.Provider.
func (p *provider) Check(ctx context.Context) error {
	_, err := p.begin(ctx, Call{Method: MethodCheck})
	return err
}

// ValidateSpec implements providers.Provider.
func (p *provider) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	if spec.Placement != nil && spec.Placement.Image == InvalidImage {
		return providers.InvalidField("spec.placement.image", "%q is not an image", InvalidImage)
	}
	if spec.CloudInit != nil {
		if err := p.checkUserData([]byte(spec.CloudInit.Inline)); err != nil {
			return err
		}
	}
	p.cloud.mu.Lock()
	needsZone := p.cloud.behaviour.NeedsZone
	p.cloud.mu.Unlock()
	if needsZone && (spec.Placement == nil || spec.Placement.Zone == "") {
		return providers.InvalidField("spec.placement.zone", "is required")
	}
	_, err := p.Place(spec, "", nil)
	return err
}

func (p *provider) checkUserData(data []byte) error {
	p.cloud.mu.Lock()
	limit := p.cloud.behaviour.MaxUserData
	p.cloud.mu.Unlock()
	if limit > 0 && len(data) > limit {
		return providers.InvalidField("spec.cloudInit", "the user data is longer than %d bytes", limit)
	}
	return nil
}

// Create implements providers.Provider.
func (p *provider) Create(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
	act, answer := p.begin(ctx, Call{Method: MethodCreate, Name: req.Name, Zone: req.Zone})
	if !act {
		return providers.Receipt{}, answer
	}
	if err := p.checkUserData(req.UserData); err != nil {
		return providers.Receipt{}, err
	}
	c := p.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	if zones := c.behaviour.Zones; len(zones) > 0 && !slices.Contains(zones, req.Zone) {
		return providers.Receipt{}, providers.InvalidField("spec.placement.zone", "is not one of %q", zones)
	}
	if err := c.isDark(req.Zone, "create instance"); err != nil {
		return providers.Receipt{}, err
	}
	for _, m := range c.machines {
		if m.instance.Name != req.Name || m.instance.Zone != req.Zone {
			continue
		}
		if m.instance.Owner.UID != req.Owner.UID {
			return providers.Receipt{}, providers.NewError(providers.Conflict, "create instance", "", nil)
		}
		return m.receipt, providers.NewError(providers.AlreadyExists, "create instance", "", nil)
	}
	c.sequence++
	receipt := providers.Receipt{}
	if c.behaviour.Operations {
		receipt.Operation = "operation-" + strconv.Itoa(c.sequence)
	}
	if c.vanish > 0 {
		c.vanish--
		return receipt, answer
	}
	now := c.clock.Now()
	c.machines = append(c.machines, &machine{
		class: p.class,
		instance: providers.Instance{
			Ref: providers.Ref{
				Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone, ID: c.id(),
				ProviderID: fmt.Sprintf("fake://%s/%s", req.Zone, req.Name),
			},
			Owner: req.Owner, Hash: req.Hash, CreatedAt: now,
			Addresses: c.addresses(),
		},
		visibleAt: now.Add(c.behaviour.Visible),
		runsAt:    now.Add(max(c.behaviour.Start, c.behaviour.Visible)),
		receipt:   receipt,
		request:   req,
	})
	if c.behaviour.Wakes {
		c.notify(req.Owner)
	}
	if answer != nil {
		return providers.Receipt{}, answer
	}
	return receipt, nil
}

// Get implements providers.Provider.
func (p *provider) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	act, answer := p.begin(ctx, Call{Method: MethodGet, Name: ref.Name, Zone: ref.Zone, ID: ref.ID})
	if !act || answer != nil {
		return providers.Instance{}, answer
	}
	c := p.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	if c.miss > 0 {
		c.miss--
		return providers.Instance{}, providers.NewError(providers.NotFound, "get instance", "", nil)
	}
	if err := c.isDark(ref.Zone, "get instance"); err != nil {
		return providers.Instance{}, err
	}
	for _, m := range c.machines {
		if m.instance.Name == ref.Name && (ref.Zone == "" || m.instance.Zone == ref.Zone) && !now.Before(m.visibleAt) && c.isDark(m.instance.Zone, "") == nil {
			return m.view(now), nil
		}
	}
	if ref.Zone == "" && len(c.dark) > 0 {
		problem := providers.NewError(providers.Unavailable, "get instance", "a zone does not answer", nil)
		problem.Local, problem.Partial = true, len(c.dark) < len(c.behaviour.Zones)
		return providers.Instance{}, problem
	}
	gone := providers.NewError(providers.NotFound, "get instance", "", nil)
	if why := c.ended[ref.Operation]; why != nil && ref.Operation != "" {
		gone.Outcome, gone.Field, gone.Message = why.Reason, why.Field, why.Message
	}
	return providers.Instance{}, gone
}

// Delete implements providers.Provider.
func (p *provider) Delete(ctx context.Context, ref providers.Ref) error {
	act, answer := p.begin(ctx, Call{Method: MethodDelete, Name: ref.Name, Zone: ref.Zone, ID: ref.ID})
	if !act {
		return answer
	}
	c := p.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	found := false
	for _, m := range c.machines {
		if m.instance.Name != ref.Name || (ref.Zone != "" && m.instance.Zone != ref.Zone) || (ref.ID != "" && m.instance.ID != ref.ID) {
			continue
		}
		if m.instance.Owner.ClusterID != p.cluster {
			return providers.NewError(providers.Conflict, "delete instance", "", nil)
		}
		found = true
		if m.goneAt.IsZero() {
			m.goneAt = c.clock.Now().Add(c.behaviour.Stop)
			if c.behaviour.Wakes {
				c.notify(m.instance.Owner)
			}
		}
	}
	c.settle()
	if answer == nil && !found {
		return providers.NewError(providers.NotFound, "delete instance", "", nil)
	}
	return answer
}

// List implements providers.Provider.
func (p *provider) List(ctx context.Context) ([]providers.Instance, error) {
	act, answer := p.begin(ctx, Call{Method: MethodList})
	if !act || answer != nil {
		return nil, answer
	}
	c := p.cloud
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.clock.Now()
	var out []providers.Instance
	for _, m := range c.machines {
		if m.class == p.class && m.instance.Owner.ClusterID == p.cluster && !now.Before(m.visibleAt) {
			out = append(out, m.view(now))
		}
	}
	return out, nil
}

// Place implements providers.Provider: the zone of the specification, else that of providers.Spread.
func (p *provider) Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
	p.cloud.mu.Lock()
	zones, dark := p.cloud.behaviour.Zones, p.cloud.dark
	p.cloud.mu.Unlock()
	if spec.Placement != nil && spec.Placement.Zone != "" {
		if len(zones) > 0 && !slices.Contains(zones, spec.Placement.Zone) {
			return "", providers.InvalidField("spec.placement.zone", "%q is not one of %q", spec.Placement.Zone, zones)
		}
		return spec.Placement.Zone, nil
	}
	if lit := slices.DeleteFunc(slices.Clone(zones), func(zone string) bool { return slices.Contains(dark, zone) }); len(lit) > 0 {
		zones = lit
	}
	return providers.Spread(owner, zones, tried), nil
}

// Close implements providers.Provider.
func (p *provider) Close() error {
	p.cloud.mu.Lock()
	defer p.cloud.mu.Unlock()
	p.closed = true
	delete(p.cloud.listeners, p)
	return nil
}

func (p *provider) begin(ctx context.Context, call Call) (bool, error) {
	p.cloud.mu.Lock()
	closed, stalled := p.closed, p.cloud.stalled
	p.cloud.mu.Unlock()
	if closed {
		return false, providers.NewError(providers.Unavailable, "", "", errClosed)
	}
	if stalled != nil {
		select {
		case <-stalled:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil {
		return false, providers.NewError(providers.Unavailable, "", "", err)
	}
	return p.cloud.begin(call)
}
