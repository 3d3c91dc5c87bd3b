package images

import (
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

const imageBytes = 600_000

// TestV15_OneDownloadPerHost however many ask at once.
func TestV15_OneDownloadPerHost(t *testing.T) {
	data := qcow2(imageBytes)
	release := make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		<-release
		whole(data)(w, r)
	})
	r := newRig(t, map[string]*pool{"a": newPool(), "b": newPool()})
	image := Image{Name: "debian", URL: server.URL, SHA256: sumOf(data)}
	var wg sync.WaitGroup
	for range 25 {
		for host := range r.hosts {
			wg.Go(func() {
				if _, p, err := r.ensure(host, image); err != nil || p.Done || p.Percent != -1 {
					t.Errorf("%s: %+v, %v", host, p, err)
				}
			})
		}
	}
	wg.Wait()
	close(release)
	r.ended()
	r.ended()
	if got := server.gets.Load(); got != 2 {
		t.Errorf("%d downloads for two hosts", got)
	}
	for host, p := range r.hosts {
		base, progress, err := r.ensure(host, image)
		if err != nil || !progress.Done || progress.Percent != 100 {
			t.Fatalf("%s: %+v, %v", host, progress, err)
		}
		if base.Volume != r.volumeOf(image) || base.Path != "/pool/"+base.Volume || base.Format != "qcow2" || base.Capacity != 1<<30 {
			t.Errorf("the base is %+v", base)
		}
		if names := p.names(); len(names) != 2 || p.uploadCount() != 1 {
			t.Errorf("%s has %v after %d uploads", host, names, p.uploadCount())
		}
	}
}

// TestV15_TwoProcessesShareABase: the exclusive creation of the volume decides who writes it, by either driver's code.
func TestV15_TwoProcessesShareABase(t *testing.T) {
	for name, code := range map[string]int{"qemu": rpc.VolumeExists, "test": rpc.OperationFailed} {
		t.Run(name, func(t *testing.T) {
			data := qcow2(imageBytes)
			server := serve(t, whole(data))
			shared := newPool()
			shared.duplicate = code
			// Both have looked and found nothing when the first creates.
			var both sync.WaitGroup
			both.Add(2)
			server.set(func(w http.ResponseWriter, r *http.Request) {
				both.Done()
				both.Wait()
				server.set(whole(data))
				whole(data)(w, r)
			})
			m, err := NewMetrics(nil)
			if err != nil {
				t.Fatal(err)
			}
			counted := func(o *Options) { o.Metrics = m }
			one, two := newRig(t, map[string]*pool{"a": shared}, counted), newRig(t, map[string]*pool{"a": shared}, counted)
			image := Image{Name: "debian", URL: server.URL}
			for _, r := range []*rig{one, two} {
				if _, _, err := r.ensure("a", image); err != nil {
					t.Fatal(err)
				}
			}
			one.ended()
			two.ended()
			for _, r := range []*rig{one, two} {
				if _, p, err := r.ensure("a", image); err != nil || !p.Done {
					t.Errorf("%+v, %v", p, err)
				}
			}
			if got := testutil.ToFloat64(m.downloads.WithLabelValues("a", "debian", "")); got != 2 {
				t.Errorf("%v of two succeeded", got)
			}
			if n := shared.uploadCount(); n != 1 || len(shared.deleted) != 0 {
				t.Errorf("%d uploads, deleted were %v", n, shared.deleted)
			}
		})
	}
}

// TestV17_LeftoverIsReplaced: a base without a marker that nobody writes is what a crash has left.
func TestV17_LeftoverIsReplaced(t *testing.T) {
	data := qcow2(imageBytes)
	server := serve(t, whole(data))
	r := newRig(t, map[string]*pool{"a": newPool()})
	image := Image{Name: "debian", URL: server.URL}
	name := r.volumeOf(image)
	r.hosts["a"].put(name, imageBytes/2)
	began := r.clock.Now()
	if base, p, err := r.fetch("a", image); err != nil || !p.Done || base.Volume != name {
		t.Errorf("%+v, %+v, %v", base, p, err)
	}
	if waited := r.clock.Since(began); waited < StallAfter {
		t.Errorf("it was deleted after %s", waited)
	}
	if got := r.hosts["a"].deleted; !slices.Equal(got, []string{name}) {
		t.Errorf("deleted were %v", got)
	}
}

// TestV17_WhatAnotherProcessWritesIsLeftAlone as long as it grows, and used when it is complete.
func TestV17_WhatAnotherProcessWritesIsLeftAlone(t *testing.T) {
	server := serve(t, whole(qcow2(imageBytes)))
	p := newPool()
	r := newRig(t, map[string]*pool{"a": p})
	image := Image{Name: "debian", URL: server.URL}
	name := r.volumeOf(image)
	p.put(name, 1)
	if _, _, err := r.ensure("a", image); err != nil {
		t.Fatal(err)
	}
	for size := int64(2); size < 6; size++ {
		before := r.clock.Now()
		r.await(func() bool { return r.clock.Since(before) > StallAfter/2 })
		if _, progress, err := r.ensure("a", image); err != nil || progress.Done || len(p.deleted) > 0 {
			t.Fatalf("%+v, %v, deleted were %v", progress, err, p.deleted)
		}
		p.put(name, size)
	}
	p.put(markerOf(name, 5), 1)
	r.ended()
	if _, progress, err := r.ensure("a", image); err != nil || !progress.Done {
		t.Errorf("%+v, %v", progress, err)
	}
	if server.gets.Load() != 0 || len(p.deleted) > 0 {
		t.Errorf("%d downloads, deleted were %v", server.gets.Load(), p.deleted)
	}
}

// TestV17_OldMarkersMakeNothingUsable: bases were deleted by hand and their markers left. The next one passes through their
// lengths before it is whole, and before its checksum is known.
func TestV17_OldMarkersMakeNothingUsable(t *testing.T) {
	data := qcow2(imageBytes)
	server := serve(t, whole(data))
	for what, sum := range map[string]string{"another checksum": strings.Repeat("0", 64), "none": "", "the right one": sumOf(data)} {
		p := newPool()
		r := newRig(t, map[string]*pool{"a": p})
		image := Image{Name: "debian", URL: server.URL, SHA256: sum}
		name := r.volumeOf(image)
		others := markerOf(r.volumeOf(Image{Name: "debian", URL: "https://other.example"}), imageBytes)
		for _, length := range []int64{1, emptyQCOW2 + 1, imageBytes / 2, imageBytes - 1, imageBytes, imageBytes + 1} {
			p.put(markerOf(name, length), 1)
		}
		p.put(others, 1)
		full := false
		p.written = func(string) error {
			names := p.names()
			full = full || names[name] == imageBytes
			for other := range names {
				if strings.HasPrefix(other, name+".") {
					t.Errorf("%s: %s stands beside a base of %d bytes that is being written", what, other, names[name])
				}
			}
			return nil
		}
		_, progress, err := r.fetch("a", image)
		want := []string{others}
		if sum == "" || sum == sumOf(data) {
			want = append(want, name, markerOf(name, imageBytes))
		}
		slices.Sort(want)
		if good := len(want) > 1; !full || good != (err == nil && progress.Done) || !good && providers.ReasonOf(err) != providers.InvalidSpec {
			t.Errorf("%s: %+v, %v, the whole image was there: %v", what, progress, err, full)
		}
		if names := slices.Sorted(maps.Keys(p.names())); !slices.Equal(names, want) {
			t.Errorf("%s: left are %v, want %v", what, names, want)
		}
	}
}

// TestV17_CloseLeavesNothingUsable and the next process begins anew.
func TestV17_CloseLeavesNothingUsable(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	data := qcow2(imageBytes)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "600000")
		_, _ = w.Write(data[:imageBytes*2/3])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	p := newPool()
	image := Image{Name: "debian", URL: server.URL}
	r := newRig(t, map[string]*pool{"a": p})
	if _, _, err := r.ensure("a", image); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { return p.names()[r.volumeOf(image)] > emptyQCOW2 })
	r.Close()
	if got := usable(p); len(got) > 0 || len(r.woken) > 0 {
		t.Errorf("usable are %v, %d wake-ups", got, len(r.woken))
	}
	if _, _, err := r.ensure("a", image); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("after Close: %v", err)
	}
	server.set(whole(data))
	next := newRig(t, map[string]*pool{"a": p})
	if _, progress, err := next.fetch("a", image); err != nil || !progress.Done {
		t.Errorf("%+v, %v", progress, err)
	}
	next.Close()
	server.Close()
}

// TestV18_BaseDeletedByHandIsBroughtAgain, with and without its marker.
func TestV18_BaseDeletedByHandIsBroughtAgain(t *testing.T) {
	data := qcow2(imageBytes)
	server := serve(t, whole(data))
	p := newPool()
	r := newRig(t, map[string]*pool{"a": p})
	image := Image{Name: "debian", URL: server.URL}
	name := r.volumeOf(image)
	for i, gone := range [][]string{nil, {name}, {name, markerOf(name, imageBytes)}} {
		for _, volume := range gone {
			p.drop(volume)
		}
		if _, progress, err := r.fetch("a", image); err != nil || !progress.Done {
			t.Fatalf("%+v, %v", progress, err)
		}
		if got := server.gets.Load(); int(got) != i+1 {
			t.Errorf("%d downloads", got)
		}
	}
	// A base that somebody has cut or written to is none.
	p.put(name, imageBytes-1)
	if _, progress, err := r.fetch("a", image); err != nil || !progress.Done || len(usable(p)) != 1 {
		t.Errorf("%+v, %v", progress, err)
	}
}

// TestV18_VolumeThatVanishesUnderItsUploadIsNoticed: libvirt takes the upload for a success.
func TestV18_VolumeThatVanishesUnderItsUploadIsNoticed(t *testing.T) {
	server := serve(t, whole(qcow2(imageBytes)))
	p := newPool()
	p.written = func(name string) error { p.drop(name); return nil }
	r := newRig(t, map[string]*pool{"a": p})
	image := Image{Name: "debian", URL: server.URL}
	if _, _, err := r.fetch("a", image); providers.ReasonOf(err) != providers.Unavailable || len(p.names()) != 0 {
		t.Fatalf("%v, left are %v", err, p.names())
	}
	p.written = nil
	r.clock.Step(retryMin)
	if _, progress, err := r.fetch("a", image); err != nil || !progress.Done {
		t.Errorf("%+v, %v", progress, err)
	}
}

// TestMarkerOfUnknownOutcome: the connection is lost while the marker is made. The base may be in use by then.
func TestMarkerOfUnknownOutcome(t *testing.T) {
	server := serve(t, whole(qcow2(imageBytes)))
	p := newPool()
	p.created = func(name string) error {
		if strings.HasSuffix(name, ".ok") {
			return &rpc.Error{Procedure: "StorageVolCreateXML", Lost: true, Err: http.ErrServerClosed}
		}
		return nil
	}
	r := newRig(t, map[string]*pool{"a": p})
	if _, progress, err := r.fetch("a", Image{Name: "debian", URL: server.URL}); err != nil || !progress.Done || len(p.deleted) > 0 {
		t.Errorf("%+v, %v, deleted were %v", progress, err, p.deleted)
	}
}

// TestRetriesBackOff: the last failure is told until the time of the next try, which is asked for and not made by itself.
func TestRetriesBackOff(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	r := newRig(t, map[string]*pool{"a": newPool()})
	image := Image{Name: "debian", URL: server.URL}
	for i, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		if _, _, err := r.fetch("a", image); providers.ReasonOf(err) != providers.Unavailable {
			t.Fatal(err)
		}
		r.clock.Step(wait*time.Second - 1)
		if _, _, err := r.ensure("a", image); err == nil || int(server.gets.Load()) != i+1 {
			t.Fatalf("after failure %d: %v, %d tries", i+1, err, server.gets.Load())
		}
		r.clock.Step(1)
	}
}

// TestMetrics: what was brought, how far it is, and how it ended.
func TestMetrics(t *testing.T) {
	data := qcow2(imageBytes)
	half := make(chan struct{})
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "600000")
		_, _ = w.Write(data[:imageBytes/2])
		_ = http.NewResponseController(w).Flush()
		<-half
		_, _ = w.Write(data[imageBytes/2:])
	})
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := NewMetrics(registry); err != nil || again.bytes != m.bytes || again.progress != m.progress {
		t.Errorf("a second manager of the process: %v", err)
	}
	r := newRig(t, map[string]*pool{"a": newPool()}, func(o *Options) { o.Metrics = m })
	image := Image{Name: "debian", URL: server.URL}
	if _, _, err := r.ensure("a", image); err != nil {
		t.Fatal(err)
	}
	r.until(func() bool { return testutil.ToFloat64(m.progress.WithLabelValues("a", "debian")) == 0.5 })
	if _, p, err := r.ensure("a", image); err != nil || p.Percent != 50 {
		t.Errorf("%+v, %v", p, err)
	}
	close(half)
	r.ended()
	if got := testutil.ToFloat64(m.bytes.WithLabelValues("a", "debian")); got != imageBytes {
		t.Errorf("%v bytes", got)
	}
	if got := testutil.ToFloat64(m.downloads.WithLabelValues("a", "debian", "")); got != 1 {
		t.Errorf("%v downloads", got)
	}
	if n := testutil.CollectAndCount(m.progress); n != 0 {
		t.Errorf("%d series of progress are left", n)
	}
}
