package libvirttest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// TestRigFaultsOfCalls: what the caller sees of each fault, and whether libvirtd has carried the call out.
func TestRigFaultsOfCalls(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	for name, test := range map[string]struct {
		fault libvirttest.Fault
		code  int
		// lost is the connection, silent the call, done what libvirtd has to do.
		lost, silent, done bool
	}{
		"pass":       {done: true},
		"late":       {fault: libvirttest.Fault{Delay: short}, done: true},
		"cut-before": {fault: libvirttest.Fault{Action: libvirttest.CutBefore}, lost: true},
		"cut-after":  {fault: libvirttest.Fault{Action: libvirttest.CutAfter}, lost: true, done: true},
		"fail":       {fault: libvirttest.Fault{Action: libvirttest.Fail, Code: rpc.SystemError, Message: "No space left on device"}, code: rpc.SystemError},
		"stall":      {fault: libvirttest.Fault{Action: libvirttest.Stall}, silent: true, done: true},
		"hold":       {fault: libvirttest.Fault{Action: libvirttest.Hold}, silent: true},
	} {
		t.Run(name, func(t *testing.T) {
			h.Frames.Reset()
			c := direct(t, h)
			// The second definition is the one that suffers.
			h.Frames.Decide(func(call libvirttest.Call) libvirttest.Fault {
				if call.Procedure == libvirttest.DomainDefineXMLFlags && call.Nth == 1 {
					return test.fault
				}
				return libvirttest.Fault{}
			})
			if err := define(t.Context(), c, name+"-first"); err != nil {
				t.Fatal(err)
			}
			ctx := t.Context()
			if test.silent {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, short)
				defer cancel()
			}
			start := time.Now()
			err := define(ctx, c, name)
			if rpc.CodeOf(err) != test.code || rpc.IsLost(err) != test.lost || errors.Is(err, context.DeadlineExceeded) != test.silent ||
				(err == nil) != (test.code == 0 && !test.lost && !test.silent) {
				t.Errorf("%v, want code %d, lost: %v, silent: %v", err, test.code, test.lost, test.silent)
			}
			if err != nil && !strings.Contains(err.Error(), test.fault.Message) {
				t.Errorf("%v, want %q in it", err, test.fault.Message)
			}
			if took := time.Since(start); took < test.fault.Delay {
				t.Errorf("answered after %v, want %v", took, test.fault.Delay)
			}
			// libvirtd may see the call only after a client that is cut off has gone on.
			libvirttest.Await(t, func() error {
				if got := h.Domains(t); slices.Contains(got, name) != test.done {
					return fmt.Errorf("domains %v", got)
				}
				return nil
			})
			if err := answers(t.Context(), c); (err != nil) != test.lost {
				t.Errorf("the next call: %v", err)
			}
		})
	}
}

// TestRigCounts calls, connections and what is under way at once.
func TestRigCounts(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	h.Frames.Reset()
	c := direct(t, h)
	var seen []libvirttest.Call
	h.Frames.Decide(func(call libvirttest.Call) libvirttest.Fault {
		if call.Procedure != libvirttest.ConnectGetLibVersion {
			return libvirttest.Fault{}
		}
		seen = append(seen, call)
		return libvirttest.Fault{Action: libvirttest.Hold}
	})
	before := len(h.Frames.Calls())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := answers(ctx, c); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	libvirttest.Await(t, func() error {
		if n := h.Frames.Count(libvirttest.ConnectGetLibVersion); n != 3 {
			return fmt.Errorf("%d calls", n)
		}
		return nil
	})
	cancel()
	wg.Wait()
	for i, call := range seen {
		if call.Nth != i || call.N != before+i || call.Procedure.String() != "ConnectGetLibVersion" {
			t.Errorf("call %d is %+v", i, call)
		}
	}
	if most := h.Frames.MostInFlight(); len(seen) != 3 || most != 3 {
		t.Errorf("%d calls decided, %d at once", len(seen), most)
	}
	if h.Frames.Open() != 1 || h.Frames.Opened() != 1 {
		t.Errorf("%d connections of %d", h.Frames.Open(), h.Frames.Opened())
	}
	h.Frames.Reset()
	if err := answers(t.Context(), c); err != nil || len(seen) != 3 || len(h.Frames.Calls()) != 1 {
		t.Errorf("after Reset: %v, %d calls decided, calls %v", err, len(seen), h.Frames.Calls())
	}
	h.Frames.Cut()
	if err := answers(t.Context(), c); !rpc.IsLost(err) {
		t.Errorf("cut: %v", err)
	}
	libvirttest.Await(t, func() error {
		if n := h.Frames.Open(); n > 0 {
			return errors.New("a connection that was cut counts as open")
		}
		return nil
	})
}

// image of so many bytes, whose disk has a gibibyte.
func image(length int) []byte {
	data := make([]byte, length)
	copy(data, "QFI\xfb")
	binary.BigEndian.PutUint64(data[24:], 1<<30)
	return data
}

// TestRigUploads: sizes are those of a file system, whatever becomes of the upload.
func TestRigUploads(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	c := direct(t, h)
	lookup := func(c *rpc.Conn) libvirt.StoragePool {
		t.Helper()
		pool, err := c.PoolLookupByName(t.Context(), libvirttest.Pool)
		if err != nil {
			t.Fatal(err)
		}
		return pool
	}
	create := func(c *rpc.Conn, name, format string) libvirt.StorageVol {
		t.Helper()
		v, err := c.VolumeCreate(t.Context(), lookup(c), fmt.Sprintf("<volume><name>%s</name><capacity>65536</capacity><target><format type='%s'/></target></volume>", name, format))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	sizes := func(v libvirt.StorageVol, capacity, physical int) {
		t.Helper()
		xml, err := direct(t, h).VolumeXML(t.Context(), v)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{fmt.Sprintf("<capacity unit='bytes'>%d<", capacity), fmt.Sprintf("<physical unit='bytes'>%d<", physical)} {
			if strings.Count(xml, want) != 1 {
				t.Errorf("want %s once in %s", want, xml)
			}
		}
	}
	const length, empty = 1 << 20, 196 << 10
	upload := func(v libvirt.StorageVol) {
		t.Helper()
		if err := c.VolumeUpload(t.Context(), v, bytes.NewReader(image(length)), length); err != nil {
			t.Fatal(err)
		}
		if got := h.Frames.Uploaded(libvirttest.Pool, v.Name); got != length {
			t.Errorf("%d bytes have arrived", got)
		}
		sizes(v, 1<<30, length)
	}
	v := create(c, "base.qcow2", "qcow2")
	sizes(v, 65536, empty)
	upload(v)
	sizes(create(c, "seed.iso", "raw"), 65536, 65536)
	if got := h.Volumes(t, libvirttest.Pool); !slices.Equal(got, []string{"base.qcow2", "seed.iso"}) {
		t.Errorf("volumes %v", got)
	}

	// A volume of the same name is new: after a deletion through Frames, after one beside it, and when libvirtd has forgotten.
	if err := c.VolumeDelete(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	v = create(c, "base.qcow2", "qcow2")
	sizes(v, 65536, empty)
	upload(v)
	if err := h.Conn().VolumeDelete(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	v = create(c, "base.qcow2", "qcow2")
	sizes(v, 65536, empty)
	upload(v)
	h.Libvirtd.Restart(t)
	c = direct(t, h)
	v = create(c, "base.qcow2", "qcow2")
	sizes(v, 65536, empty)

	// A cut in the middle leaves what has arrived, one at the end leaves all.
	for _, fault := range []libvirttest.Fault{{Action: libvirttest.CutUpload, Bytes: length / 2}, {Action: libvirttest.CutAfter}} {
		h.Frames.Decide(func(call libvirttest.Call) libvirttest.Fault {
			if call.Procedure == libvirttest.StorageVolUpload {
				return fault
			}
			return libvirttest.Fault{}
		})
		err := c.VolumeUpload(t.Context(), v, bytes.NewReader(image(length)), length)
		h.Frames.Decide(nil)
		got := h.Frames.Uploaded(libvirttest.Pool, v.Name)
		if whole := fault.Action == libvirttest.CutAfter; !rpc.IsLost(err) || (got == length) != whole || got < fault.Bytes {
			t.Errorf("%+v: %v after %d bytes", fault, err, got)
		}
		sizes(v, 1<<30, int(got))
		c = direct(t, h)
	}
}
