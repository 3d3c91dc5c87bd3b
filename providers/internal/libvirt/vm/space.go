package vm

import (
	"context"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// free is how many bytes of a pool are neither used nor promised: thin disks use little at first and may grow to their
// capacity. pending is what builds were promised whose disks do not show yet.
func free(available uint64, volumes []virtxml.Volume, pending int64) int64 {
	left := int64(min(available, 1<<62)) - pending
	for _, v := range volumes {
		if volumePattern.MatchString(v.Name) {
			left -= max(0, v.Capacity-v.Allocation)
		}
	}
	return left
}

// reserve promises a build the space of its disk, or says that there is none. Two builds cannot both be promised the last of
// it.
func (e *Engine) reserve(ctx context.Context, b *build) error {
	if !e.CheckSpace {
		return nil
	}
	e.space.Lock()
	defer e.space.Unlock()
	left, err := e.Free(ctx)
	if err != nil {
		return fault.Classify("create instance", err)
	}
	if left < e.DiskBytes {
		return providers.NewError(providers.Capacity, "create instance", fault.MessageNoSpace, nil)
	}
	e.mu.Lock()
	b.promised = e.DiskBytes
	e.mu.Unlock()
	return nil
}

// reserveImage raises a promise to the size of an image that is larger than the class's disks, which is known only now.
func (e *Engine) reserveImage(ctx context.Context, b *build, size int64) error {
	if !e.CheckSpace || size <= e.DiskBytes {
		return nil
	}
	e.space.Lock()
	defer e.space.Unlock()
	left, err := e.Free(ctx)
	if err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if left+b.promised < size {
		return providers.NewError(providers.Capacity, "create instance", fault.MessageNoSpace, nil)
	}
	b.promised = size
	return nil
}

// kept notes that a volume shows what was promised.
func (e *Engine) kept(b *build) {
	e.mu.Lock()
	defer e.mu.Unlock()
	b.promised = 0
}

// Free is how much of the host's pool is left for new disks, in bytes.
func (e *Engine) Free(ctx context.Context) (int64, error) {
	var left int64
	err := e.Control.Do(ctx, func(c *rpc.Conn) error {
		// What is promised is read first: a disk that appears meanwhile is counted twice rather than not at all.
		pending := e.pending()
		pool, err := c.PoolLookupByName(ctx, e.Host.Pool)
		if err != nil {
			return err
		}
		// Others use the file system as well, and libvirt looks at it only when it is told to. It does not while an upload is
		// under way, and then knows what it knew before.
		if err := c.PoolRefresh(ctx, pool); err != nil && rpc.CodeOf(err) == 0 {
			return err
		}
		info, err := c.PoolInfo(ctx, pool)
		if err != nil {
			return err
		}
		volumes, err := volumesOf(ctx, c, e.Host.Pool)
		if err != nil {
			return err
		}
		left = free(info.Available, volumes, pending)
		return nil
	})
	return left, err
}

func (e *Engine) pending() (sum int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, b := range e.builds {
		sum += b.promised
	}
	return sum
}

// volumesOf reads all volumes of a pool that belong to machines.
func volumesOf(ctx context.Context, c *rpc.Conn, name string) ([]virtxml.Volume, error) {
	pool, err := c.PoolLookupByName(ctx, name)
	if err != nil {
		return nil, err
	}
	all, err := c.Volumes(ctx, pool)
	if err != nil {
		return nil, err
	}
	var out []virtxml.Volume
	for _, v := range all {
		if !volumePattern.MatchString(v.Name) {
			continue
		}
		text, err := c.VolumeXML(ctx, v)
		if rpc.CodeOf(err) == rpc.NoVolume {
			continue
		}
		if err != nil {
			return nil, err
		}
		parsed, err := virtxml.ParseVolume(text)
		if err != nil {
			return nil, err
		}
		out = append(out, parsed)
	}
	return out, nil
}
