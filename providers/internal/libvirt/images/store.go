package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

const (
	// MaxDownloads at once, over all hosts of a class.
	MaxDownloads = 4
	// StallAfter is how long a base without a marker may stay as long as it is before nobody is believed to write it.
	StallAfter = time.Minute
	// IdleTimeout is how long a source may send nothing.
	IdleTimeout = time.Minute
	// retryMin and retryMax bound the time to the next try of a download that has failed; it doubles.
	retryMin = 10 * time.Second
	retryMax = 5 * time.Minute
	// watchEvery is the time between two looks at a base that somebody else writes.
	watchEvery = 5 * time.Second
	// cleanLimit is how long taking back a base that came to nothing may take.
	cleanLimit = 30 * time.Second
)

// Image is a base image of a class.
type Image struct {
	Name string
	// URL is http, https or file.
	URL string
	// SHA256 in hexadecimal; "" when it is not checked.
	SHA256 string
}

// Base is an image on a host.
type Base struct {
	// Volume is its name in the pool, Path its file.
	Volume, Path string
	Format       string
	// Capacity is the size of the disk in it, in bytes.
	Capacity int64
}

// Progress of an image on its way.
type Progress struct {
	Done bool
	// Percent in steps of 10; -1 when it is not known.
	Percent int
}

// Volumes are the calls on a host's pools; *rpc.Conn has them.
type Volumes interface {
	PoolLookupByName(ctx context.Context, name string) (libvirt.StoragePool, error)
	Volumes(ctx context.Context, p libvirt.StoragePool) ([]libvirt.StorageVol, error)
	VolumeLookup(ctx context.Context, p libvirt.StoragePool, name string) (libvirt.StorageVol, error)
	VolumeCreate(ctx context.Context, p libvirt.StoragePool, xml string) (libvirt.StorageVol, error)
	VolumeDelete(ctx context.Context, v libvirt.StorageVol) error
	VolumeXML(ctx context.Context, v libvirt.StorageVol) (string, error)
	VolumeUpload(ctx context.Context, v libvirt.StorageVol, r io.Reader, length int64) error
}

// Options of a Store. Metrics may be nil.
type Options struct {
	// Prefix of the names of bases, which tells those of one type of provider from another's.
	Prefix string
	Clock  clock.WithTicker
	HTTP   *http.Client
	// Open gives a connection to a host for one download, and what ends it.
	Open func(ctx context.Context, host string) (Volumes, func() error, error)
	// Wake is told when a download has ended, however.
	Wake    func(host, image string)
	Logger  logr.Logger
	Metrics *Metrics
}

// Store knows the downloads of one class. It is safe for concurrent use.
type Store struct {
	o      Options
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	wg     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	jobs   map[key]*job
}

// key of a base on a host.
type key struct{ host, pool, volume string }

// job is a download, or what is remembered of the last one.
type job struct {
	key
	image   Image
	running bool
	// length and done are in bytes.
	length, done int64
	err          error
	failures     int
	retryAt      time.Time
}

// New makes a Store. It starts nothing.
func New(o Options) *Store {
	ctx, cancel := context.WithCancel(context.Background())
	return &Store{o: o, ctx: ctx, cancel: cancel, slots: make(chan struct{}, MaxDownloads), jobs: map[key]*job{}}
}

// Close ends all downloads. What they leave has no marker, and is begun anew by whoever comes next.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.wg.Wait()
}

// volumeOf is the name of an image's base. Another source or another checksum is another base.
func (s *Store) volumeOf(image Image) string {
	sum := sha256.Sum256([]byte(image.URL + "\n" + image.SHA256))
	return s.o.Prefix + image.Name + "-" + hex.EncodeToString(sum[:6]) + ".qcow2"
}

// markerOf is the name of the marker of a base that is so many bytes long.
func markerOf(volume string, length int64) string { return fmt.Sprintf("%s.%d.ok", volume, length) }

// isMarkerOf tells whether a volume is a marker of a base, of whatever length.
func isMarkerOf(volume, name string) bool {
	rest, ours := strings.CutPrefix(name, volume+".")
	length, marker := strings.CutSuffix(rest, ".ok")
	_, err := strconv.ParseUint(length, 10, 63)
	return ours && marker && err == nil
}

// Ensure looks whether an image is on a host. If not, it starts the download, or joins the one that is under way, and tells
// how far it is. The error of a download is a *providers.Error, the last one's as long as the next has to wait, with the path
// of the field below the class's block; errors of c are passed on.
func (s *Store) Ensure(ctx context.Context, c Volumes, host, pool string, image Image) (Base, Progress, error) {
	k := key{host, pool, s.volumeOf(image)}
	base, ok, err := look(ctx, c, k)
	if err != nil {
		return Base{}, Progress{}, err
	}
	if ok {
		s.mu.Lock()
		if j := s.jobs[k]; j != nil && !j.running {
			delete(s.jobs, k)
		}
		s.mu.Unlock()
		return base, Progress{Done: true, Percent: 100}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	j := s.jobs[k]
	if j == nil {
		j = &job{key: k, image: image}
		s.jobs[k] = j
	}
	switch {
	case s.closed:
		return Base{}, Progress{}, providers.NewError(providers.Unavailable, opDownload, "the provider of the class is closing", nil)
	case j.running:
	case j.err != nil && s.o.Clock.Now().Before(j.retryAt):
		return Base{}, Progress{Percent: -1}, j.err
	default:
		j.running, j.done, j.length = true, 0, 0
		s.wg.Go(func() { s.run(j) })
	}
	return Base{}, Progress{Percent: j.percent()}, nil
}

// percent is called with the lock held.
func (j *job) percent() int {
	if j.length <= 0 {
		return -1
	}
	return int(j.done*10/j.length) * 10
}

// run makes one try of a download.
func (s *Store) run(j *job) {
	err := s.download(j)
	s.mu.Lock()
	j.running, j.err = false, err
	if err == nil {
		j.failures = 0
	} else {
		j.failures++
		j.retryAt = s.o.Clock.Now().Add(min(retryMax, retryMin<<min(j.failures-1, 10)))
	}
	s.mu.Unlock()
	s.o.Metrics.ended(j.host, j.image.Name, err)
	if s.ctx.Err() != nil {
		return
	}
	if err != nil {
		s.o.Logger.Info("an image could not be brought to a host", "host", j.host, "image", j.image.Name, "error", providers.RawText(err))
	}
	s.o.Wake(j.host, j.image.Name)
}

// look finds a base that is complete.
func look(ctx context.Context, c Volumes, k key) (Base, bool, error) {
	pool, err := c.PoolLookupByName(ctx, k.pool)
	if err != nil {
		return Base{}, false, err
	}
	v, found, err := describe(ctx, c, pool, k.volume)
	if err != nil || !found {
		return Base{}, false, err
	}
	_, err = c.VolumeLookup(ctx, pool, markerOf(k.volume, v.Physical))
	switch {
	case rpc.CodeOf(err) == rpc.NoVolume:
		return Base{}, false, nil
	case err != nil:
		return Base{}, false, err
	}
	return Base{Volume: v.Name, Path: v.Path, Format: formatQCOW2, Capacity: v.Capacity}, true, nil
}

// describe reads a volume; found is false when there is none.
func describe(ctx context.Context, c Volumes, pool libvirt.StoragePool, name string) (v virtxml.Volume, found bool, err error) {
	volume, err := c.VolumeLookup(ctx, pool, name)
	if rpc.CodeOf(err) == rpc.NoVolume {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	text, err := c.VolumeXML(ctx, volume)
	if rpc.CodeOf(err) == rpc.NoVolume {
		return v, false, nil
	}
	if err != nil {
		return v, false, err
	}
	v, err = virtxml.ParseVolume(text)
	if err != nil {
		return v, false, err
	}
	if v.Path == "" {
		v.Path = volume.Key
	}
	return v, true, nil
}

// errTaken says that a base appeared while it was about to be made.
var errTaken = errors.New("another process has begun the base")
