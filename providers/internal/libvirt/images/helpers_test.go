package images

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/go-logr/logr"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// limit of anything that a test waits for.
const limit = 20 * time.Second

// emptyQCOW2 is how long a qcow2 file is that nothing was written to.
const emptyQCOW2 = 196616

// pool is a storage pool as libvirt's daemon shows it: one that lets volumes be deleted while they are written, and that takes
// an upload which stops short for a success.
type pool struct {
	mu      sync.Mutex
	volumes map[string]*volume
	// uploads and deleted are what was done.
	uploads int
	deleted []string
	// taken is how many bytes of an upload reach the disk, when positive.
	taken int64
	// created and written are told of what was just done; their error is the call's.
	created func(name string) error
	written func(name string) error
	// duplicate is the code for a name that is taken; by default that of the driver for QEMU.
	duplicate int
}

type volume struct{ virtxml.Volume }

func newPool() *pool { return &pool{volumes: map[string]*volume{}} }

func refuse(procedure string, code int) error {
	return &rpc.Error{Procedure: procedure, Code: code, Err: errors.New("refused")}
}

func (p *pool) PoolLookupByName(_ context.Context, name string) (libvirt.StoragePool, error) {
	if name != "proxies" {
		return libvirt.StoragePool{}, refuse("StoragePoolLookupByName", rpc.NoPool)
	}
	return libvirt.StoragePool{Name: name}, nil
}

func (p *pool) Volumes(_ context.Context, _ libvirt.StoragePool) ([]libvirt.StorageVol, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []libvirt.StorageVol
	for name := range p.volumes {
		out = append(out, libvirt.StorageVol{Pool: "proxies", Name: name, Key: "/pool/" + name})
	}
	return out, nil
}

func (p *pool) VolumeLookup(_ context.Context, _ libvirt.StoragePool, name string) (libvirt.StorageVol, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes[name] == nil {
		return libvirt.StorageVol{}, refuse("StorageVolLookupByName", rpc.NoVolume)
	}
	return libvirt.StorageVol{Pool: "proxies", Name: name, Key: "/pool/" + name}, nil
}

func (p *pool) VolumeCreate(_ context.Context, _ libvirt.StoragePool, xml string) (libvirt.StorageVol, error) {
	v, err := virtxml.ParseVolume(xml)
	if err != nil {
		return libvirt.StorageVol{}, refuse("StorageVolCreateXML", rpc.XMLError)
	}
	p.mu.Lock()
	if p.volumes[v.Name] != nil {
		p.mu.Unlock()
		return libvirt.StorageVol{}, refuse("StorageVolCreateXML", cmp.Or(p.duplicate, rpc.VolumeExists))
	}
	v.Path, v.Physical = "/pool/"+v.Name, v.Capacity
	if v.Format == formatQCOW2 {
		v.Physical = emptyQCOW2
	}
	p.volumes[v.Name] = &volume{v}
	hook := p.created
	p.mu.Unlock()
	if hook != nil {
		err = hook(v.Name)
	}
	return libvirt.StorageVol{Pool: "proxies", Name: v.Name, Key: v.Path}, err
}

func (p *pool) VolumeDelete(_ context.Context, v libvirt.StorageVol) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.volumes[v.Name] == nil {
		return refuse("StorageVolDelete", rpc.NoVolume)
	}
	delete(p.volumes, v.Name)
	p.deleted = append(p.deleted, v.Name)
	return nil
}

func (p *pool) VolumeXML(_ context.Context, v libvirt.StorageVol) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.volumes[v.Name]
	if known == nil {
		return "", refuse("StorageVolGetXMLDesc", rpc.NoVolume)
	}
	return fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><physical>%d</physical><target><path>%s</path><format type='%s'/></target></volume>",
		known.Name, known.Capacity, known.Physical, known.Path, known.Format), nil
}

func (p *pool) VolumeUpload(ctx context.Context, v libvirt.StorageVol, r io.Reader, length int64) error {
	p.mu.Lock()
	file := p.volumes[v.Name]
	p.uploads++
	p.mu.Unlock()
	if file == nil {
		return refuse("StorageVolUpload", rpc.NoVolume)
	}
	buffer := make([]byte, 32<<10)
	for got := int64(0); ; {
		if err := ctx.Err(); err != nil {
			return &rpc.Error{Procedure: "StorageVolUpload", Err: err}
		}
		n, err := r.Read(buffer)
		got += int64(n)
		p.mu.Lock()
		if p.taken == 0 || got <= p.taken {
			file.Physical = max(file.Physical, got)
		}
		hook := p.written
		p.mu.Unlock()
		switch {
		case got > length:
			return &rpc.Error{Procedure: "StorageVolUpload", Err: errors.New("too long")}
		case errors.Is(err, io.EOF) && got < length:
			return &rpc.Error{Procedure: "StorageVolUpload", Err: io.ErrUnexpectedEOF}
		case err != nil && !errors.Is(err, io.EOF):
			return &rpc.Error{Procedure: "StorageVolUpload", Err: err}
		case hook != nil:
			if err := hook(v.Name); err != nil {
				return err
			}
		}
		if got == length && err != nil {
			return nil
		}
	}
}

// names of the volumes that are there.
func (p *pool) names() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int64{}
	for name, v := range p.volumes {
		out[name] = v.Physical
	}
	return out
}

// put makes a volume by somebody else's hand.
func (p *pool) put(name string, physical int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.volumes[name] = &volume{virtxml.Volume{Name: name, Path: "/pool/" + name, Format: "qcow2", Capacity: 1 << 30, Physical: physical}}
}

func (p *pool) drop(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.volumes, name)
}

func (p *pool) uploadCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.uploads
}

// qcow2 is an image of a length whose disk has 1 GiB.
func qcow2(length int) []byte {
	data := make([]byte, length)
	for i := range data {
		data[i] = byte(i * 7)
	}
	clear(data[:headerBytes])
	copy(data, qcow2Magic)
	binary.BigEndian.PutUint32(data[4:], 3)
	binary.BigEndian.PutUint64(data[24:], 1<<30)
	return data
}

func sumOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// web is a server of one image.
type web struct {
	*httptest.Server
	gets   atomic.Int32
	handle atomic.Pointer[http.HandlerFunc]
}

func (w *web) set(h http.HandlerFunc) { w.handle.Store(&h) }

func serve(t *testing.T, h http.HandlerFunc) *web {
	w := &web{}
	w.set(h)
	w.Server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.gets.Add(1)
		(*w.handle.Load())(rw, r)
	}))
	t.Cleanup(w.Close)
	return w
}

// whole sends an image as a server should.
func whole(data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
	}
}

// rig is a Store on hosts of its own.
type rig struct {
	*Store
	t     *testing.T
	clock *clocktesting.FakeClock
	hosts map[string]*pool
	woken chan string
	open  atomic.Int32
}

func newRig(t *testing.T, hosts map[string]*pool, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0)), hosts: hosts, woken: make(chan string, 100)}
	o := Options{
		Prefix: "kvm2-base-", Clock: r.clock, HTTP: &http.Client{Transport: &http.Transport{}}, Logger: logr.Discard(),
		Open: func(_ context.Context, host string) (Volumes, func() error, error) {
			r.open.Add(1)
			return hosts[host], func() error { r.open.Add(-1); return nil }, nil
		},
		Wake: func(host, image string) { r.woken <- host + "/" + image },
	}
	for _, c := range change {
		c(&o)
	}
	r.Store = New(o)
	t.Cleanup(func() {
		r.Close()
		if n := r.open.Load(); n != 0 {
			t.Errorf("%d connections were left open", n)
		}
		o.HTTP.CloseIdleConnections()
	})
	return r
}

func (r *rig) ensure(host string, image Image) (Base, Progress, error) {
	return r.Ensure(r.t.Context(), r.hosts[host], host, "proxies", image)
}

// ended waits for the end of a download, and lets time pass for those who wait for it.
func (r *rig) ended() {
	r.t.Helper()
	r.await(func() bool {
		select {
		case <-r.woken:
			return true
		default:
			return false
		}
	})
}

func (r *rig) await(met func() bool) {
	r.t.Helper()
	r.until(func() bool {
		if r.clock.HasWaiters() {
			r.clock.Step(watchEvery)
		}
		return met()
	})
}

// until waits without time passing for the Store.
func (r *rig) until(met func() bool) {
	r.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(limit)
	for !met() {
		select {
		case <-tick.C:
		case <-deadline:
			r.t.Fatal("it does not happen")
		}
	}
}

// fetch starts a download, waits for its end and returns what Ensure says then.
func (r *rig) fetch(host string, image Image) (Base, Progress, error) {
	r.t.Helper()
	if _, p, err := r.ensure(host, image); err != nil || p.Done {
		r.t.Fatalf("the download does not start: %+v, %v", p, err)
	}
	r.ended()
	return r.ensure(host, image)
}

// usable are the bases of a pool that have their marker.
func usable(p *pool) (out []string) {
	names := p.names()
	for name, physical := range names {
		if _, marked := names[markerOf(name, physical)]; marked && !strings.HasSuffix(name, ".ok") {
			out = append(out, name)
		}
	}
	return out
}
