package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/fault"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

const (
	opDownload  = "download the image"
	formatQCOW2 = "qcow2"
	// markerBytes is the size of a marker, which says all by its name.
	markerBytes = 1
)

// Messages about downloads.
const (
	messageChecksum = "the image has another checksum than the class says"
	messageShort    = "the host has not taken the whole image; it is tried again"
	messageVanished = "the image was deleted on the host while it was written; it is tried again"
)

// download brings an image to a host: once nobody else does, and unless somebody else has.
func (s *Store) download(j *job) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-s.ctx.Done():
		return fault.Classify(opDownload, s.ctx.Err())
	}
	c, done, err := s.o.Open(s.ctx, j.host)
	if err != nil {
		return fault.Classify(opDownload, err)
	}
	defer func() { _ = done() }()
	pool, err := c.PoolLookupByName(s.ctx, j.pool)
	if err != nil {
		return fault.Classify(opDownload, err)
	}
	for {
		there, err := s.clear(c, pool, j)
		if there || err != nil {
			return fault.Classify(opDownload, err)
		}
		err = s.write(c, pool, j)
		if !errors.Is(err, errTaken) {
			return fault.Classify(opDownload, err)
		}
	}
}

// clear waits for a base that somebody else writes, and deletes one that nobody does. there tells that it is complete.
func (s *Store) clear(c Volumes, pool libvirt.StoragePool, j *job) (there bool, err error) {
	last, since := int64(-1), s.o.Clock.Now()
	for {
		_, there, err := look(s.ctx, c, j.key)
		if there || err != nil {
			return there, err
		}
		v, found, err := describe(s.ctx, c, pool, j.volume)
		if err != nil || !found {
			return false, err
		}
		if v.Physical != last {
			last, since = v.Physical, s.o.Clock.Now()
		}
		if s.o.Clock.Since(since) >= StallAfter {
			return false, s.remove(s.ctx, c, pool, j.volume)
		}
		select {
		case <-s.o.Clock.After(watchEvery):
		case <-s.ctx.Done():
			return false, s.ctx.Err()
		}
	}
}

// write fetches the image and makes the base, and its marker last.
func (s *Store) write(c Volumes, pool libvirt.StoragePool, j *job) (err error) {
	source, err := s.open(s.ctx, j.image)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	head, err := readHeader(source)
	if err != nil {
		return err
	}
	s.mu.Lock()
	j.length = source.length
	s.mu.Unlock()
	text, err := virtxml.Volume{Name: j.volume, Format: formatQCOW2, Capacity: max(head.capacity, source.length)}.Marshal()
	if err != nil {
		return err
	}
	volume, err := c.VolumeCreate(s.ctx, pool, text)
	if err != nil {
		if code := rpc.CodeOf(err); code == rpc.VolumeExists || code == rpc.OperationFailed {
			if _, found, lookErr := describe(s.ctx, c, pool, j.volume); found && lookErr == nil {
				return errTaken
			}
		}
		return err
	}
	marking := false
	defer func() {
		if err != nil && (!marking || rpc.CodeOf(err) != 0) {
			// What cannot be taken back now has no marker.
			_ = s.takeBack(j)
		}
	}()
	if err := s.unmark(s.ctx, c, pool, j.volume); err != nil {
		return err
	}
	sum := sha256.New()
	if err := c.VolumeUpload(s.ctx, volume, s.counted(j, source.rest(head), sum), source.length); err != nil {
		if failed := source.failure(); failed != nil {
			return failed
		}
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); j.image.SHA256 != "" && got != j.image.SHA256 {
		known := providers.NewError(providers.InvalidSpec, opDownload, messageChecksum, fmt.Errorf("the checksum is %s", got))
		known.Field = fieldOf(j.image, "sha256")
		return known
	}
	v, found, err := describe(s.ctx, c, pool, j.volume)
	switch {
	case err != nil:
		return err
	case !found:
		return providers.NewError(providers.Unavailable, opDownload, messageVanished, nil)
	case v.Physical != source.length:
		return providers.NewError(providers.Unavailable, opDownload, messageShort, fmt.Errorf("%d of %d bytes", v.Physical, source.length))
	}
	// Where it is not known whether the marker was made, the base may be in use already.
	marking = true
	return s.mark(c, pool, j, source.length)
}

// unmark deletes the markers that were left by bases that somebody has deleted: they would make the one that is being written
// usable when it comes to their length.
func (s *Store) unmark(ctx context.Context, c Volumes, pool libvirt.StoragePool, volume string) error {
	all, err := c.Volumes(ctx, pool)
	if err != nil {
		return err
	}
	for _, v := range all {
		if !isMarkerOf(volume, v.Name) {
			continue
		}
		if err := s.remove(ctx, c, pool, v.Name); err != nil {
			return err
		}
	}
	return nil
}

// mark makes a base usable.
func (s *Store) mark(c Volumes, pool libvirt.StoragePool, j *job, length int64) error {
	text, err := virtxml.Volume{Name: markerOf(j.volume, length), Format: "raw", Capacity: markerBytes}.Marshal()
	if err != nil {
		return err
	}
	_, err = c.VolumeCreate(s.ctx, pool, text)
	if code := rpc.CodeOf(err); code == rpc.VolumeExists || code == rpc.OperationFailed {
		if _, lookErr := c.VolumeLookup(s.ctx, pool, markerOf(j.volume, length)); lookErr == nil {
			return nil
		}
	}
	return err
}

// takeBack deletes a base that came to nothing, over a connection of its own: the download's may be what has failed.
func (s *Store) takeBack(j *job) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanLimit)
	defer cancel()
	c, done, err := s.o.Open(ctx, j.host)
	if err != nil {
		return err
	}
	defer func() { _ = done() }()
	if _, complete, err := look(ctx, c, j.key); complete || err != nil {
		// Somebody else has taken this one for left over, and has finished the next: machines may use it.
		return err
	}
	pool, err := c.PoolLookupByName(ctx, j.pool)
	if err != nil {
		return err
	}
	return s.remove(ctx, c, pool, j.volume)
}

func (s *Store) remove(ctx context.Context, c Volumes, pool libvirt.StoragePool, name string) error {
	volume, err := c.VolumeLookup(ctx, pool, name)
	if err == nil {
		err = c.VolumeDelete(ctx, volume)
	}
	if rpc.CodeOf(err) == rpc.NoVolume {
		return nil
	}
	return err
}

// counted hashes what goes through it, and counts it for those who ask how far it is.
func (s *Store) counted(j *job, r io.Reader, sum hash.Hash) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		n, err := r.Read(p)
		sum.Write(p[:n])
		s.mu.Lock()
		j.done += int64(n)
		done := float64(j.done) / float64(j.length)
		s.mu.Unlock()
		s.o.Metrics.read(j.host, j.image.Name, n, done)
		return n, err
	})
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
