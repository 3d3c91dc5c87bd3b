package vm

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/digitalocean/go-libvirt"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/address"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// AutostartGrace is how long a machine may be shut off, for no reason that libvirt knows, before it is believed to stay so:
// after a boot the host starts its machines one by one.
const AutostartGrace = time.Minute

// record is a domain as libvirt defines it.
type record struct {
	domain libvirt.Domain
	virtxml.Domain
}

// errNoRecord says that no domain has the name. It comes from the look-up of the domain alone: all other calls that find
// something missing mean something else.
var errNoRecord = errors.New("no domain has the name")

// find reads the record that has a name.
func find(ctx context.Context, c *rpc.Conn, name string) (record, error) {
	domain, err := c.DomainLookupByName(ctx, name)
	if rpc.CodeOf(err) == rpc.NoDomain {
		return record{}, errNoRecord
	}
	if err != nil {
		return record{}, err
	}
	return read(ctx, c, domain)
}

// read reads the definition of a domain.
func read(ctx context.Context, c *rpc.Conn, domain libvirt.Domain) (record, error) {
	text, err := c.DomainXML(ctx, domain)
	if rpc.CodeOf(err) == rpc.NoDomain {
		return record{}, errNoRecord
	}
	if err != nil {
		return record{}, err
	}
	parsed, err := virtxml.ParseDomain(text)
	if err != nil {
		return record{}, err
	}
	return record{domain, parsed}, nil
}

// owner of a record, as far as this type of provider has written it.
func (e *Engine) owner(r record) providers.Owner {
	if r.Metadata.Provider != string(e.Provider) {
		return providers.Owner{}
	}
	m := r.Metadata
	return providers.Owner{ClusterID: m.ClusterID, Namespace: m.Namespace, Name: m.Name, UID: types.UID(m.UID)}
}

// ours tells whether a record may be touched.
func (e *Engine) ours(r record) bool {
	o := e.owner(r)
	return o.ClusterID == e.ClusterID && o.UID != ""
}

// Get finds the machine of a name, see providers.Provider. The operation is the UUID that Create gave for its last attempt.
func (e *Engine) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	var r record
	var i providers.Instance
	err := e.Control.Do(ctx, func(c *rpc.Conn) (err error) {
		if r, err = find(ctx, c, ref.Name); err == nil {
			i, err = e.instance(ctx, c, r)
		}
		return err
	})
	if errors.Is(err, errNoRecord) {
		e.vanished(ref)
	}
	if err != nil {
		return providers.Instance{}, e.lookError("get instance", ref.Operation, err)
	}
	e.saw(i)
	if i.State != providers.StateRunning || !e.mine(i.Owner) {
		return i, nil
	}
	// That no address is known yet is no error, and neither is that the guest cannot be asked: it may have no agent.
	i.Addresses, err = address.Find(ctx, router{e}, r.domain, r.MAC)
	if err != nil {
		return providers.Instance{}, fault.Classify("find the address", err)
	}
	return i, nil
}

func (e *Engine) mine(o providers.Owner) bool { return o.ClusterID == e.ClusterID && o.UID != "" }

// lookError is the only place that says NotFound.
func (e *Engine) lookError(op, operation string, err error) error {
	if !errors.Is(err, errNoRecord) {
		return fault.Classify(op, err)
	}
	missing := providers.NewError(providers.NotFound, op, "", nil)
	if known, ok := errors.AsType[*providers.Error](e.endingOf(operation)); ok {
		missing.Outcome, missing.Field, missing.Message = known.Reason, known.Field, known.Message
	}
	return missing
}

// instance tells what a record is; the addresses are found separately.
func (e *Engine) instance(ctx context.Context, c *rpc.Conn, r record) (providers.Instance, error) {
	i := providers.Instance{
		Ref: providers.Ref{
			Namespace: r.Metadata.Namespace, Name: r.Name, Zone: e.Host.Name, ID: r.UUID,
			ProviderID: e.providerID(r.UUID),
		},
		Owner: e.owner(r), Hash: r.Metadata.Hash, CreatedAt: r.Metadata.CreatedAt,
	}
	if b := e.buildOf(r.UUID); b != nil {
		i.State, i.Message = b.progress()
		return i, nil
	}
	state, reason, err := c.DomainState(ctx, r.domain)
	if rpc.CodeOf(err) == rpc.NoDomain {
		return i, errNoRecord
	}
	if err != nil {
		return i, err
	}
	i.State, i.Message = judge(state, reason)
	if i.Message == messageIdle && e.mine(i.Owner) {
		i.State, i.Message = e.idle(r, i)
	} else {
		e.forgetIdle(r.UUID)
	}
	return i, nil
}

// providerID of an incarnation.
func (e *Engine) providerID(uuid string) string {
	return (&url.URL{Scheme: "libvirt", Host: e.Host.Name, Path: "/" + uuid}).String()
}

// idle judges a machine that does not run and never ran as far as libvirt knows. A young one may be in the making elsewhere;
// one that starts with its host may be about to.
func (e *Engine) idle(r record, i providers.Instance) (providers.State, string) {
	now := e.Clock.Now()
	if now.Sub(r.Metadata.CreatedAt) < InterruptedAfter {
		return providers.StatePending, messageElsewhere
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	since, known := e.idleSince[r.UUID]
	if !known {
		since = now
		e.idleSince[r.UUID] = now
	}
	if e.Autostart && now.Sub(since) < AutostartGrace {
		return providers.StatePending, messageStarting
	}
	return i.State, i.Message
}

func (e *Engine) forgetIdle(uuid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.idleSince, uuid)
}

// router sends the questions that go to the guest's agent over a connection of their own: a guest that does not answer holds
// nothing else up.
type router struct{ e *Engine }

// DomainAddresses implements address.Source.
func (r router) DomainAddresses(ctx context.Context, d libvirt.Domain, source uint32) (out []libvirt.DomainInterface, err error) {
	via := r.e.Control
	if libvirt.DomainInterfaceAddressesSource(source) == libvirt.DomainInterfaceAddressesSrcAgent {
		via = r.e.Guest
	}
	err = via.Do(ctx, func(c *rpc.Conn) error {
		out, err = c.DomainAddresses(ctx, d, source)
		return err
	})
	return out, err
}

// List finds all machines of this class and cluster on the host.
func (e *Engine) List(ctx context.Context) ([]providers.Instance, error) {
	var out []providers.Instance
	err := e.Control.Do(ctx, func(c *rpc.Conn) error {
		out = nil
		domains, err := c.Domains(ctx)
		if err != nil {
			return err
		}
		for _, domain := range domains {
			r, err := read(ctx, c, domain)
			if errors.Is(err, errNoRecord) {
				continue
			}
			if err != nil {
				return err
			}
			if !e.ours(r) || r.Metadata.Class != e.Class {
				continue
			}
			i, err := e.instance(ctx, c, r)
			if errors.Is(err, errNoRecord) {
				continue
			}
			if err != nil {
				return err
			}
			out = append(out, i)
		}
		return nil
	})
	if err != nil {
		return nil, fault.Classify("list instances", err)
	}
	return out, nil
}
