package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/digitalocean/go-libvirt"
	"go.uber.org/goleak"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// open opens a connection to the host's Frames, without SSH.
func open(t *testing.T, h *libvirttest.Host, o rpc.Options) *rpc.Conn {
	t.Helper()
	raw, err := net.Dial("unix", h.Socket)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Open(t.Context(), raw, libvirttest.URI, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

const domainXML = `<domain type='test'><name>px-1</name><uuid>6f2a0f6e-4a0f-4a3f-9d2f-1c5b0c4f7d11</uuid><memory unit='MiB'>64</memory>
<vcpu>1</vcpu><os><type>hvm</type></os></domain>`

// TestLifeOfADomain makes every call once, and every error that the engine relies on.
func TestLifeOfADomain(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	c, ctx := open(t, h, rpc.Options{}), t.Context()
	check := func(what string, err error, code int) {
		t.Helper()
		if rpc.CodeOf(err) != code || code == 0 && err != nil || rpc.IsLost(err) {
			t.Errorf("%s: %v, want code %d", what, err, code)
		}
	}
	version, err := c.LibVersion(ctx)
	if check("version", err, 0); version < 1_000_000 {
		t.Errorf("version %d", version)
	}
	xml, err := c.Capabilities(ctx)
	if check("capabilities", err, 0); !strings.Contains(xml, "<capabilities>") {
		t.Errorf("capabilities %s", xml)
	}
	_, err = c.DomainLookupByName(ctx, "px-1")
	check("look-up of nothing", err, rpc.NoDomain)
	_, err = c.DomainDefine(ctx, "<domain")
	check("bad XML", err, rpc.XMLDetail)
	d, err := c.DomainDefine(ctx, domainXML)
	check("define", err, 0)
	_, err = c.DomainDefine(ctx, domainXML)
	check("define again", err, 0)
	check("destroy what is off", c.DomainDestroy(ctx, d), rpc.OperationInvalid)
	check("start", c.DomainCreate(ctx, d), 0)
	check("autostart", c.DomainSetAutostart(ctx, d, true), 0)
	state, _, err := c.DomainState(ctx, d)
	if check("state", err, 0); libvirt.DomainState(state) != libvirt.DomainRunning {
		t.Errorf("state %d", state)
	}
	xml, err = c.DomainXML(ctx, d)
	if check("XML", err, 0); !strings.Contains(xml, "<name>px-1</name>") {
		t.Errorf("XML %s", xml)
	}
	all, err := c.Domains(ctx)
	if check("list", err, 0); len(all) != 2 {
		t.Errorf("domains %v, want the driver's own and ours", all)
	}
	_, err = c.DomainAddresses(ctx, d, 0)
	check("addresses", err, 0)
	check("destroy", c.DomainDestroy(ctx, d), 0)
	check("undefine", c.DomainUndefine(ctx, d), 0)
	check("undefine again", c.DomainUndefine(ctx, d), rpc.NoDomain)

	_, err = c.NetworkActive(ctx, "none")
	check("no network", err, rpc.NoNetwork)
	active, err := c.NetworkActive(ctx, libvirttest.Network)
	if check("network", err, 0); !active {
		t.Error("the network is not active")
	}
	_, err = c.PoolLookupByName(ctx, "none")
	check("no pool", err, rpc.NoPool)
}

// volume makes a volume in the default pool.
func volume(t *testing.T, c *rpc.Conn, name, format string) libvirt.StorageVol {
	t.Helper()
	pool, err := c.PoolLookupByName(t.Context(), libvirttest.Pool)
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.VolumeCreate(t.Context(), pool, "<volume><name>"+name+"</name><capacity>1048576</capacity><target><format type='"+format+"'/></target></volume>")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVolumesAndUploads(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	c, ctx := open(t, h, rpc.Options{}), t.Context()
	pool, err := c.PoolLookupByName(ctx, libvirttest.Pool)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := c.PoolInfo(ctx, pool); err != nil || !info.Active || info.Capacity == 0 {
		t.Errorf("pool %+v, %v", info, err)
	}
	if err := c.PoolRefresh(ctx, pool); err != nil {
		t.Error(err)
	}
	if _, err := c.VolumeLookup(ctx, pool, "none"); rpc.CodeOf(err) != rpc.NoVolume {
		t.Errorf("no volume: %v", err)
	}
	v := volume(t, c, "a.qcow2", "qcow2")
	content := append([]byte("QFI\xfb"+strings.Repeat("\x00", 20)+"\x00\x00\x00\x00\x10\x00\x00\x00"), make([]byte, 5<<20)...)
	if err := c.VolumeUpload(ctx, v, bytes.NewReader(content), int64(len(content))); err != nil {
		t.Fatal(err)
	}
	if got := h.Frames.Uploaded(libvirttest.Pool, "a.qcow2"); got != int64(len(content)) {
		t.Errorf("%d bytes arrived of %d", got, len(content))
	}
	xml, err := c.VolumeXML(ctx, v)
	if err != nil || !strings.Contains(xml, "<physical unit='bytes'>5242912</physical>") || !strings.Contains(xml, "<capacity unit='bytes'>268435456</capacity>") {
		t.Errorf("after the upload: %v\n%s", err, xml)
	}
	if volumes, err := c.Volumes(ctx, pool); err != nil || len(volumes) != 1 {
		t.Errorf("volumes %v, %v", volumes, err)
	}

	broken := errors.New("the line went dead")
	canceled, cancel := context.WithCancel(ctx)
	for name, test := range map[string]struct {
		ctx    context.Context
		source io.Reader
		want   error
	}{
		"short":   {ctx, strings.NewReader("12345"), io.ErrUnexpectedEOF},
		"long":    {ctx, strings.NewReader(strings.Repeat("x", 1000)), nil},
		"failing": {ctx, io.MultiReader(strings.NewReader("12345"), iotest.ErrReader(broken)), broken},
		"canceled": {canceled, io.MultiReader(strings.NewReader("12345"), readFunc(func([]byte) (int, error) {
			cancel()
			return 1, nil
		})), context.Canceled},
	} {
		err := c.VolumeUpload(test.ctx, v, test.source, 100)
		if err == nil || test.want != nil && !errors.Is(err, test.want) || rpc.CodeOf(err) != 0 {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		if _, err := c.LibVersion(ctx); err != nil {
			t.Errorf("%s: the connection cannot be used further: %v", name, err)
		}
	}
	if err := c.VolumeDelete(ctx, v); err != nil {
		t.Error(err)
	}
	if err := c.VolumeDelete(ctx, v); rpc.CodeOf(err) != rpc.NoVolume {
		t.Errorf("deleted twice: %v", err)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// TestUploadWithoutProgressEnds: the source is stuck, or the host takes nothing.
func TestUploadWithoutProgressEnds(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("source", func(t *testing.T) {
		c := open(t, h, rpc.Options{UploadIdle: 200 * time.Millisecond, CallTimeout: 5 * time.Second})
		v := volume(t, c, "b", "raw")
		release := make(chan struct{})
		stuck := readFunc(func([]byte) (int, error) {
			<-release
			return 0, io.EOF
		})
		if err := c.VolumeUpload(t.Context(), v, stuck, 10); !rpc.IsLost(err) || !c.Lost() {
			t.Errorf("%v, want a lost connection", err)
		}
		close(release)
	})
	t.Run("host", func(t *testing.T) {
		c := open(t, h, rpc.Options{UploadIdle: 200 * time.Millisecond})
		v := volume(t, c, "c", "raw")
		h.Frames.Decide(func(call libvirttest.Call) libvirttest.Fault {
			if call.Procedure == libvirttest.StorageVolUpload {
				return libvirttest.Fault{Action: libvirttest.Hold}
			}
			return libvirttest.Fault{}
		})
		if err := c.VolumeUpload(t.Context(), v, strings.NewReader("1234567890"), 10); !rpc.IsLost(err) {
			t.Errorf("%v, want a lost connection", err)
		}
	})
}

// TestCallsEndWhateverHappensToTheConnection: before and after a call is carried out, by an error, or never.
func TestCallsEndWhateverHappensToTheConnection(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for name, test := range map[string]struct {
		fault libvirttest.Fault
		code  int
		lost  bool
	}{
		"cut before": {fault: libvirttest.Fault{Action: libvirttest.CutBefore}, lost: true},
		"cut after":  {fault: libvirttest.Fault{Action: libvirttest.CutAfter}, lost: true},
		"no answer":  {fault: libvirttest.Fault{Action: libvirttest.Hold}, lost: true},
		"an error":   {fault: libvirttest.Fault{Action: libvirttest.Fail, Code: rpc.SystemError, Message: "no"}, code: rpc.SystemError},
	} {
		t.Run(name, func(t *testing.T) {
			h.Frames.Reset()
			c := open(t, h, rpc.Options{CallTimeout: 5 * time.Second})
			h.Frames.Decide(func(libvirttest.Call) libvirttest.Fault { return test.fault })
			_, err := c.LibVersion(t.Context())
			h.Frames.Decide(nil)
			if rpc.CodeOf(err) != test.code || rpc.IsLost(err) != test.lost || c.Lost() != test.lost {
				t.Errorf("%v (lost: %v)", err, c.Lost())
			}
			if _, err := c.LibVersion(t.Context()); (err != nil) != test.lost {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// TestCallersWhoGiveUpLeaveTheConnectionToTheOthers: a short patience of one must not cost the rest their calls.
func TestCallersWhoGiveUpLeaveTheConnectionToTheOthers(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	c := open(t, h, rpc.Options{})
	h.Frames.Decide(func(call libvirttest.Call) libvirttest.Fault {
		if call.Procedure == libvirttest.ConnectListAllDomains {
			return libvirttest.Fault{Action: libvirttest.Hold}
		}
		return libvirttest.Fault{}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Domains(ctx); !errors.Is(err, context.DeadlineExceeded) || rpc.IsLost(err) {
		t.Errorf("%v", err)
	}
	if _, err := c.LibVersion(t.Context()); err != nil {
		t.Errorf("the others: %v", err)
	}
}

// TestClosingUnderLoadEndsEveryCall: no goroutine and no connection is left.
func TestClosingUnderLoadEndsEveryCall(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c := open(t, h, rpc.Options{})
	var wg sync.WaitGroup
	started := make(chan struct{}, 20)
	for range cap(started) {
		wg.Go(func() {
			for first := true; ; first = false {
				_, err := c.LibVersion(t.Context())
				if err != nil && !rpc.IsLost(err) {
					t.Errorf("%v", err)
				}
				if err != nil {
					return
				}
				if first {
					started <- struct{}{}
				}
			}
		})
	}
	for range cap(started) {
		<-started
	}
	c.Abort(errors.New("enough"))
	wg.Wait()
	libvirttest.Await(t, func() error {
		if n := h.Frames.Open(); n > 0 {
			return errors.New("there are connections left")
		}
		return nil
	})
}
