package rpc

import (
	"context"

	"github.com/digitalocean/go-libvirt"
)

// PoolInfo is what libvirt says of a pool. Sizes are bytes of the whole file system below it.
type PoolInfo struct {
	Active                          bool
	Capacity, Allocation, Available uint64
}

// PoolLookupByName finds a storage pool. Code NoPool says that there is none.
func (c *Conn) PoolLookupByName(ctx context.Context, name string) (libvirt.StoragePool, error) {
	return call(ctx, c, "StoragePoolLookupByName", func(l *libvirt.Libvirt) (libvirt.StoragePool, error) { return l.StoragePoolLookupByName(name) })
}

// PoolInfo looks at a pool. The sizes are those of its last refresh.
func (c *Conn) PoolInfo(ctx context.Context, p libvirt.StoragePool) (PoolInfo, error) {
	return call(ctx, c, "StoragePoolGetInfo", func(l *libvirt.Libvirt) (info PoolInfo, err error) {
		state, capacity, allocation, available, err := l.StoragePoolGetInfo(p)
		if err != nil {
			return info, err
		}
		running := libvirt.StoragePoolState(state)
		active := running == libvirt.StoragePoolRunning || running == libvirt.StoragePoolDegraded
		return PoolInfo{Active: active, Capacity: capacity, Allocation: allocation, Available: available}, nil
	})
}

// PoolRefresh makes the daemon look at the pool's folder again. Code OperationInvalid says that the pool is not active.
func (c *Conn) PoolRefresh(ctx context.Context, p libvirt.StoragePool) error {
	return do(ctx, c, "StoragePoolRefresh", func(l *libvirt.Libvirt) error { return l.StoragePoolRefresh(p, 0) })
}

// Volumes are all volumes of a pool.
func (c *Conn) Volumes(ctx context.Context, p libvirt.StoragePool) ([]libvirt.StorageVol, error) {
	return call(ctx, c, "StoragePoolListAllVolumes", func(l *libvirt.Libvirt) ([]libvirt.StorageVol, error) {
		volumes, _, err := l.StoragePoolListAllVolumes(p, 1, 0)
		return volumes, err
	})
}

// VolumeLookup finds a volume. Code NoVolume says that there is none.
func (c *Conn) VolumeLookup(ctx context.Context, p libvirt.StoragePool, name string) (libvirt.StorageVol, error) {
	return call(ctx, c, "StorageVolLookupByName", func(l *libvirt.Libvirt) (libvirt.StorageVol, error) { return l.StorageVolLookupByName(p, name) })
}

// VolumeCreate makes a volume. Code VolumeExists says that the name is taken.
func (c *Conn) VolumeCreate(ctx context.Context, p libvirt.StoragePool, xml string) (libvirt.StorageVol, error) {
	return call(ctx, c, "StorageVolCreateXML", func(l *libvirt.Libvirt) (libvirt.StorageVol, error) { return l.StorageVolCreateXML(p, xml, 0) })
}

// VolumeDelete deletes a volume, also one that is in use.
func (c *Conn) VolumeDelete(ctx context.Context, v libvirt.StorageVol) error {
	return do(ctx, c, "StorageVolDelete", func(l *libvirt.Libvirt) error { return l.StorageVolDelete(v, 0) })
}

// VolumeXML describes a volume.
func (c *Conn) VolumeXML(ctx context.Context, v libvirt.StorageVol) (string, error) {
	return call(ctx, c, "StorageVolGetXMLDesc", func(l *libvirt.Libvirt) (string, error) { return l.StorageVolGetXMLDesc(v, 0) })
}
