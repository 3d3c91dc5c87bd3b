package libvirt_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// TestDeletesOfBuildsDoNotBlockTheHost: deletions meet builds that queue for a call, and neither waits for the other.
func TestDeletesOfBuildsDoNotBlockTheHost(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		b.settle(b.request("first"))
		b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
			if c.Procedure == libvirttest.DomainCreate || c.Procedure == libvirttest.StorageVolCreateXML {
				return libvirttest.Fault{Delay: 300 * time.Millisecond}
			}
			return libvirttest.Fault{}
		})
		var reqs []providers.CreateRequest
		var wg sync.WaitGroup
		for n := range 16 {
			req := b.request(fmt.Sprint("px-", n))
			reqs = append(reqs, req)
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				_, _ = b.Create(ctx, req)
			})
		}
		<-time.After(700 * time.Millisecond)
		start := time.Now()
		var failed atomic.Int64
		for _, req := range reqs {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
				defer cancel()
				err := b.Delete(ctx, refOf(req))
				if err != nil && !providers.IsNotFound(err) {
					failed.Add(1)
					t.Log(time.Since(start), providers.RawText(err))
				}
			})
		}
		wg.Wait()
		if failed.Load() > 0 || time.Since(start) > 25*time.Second {
			t.Errorf("%d deletions failed, all took %v", failed.Load(), time.Since(start))
		}
	})
}

// TestCapacityLeavesNothing: a lack of room says that nothing is left; what could not be taken back is said otherwise.
func TestCapacityLeavesNothing(t *testing.T) {
	b := newBed(t, kvm.NewFactory, 1)
	b.settle(b.request("first"))
	req := b.request("px")
	b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
		switch c.Procedure {
		case libvirttest.DomainCreate:
			return libvirttest.Fault{Action: libvirttest.Fail, Code: 38, Message: "No space left on device"}
		case libvirttest.StorageVolDelete:
			return libvirttest.Fault{Action: libvirttest.Fail, Code: 38, Message: "Input/output error"}
		}
		return libvirttest.Fault{}
	})
	_, err := b.Create(t.Context(), req)
	if err == nil {
		t.Fatal("created although the start was refused")
	}
	b.whole()
	domains, volumes := b.traces(b.Hosts[0], req.Name)
	if providers.ReasonOf(err) == providers.Capacity && len(domains)+len(volumes) > 0 {
		t.Errorf("Capacity, and %v %v are left", domains, volumes)
	}
}

// TestCancelledReadOfSecretIsUnavailable: an API server that does not answer says nothing about the credentials.
func TestCancelledReadOfSecretIsUnavailable(t *testing.T) {
	b := newBed(t, kvm2.NewFactory, 1)
	class := b.Class("s", 1)
	block := class.Spec.KVM2
	block.SSHKeyFile, block.KnownHostsFile = "", ""
	setSecret(block)
	p, err := b.Factory.Open(t.Context(), class, providers.Runtime{ClusterID: cluster, Clock: b.clock,
		Secrets: func(ctx context.Context, _ string) (map[string][]byte, error) { return nil, context.DeadlineExceeded }})
	b.must(err)
	defer func() { _ = p.Close() }()
	_, err = p.Get(t.Context(), refOf(b.request("px")))
	if providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("the API server did not answer in time: %v", err)
	}
}

func setSecret(block *v1alpha1.LibvirtClass) {
	block.SSHSecretRef = &v1alpha1.LocalSecretRef{Name: "s"}
}

// TestAnOverpromisedHostIsNotChosen: a pool of thin disks that has promised more than it has is full.
func TestAnOverpromisedHostIsNotChosen(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 2)
		c := b.Hosts[0].Conn()
		pool, err := c.PoolLookupByName(t.Context(), libvirttest.Pool)
		b.must(err)
		text, err := virtxml.Volume{Name: "px-other-4186dee0-7f78-41fc-a44d-7337608a34c5.qcow2", Format: "qcow2", Capacity: 1 << 50}.Marshal()
		b.must(err)
		_, err = c.VolumeCreate(t.Context(), pool, text)
		b.must(err)
		b.must(b.Check(t.Context()))
		spec := libvirtcheck.Spec()
		got := map[string]int{}
		for n := range 64 {
			zone, err := b.Place(&spec, types.UID(fmt.Sprint("owner-", n)), nil)
			b.must(err)
			got[zone]++
		}
		if got[b.Hosts[0].Name] > 0 {
			t.Errorf("h1 has promised more than it has, and is chosen: %v", got)
		}
	})
}

// TestSpaceIsThatOfTheRealDisk: an image may be larger than the class's disks.
func TestSpaceIsThatOfTheRealDisk(t *testing.T) {
	b := newBed(t, kvm2.NewFactory, 1)
	b.Break(func(w http.ResponseWriter) bool {
		data := libvirtcheck.QCOW2(libvirtcheck.ImageBytes)
		binary.BigEndian.PutUint64(data[24:], 1<<50)
		w.Header().Set("Content-Length", strconv.Itoa(len(data)))
		_, _ = w.Write(data)
		return true
	})
	req := b.request("px")
	receipt, err := b.Create(t.Context(), req)
	if err != nil {
		t.Fatal(providers.RawText(err))
	}
	ref := refOf(req)
	ref.Operation = receipt.Operation
	b.eventually("the machine has come to nothing", func() bool {
		i, got := b.Get(t.Context(), ref)
		if i.State == providers.StateRunning {
			t.Fatal("a machine with a disk of a pebibyte runs on a pool that has not got it")
		}
		err = got
		return got != nil
	})
	if providers.OutcomeOf(err) != providers.Capacity {
		t.Errorf("it came to %v, want NotFound for lack of capacity", providers.RawText(err))
	}
}

// TestDeletionDoesNotNeedTheDefinition: a snapshot has put another file in the place of the disk.
func TestDeletionDoesNotNeedTheDefinition(t *testing.T) {
	b := newBed(t, kvm2.NewFactory, 1)
	req := b.request("px")
	b.settle(req)
	c := b.Hosts[0].Conn()
	d, err := c.DomainLookupByName(t.Context(), req.Name)
	b.must(err)
	text, err := c.DomainXML(t.Context(), d)
	b.must(err)
	text = regexp.MustCompile(`(?s)<disk type='volume'.*?</disk>`).ReplaceAllString(text, "")
	b.must(c.DomainDestroy(t.Context(), d))
	_, err = c.DomainDefine(t.Context(), text)
	b.must(err)
	if err := b.Delete(t.Context(), refOf(req)); err != nil {
		t.Error(providers.RawText(err))
	}
}
