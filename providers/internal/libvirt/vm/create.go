package vm

import (
	"context"
	"errors"

	"github.com/google/uuid"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// Request is everything a machine is made from.
type Request struct {
	Name    string
	Owner   providers.Owner
	Hash    string
	Attempt string
	// CPUs and MemoryBytes are the size of the machine.
	CPUs        int
	MemoryBytes int64
	Image       images.Image
	// UserData must not be changed, logged or put into an error.
	UserData []byte
}

// Create makes the record of a machine and begins to build it, see providers.Provider. The operation it gives is the
// incarnation's UUID.
func (e *Engine) Create(ctx context.Context, req Request) (operation string, err error) {
	if err := e.refuse(ctx, req); err != nil {
		return "", err
	}
	b, err := e.define(ctx, req)
	if err != nil {
		return "", err
	}
	if !e.WaitForStart {
		return b.record.UUID, nil
	}
	select {
	case <-b.done:
		return b.record.UUID, b.outcome()
	case <-b.waits:
		// The image may take minutes.
		return b.record.UUID, nil
	case <-ctx.Done():
		return "", fault.Classify("create instance", ctx.Err())
	}
}

// refuse tells what keeps a machine from being made before anything is recorded: the name is taken, or the image cannot be
// had. It starts the download of an image that is missing.
func (e *Engine) refuse(ctx context.Context, req Request) error {
	err := e.Control.Do(ctx, func(c *rpc.Conn) error {
		r, err := find(ctx, c, req.Name)
		if err == nil {
			e.resume(ctx, r, req)
			return e.taken(r, req)
		}
		if !errors.Is(err, errNoRecord) {
			return err
		}
		_, _, err = e.Images.Ensure(ctx, c, e.Host.Name, e.Host.Pool, req.Image)
		if downloadFailed(err) {
			// It is tried again beside; the machine waits for it like for one that has just begun.
			return nil
		}
		return err
	})
	return fault.Classify("create instance", err)
}

// downloadFailed tells whether an image could not be fetched for now, as opposed to never, or to a host that does not answer.
func downloadFailed(err error) bool {
	known, ok := errors.AsType[*providers.Error](err)
	return ok && known.Reason == providers.Unavailable
}

// taken tells whose the name is.
func (e *Engine) taken(r record, req Request) error {
	if o := e.owner(r); o.ClusterID != req.Owner.ClusterID || o.UID != req.Owner.UID {
		return providers.NewError(providers.Conflict, "create instance", "a machine of another owner has this name", nil)
	}
	return providers.NewError(providers.AlreadyExists, "create instance", "", nil)
}

// define makes the record and starts the build. Each call makes a UUID of its own, so that of several calls for one name, in
// whatever processes, libvirt admits one: it refuses a name that is there under another UUID.
func (e *Engine) define(ctx context.Context, req Request) (*build, error) {
	id := uuid.NewString()
	r := record{Domain: virtxml.Domain{
		Name: req.Name, UUID: id, Type: e.DomainType, CPUs: req.CPUs, MemoryBytes: req.MemoryBytes,
		Pool: e.Host.Pool, Disk: diskName(req.Name, id), Seed: seedName(req.Name, id),
		Network: e.Host.Network, Bridge: e.Host.Bridge, MAC: macOf(id),
		Metadata: virtxml.Metadata{
			Provider: string(e.Provider), Class: e.Class, ClusterID: req.Owner.ClusterID, Namespace: req.Owner.Namespace,
			Name: req.Owner.Name, UID: string(req.Owner.UID), Hash: req.Hash, Attempt: req.Attempt, CreatedAt: e.Clock.Now().UTC(),
		},
	}}
	text, err := r.Marshal()
	if err != nil {
		return nil, fault.Classify("create instance", err)
	}
	// The build is known before the record is: whoever finds the record must not take it for one that nobody works on.
	b, err := e.prepare(ctx, r, req)
	if err != nil {
		return nil, err
	}
	if err := e.reserve(ctx, b); err != nil {
		e.abandon(b)
		return nil, err
	}
	err = e.Control.Do(ctx, func(c *rpc.Conn) (err error) {
		b.record.domain, err = c.DomainDefine(ctx, text)
		switch rpc.CodeOf(err) {
		case rpc.OperationFailed, rpc.DomainExists:
		default:
			return err
		}
		holder, lookErr := find(ctx, c, req.Name)
		switch {
		case errors.Is(lookErr, errNoRecord):
			return err
		case lookErr != nil:
			return lookErr
		}
		return e.taken(holder, req)
	})
	if err != nil {
		e.abandon(b)
		e.doubt(b, err)
		return nil, fault.Classify("create instance", err)
	}
	e.start(b)
	return b, nil
}

// doubt remembers a record whose definition got no answer.
func (e *Engine) doubt(b *build, err error) {
	if rpc.CodeOf(err) != 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doubtful[b.req.Name] = b.record.UUID
}

// resume goes on with a record that this process has made without learning of it. Nobody else builds it, since nobody else
// knows its UUID.
func (e *Engine) resume(ctx context.Context, r record, req Request) {
	e.mu.Lock()
	mine := e.doubtful[req.Name] == r.UUID && r.Metadata.Attempt == req.Attempt && e.owner(r) == req.Owner
	delete(e.doubtful, req.Name)
	e.mu.Unlock()
	if !mine {
		return
	}
	if b, err := e.prepare(ctx, r, req); err == nil {
		e.start(b)
	}
}
