package vm

import (
	"context"
	"errors"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// Delete removes the machine of a name with all that belongs to it, see providers.Provider. id is the UUID of the incarnation
// that is meant; "" means whichever has the name.
func (e *Engine) Delete(ctx context.Context, name, id string) error {
	var uuid string
	err := e.Control.Do(ctx, func(c *rpc.Conn) error {
		r, err := e.deletable(ctx, c, name, id)
		uuid = r.UUID
		return err
	})
	if err == nil {
		// Between two calls: a build waits for its turn on the host like everybody else.
		err = e.stop(ctx, uuid)
	}
	if err == nil {
		err = e.Control.Do(ctx, func(c *rpc.Conn) error {
			r, err := e.deletable(ctx, c, name, uuid)
			if err != nil {
				return err
			}
			if err := remove(ctx, c, r); err != nil {
				return err
			}
			e.Wake(e.owner(r))
			return nil
		})
	}
	if errors.Is(err, errNoRecord) {
		return providers.NewError(providers.NotFound, "delete instance", "", nil)
	}
	err = fault.Classify("delete instance", err)
	if known, ok := errors.AsType[*providers.Error](err); ok && known.Reason == providers.Capacity {
		// Room is not what a removal lacks; what it says is true all the same.
		known.Reason = providers.Unavailable
	}
	return err
}

// deletable reads the record of a name, if it is the incarnation that is meant and ours.
func (e *Engine) deletable(ctx context.Context, c *rpc.Conn, name, id string) (record, error) {
	r, err := find(ctx, c, name)
	switch {
	case err != nil:
		return record{}, err
	case !e.ours(r):
		return record{}, providers.NewError(providers.Conflict, "delete instance", "a machine of another owner has this name", nil)
	case id != "" && id != r.UUID:
		return record{}, providers.NewError(providers.NotFound, "delete instance", "another incarnation has this name", nil)
	}
	if r.Pool == "" {
		// Somebody has changed the definition, to a snapshot's file for example; the volumes are where they were made.
		r.Pool = e.Host.Pool
	}
	return r, nil
}

// stop ends the build of an incarnation and waits until it makes no calls any more: a volume that it makes after the removal
// would belong to nothing.
func (e *Engine) stop(ctx context.Context, uuid string) error {
	b := e.buildOf(uuid)
	if b == nil {
		return nil
	}
	b.stop()
	select {
	case <-b.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	e.abandon(b)
	return nil
}

// remove takes a machine away: it is stopped, then its volumes go, and the record last, so that a removal which is cut off
// anywhere can be taken up again. All calls name the incarnation by its UUID.
func remove(ctx context.Context, c *rpc.Conn, r record) error {
	if err := ignoring(c.DomainDestroy(ctx, r.domain), rpc.OperationInvalid, rpc.NoDomain); err != nil {
		return err
	}
	if err := removeVolumes(ctx, c, r); err != nil {
		return err
	}
	if err := ignoring(c.DomainUndefine(ctx, r.domain), rpc.NoDomain); err != nil {
		return err
	}
	// A process that was building it may have started it after it was stopped: then it runs on without a definition.
	return ignoring(c.DomainDestroy(ctx, r.domain), rpc.OperationInvalid, rpc.NoDomain)
}

// removeVolumes deletes the volumes that were made for a record, and nothing else that its definition may name by now.
func removeVolumes(ctx context.Context, c *rpc.Conn, r record) error {
	names := []string{diskName(r.Name, r.UUID), seedName(r.Name, r.UUID)}
	pool, err := c.PoolLookupByName(ctx, r.Pool)
	if err != nil {
		return err
	}
	for _, name := range names {
		volume, err := c.VolumeLookup(ctx, pool, name)
		if rpc.CodeOf(err) == rpc.NoVolume {
			continue
		}
		if err != nil {
			return err
		}
		if err := ignoring(c.VolumeDelete(ctx, volume), rpc.NoVolume); err != nil {
			return err
		}
	}
	return nil
}

// ignoring drops errors of libvirt with one of the codes.
func ignoring(err error, codes ...int) error {
	for _, code := range codes {
		if rpc.CodeOf(err) == code {
			return nil
		}
	}
	return err
}
