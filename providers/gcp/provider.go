package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"

	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// listPage is how many VMs one answer of a List holds. Compute Engine gives up to 500, each with its user data, which may
	// be a quarter of a megabyte: too much for a small manager at once.
	listPage = 200
)

// Provider is one class of type gcp.
type Provider struct {
	rt providers.Runtime
	settings
	endpoint string
	pageSize uint32
	base     *http.Transport
	book     *zoneBook

	mu      sync.Mutex
	closed  bool
	current *session
	opening *opening
}

var _ providers.Provider = &Provider{}

func newProvider(rt providers.Runtime, s settings, endpoint string) *Provider {
	base := newTransport(pingAfter, pingTimeout)
	return &Provider{rt: rt, settings: s, endpoint: endpoint, pageSize: listPage, base: base, book: newZoneBook(rt.Clock)}
}

// Check implements providers.Provider: the credentials are good and may list VMs of the project. A zone that is out of
// reach does not make the class unusable.
func (p *Provider) Check(ctx context.Context) error {
	return p.call(ctx, "check the project", func(s *session) error {
		_, _, err := p.page(ctx, s, filterOf(p.rt.ClusterID, p.class), 1, "")
		return err
	})
}

// Create implements providers.Provider. The name is unique within the zone, and the idempotency key makes calls of one
// attempt one call.
func (p *Provider) Create(ctx context.Context, req providers.CreateRequest) (receipt providers.Receipt, err error) {
	if err := p.ValidateSpec(&req.Spec); err != nil {
		return receipt, err
	}
	if err := checkUserData(req.UserData); err != nil {
		return receipt, err
	}
	if !zonePattern.MatchString(req.Zone) {
		return receipt, providers.InvalidField(fieldZone, "no zone was chosen")
	}
	insert := newInsert(p.settings, req)
	err = p.call(ctx, opCreate, func(s *session) error {
		operation, err := s.instances.Insert(ctx, insert)
		if err == nil {
			receipt.Operation = newNote(operation.Name(), req.Spec.Placement)
		}
		return err
	}, secretUserData(req.UserData), attemptIn(req))
	if providers.IsAlreadyExists(err) {
		return receipt, p.taken(ctx, req, err)
	}
	return receipt, err
}

// taken finds out whose the VM is that has the name.
func (p *Provider) taken(ctx context.Context, req providers.CreateRequest, cause error) error {
	vm, err := p.get(ctx, req.Zone, req.Name)
	switch {
	case providers.IsNotFound(err):
		// It does not show yet, or it has just gone: the next look tells.
		return nil
	case err != nil:
		return err
	}
	if have := readMark(vm.GetLabels()).owner; have.ClusterID != req.Owner.ClusterID || have.UID != req.Owner.UID {
		return providers.NewError(providers.Conflict, opCreate, "a machine of another owner has this name", cause)
	}
	return cause
}

// Get implements providers.Provider.
func (p *Provider) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	if !label1035.MatchString(ref.Name) || (ref.Zone != "" && !zonePattern.MatchString(ref.Zone)) {
		return providers.Instance{}, providers.NewError(providers.Unavailable, opGet, "the reference names no machine",
			fmt.Errorf("name %q, zone %q", ref.Name, ref.Zone))
	}
	if ref.Zone == "" {
		return p.search(ctx, ref.Name)
	}
	vm, err := p.get(ctx, ref.Zone, ref.Name)
	if errors.Is(err, errNoLocation) {
		err = p.withoutZone(ctx, ref.Zone, err)
	}
	if providers.IsNotFound(err) && ref.Operation != "" {
		err = p.explain(ctx, ref, err)
	}
	if err != nil {
		return providers.Instance{}, err
	}
	return p.instanceOf(vm), nil
}

// get reads a VM by its name or its id.
func (p *Provider) get(ctx context.Context, zone, name string) (vm *computepb.Instance, err error) {
	err = p.call(ctx, opGet, func(s *session) error {
		vm, err = s.instances.Get(ctx, &computepb.GetInstanceRequest{Project: p.project, Zone: zone, Instance: name})
		return err
	}, instanceIn(zone, name))
	return vm, err
}

// withoutZone decides about a zone that there is not, or that the project may not use. Only the first has no VM: then the zone is
// not among those that a list has, which are all of them, with or without VMs. refused is what the look at the VM was told.
func (p *Provider) withoutZone(ctx context.Context, zone string, refused error) error {
	var zones []compute.InstancesScopedListPair
	var answer *computepb.InstanceAggregatedList
	err := p.call(ctx, opList, func(s *session) (err error) {
		zones, answer, err = p.page(ctx, s, filterOf(p.rt.ClusterID, p.class), 1, "")
		return err
	})
	if err == nil {
		err = incomplete(answer, zones)
	}
	switch {
	case err != nil:
		return err
	case len(zones) == 0, slices.ContainsFunc(zones, func(z compute.InstancesScopedListPair) bool { return z.Key == "zones/"+zone }):
		return refused
	}
	return providers.NewError(providers.NotFound, opGet, "", refused)
}

// search looks for a VM in all zones. Names are unique within a zone only, so of several the operator's own counts.
func (p *Provider) search(ctx context.Context, name string) (providers.Instance, error) {
	all, missing, err := p.listAll(ctx, fmt.Sprintf(`name="%s"`, name))
	if err != nil {
		return providers.Instance{}, err
	}
	var found *computepb.Instance
	for _, vm := range all {
		if vm.GetName() != name {
			continue
		}
		if found == nil || readMark(vm.GetLabels()).owner.ClusterID == p.rt.ClusterID {
			found = vm
		}
	}
	switch {
	case found != nil:
		return p.instanceOf(found), nil
	case missing != nil:
		return providers.Instance{}, missing
	}
	return providers.Instance{}, providers.NewError(providers.NotFound, opGet, "", nil)
}

// Delete implements providers.Provider. The id in the call, and not the name, makes sure that no other incarnation is met.
func (p *Provider) Delete(ctx context.Context, ref providers.Ref) error {
	i, err := p.Get(ctx, providers.Ref{Namespace: ref.Namespace, Name: ref.Name, Zone: ref.Zone})
	switch {
	case err != nil:
		return err
	case i.Owner.ClusterID != p.rt.ClusterID || i.Owner.UID == "":
		return providers.NewError(providers.Conflict, opDelete, "a machine of another owner has this name", nil)
	case ref.ID != "" && ref.ID != i.ID:
		return providers.NewError(providers.NotFound, opDelete, "another incarnation has this name", nil)
	case i.State == providers.StateTerminating:
		// A second deletion would be refused, and then look as if it was gone.
		return nil
	}
	err = p.call(ctx, opDelete, func(s *session) error {
		_, err := s.instances.Delete(ctx, &computepb.DeleteInstanceRequest{Project: p.project, Zone: i.Zone, Instance: i.ID})
		return err
	}, instanceIn(i.Zone, i.ID))
	if err == nil || providers.IsNotFound(err) || ctx.Err() != nil {
		return err
	}
	// Somebody else may have been faster, whose deletion refuses this one.
	again, lookErr := p.get(ctx, i.Zone, i.ID)
	if state, _ := stateOf(again); providers.IsNotFound(lookErr) || (lookErr == nil && state == providers.StateTerminating) {
		return nil
	}
	return err
}

// List implements providers.Provider.
func (p *Provider) List(ctx context.Context) ([]providers.Instance, error) {
	all, missing, err := p.listAll(ctx, filterOf(p.rt.ClusterID, p.class))
	if err != nil {
		return nil, err
	}
	if missing != nil {
		return nil, missing
	}
	var out []providers.Instance
	seen := map[uint64]bool{}
	for _, vm := range all {
		m := readMark(vm.GetLabels())
		if m.owner.ClusterID != p.rt.ClusterID || m.class != p.class || m.owner.UID == "" || seen[vm.GetId()] {
			continue
		}
		seen[vm.GetId()] = true
		out = append(out, p.instanceOf(vm))
	}
	return out, nil
}

// listAll reads all pages of a list of all zones. missing is what kept it from being all, although Compute Engine calls it
// no error: since API version 2026-09-01 a zone that does not answer is only mentioned.
func (p *Provider) listAll(ctx context.Context, filter string) (all []*computepb.Instance, missing, err error) {
	err = p.call(ctx, opList, func(s *session) error {
		all, missing = nil, nil
		for token := ""; ; {
			pairs, answer, err := p.page(ctx, s, filter, p.pageSize, token)
			if err != nil {
				return err
			}
			for _, pair := range pairs {
				for _, vm := range pair.Value.GetInstances() {
					// They can be most of it, and nobody asks for them.
					vm.Metadata, vm.Disks = nil, nil
					all = append(all, vm)
				}
			}
			if lacking := incomplete(answer, pairs); lacking != nil {
				missing = lacking
			}
			if token = answer.GetNextPageToken(); token == "" {
				return nil
			}
		}
	})
	if err != nil {
		return nil, nil, err
	}
	return all, missing, nil
}

// page reads one page. The iterator of the library would go on to the next one by itself where this one has no VM, and what
// this one says about zones that do not answer would be lost.
func (p *Provider) page(ctx context.Context, s *session, filter string, size uint32, token string) ([]compute.InstancesScopedListPair, *computepb.InstanceAggregatedList, error) {
	client, err := s.lister(ctx)
	if err != nil {
		return nil, nil, err
	}
	it := client.AggregatedList(ctx, &computepb.AggregatedListInstancesRequest{Project: p.project, Filter: new(filter)})
	pairs, _, err := it.InternalFetch(int(size), token)
	if err != nil {
		return nil, nil, err
	}
	answer, ok := it.Response.(*computepb.InstanceAggregatedList)
	if !ok {
		return nil, nil, fmt.Errorf("the list is a %T", it.Response)
	}
	return pairs, answer, nil
}

// incomplete tells what a page lacks. Only the two warnings that mean "nothing here" are harmless.
func incomplete(answer *computepb.InstanceAggregatedList, pairs []compute.InstancesScopedListPair) error {
	lacking := func(what string) error {
		problem := providers.NewError(providers.Unavailable, opList, "the list of machines is not complete: a zone does not answer", errors.New(what))
		problem.Local, problem.Partial = true, true
		return problem
	}
	if lost := answer.GetUnreachables(); len(lost) > 0 {
		return lacking(fmt.Sprintf("unreachable: %v", lost))
	}
	if code := answer.GetWarning().GetCode(); code != "" && code != warningNoResults {
		return lacking("warning " + code)
	}
	for _, pair := range pairs {
		if code := pair.Value.GetWarning().GetCode(); code != "" && code != warningNoResults {
			return lacking("warning " + code + " for " + pair.Key)
		}
	}
	return nil
}

// warningNoResults is what Compute Engine says of a zone without VMs.
const warningNoResults = "NO_RESULTS_ON_PAGE"

// Close implements providers.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed, p.current = true, nil
	p.mu.Unlock()
	p.base.CloseIdleConnections()
	return nil
}
