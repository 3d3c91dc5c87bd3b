package libvirtcheck

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/resource"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
	"crawl.example.com/egress-proxies-operator/providers/providertest"
)

// breath is how long a tick of the fake clock waits for what runs beside it, in real time.
const breath = 10 * time.Millisecond

// notice is how long it takes until everybody knows that a connection was cut, in real time. A call that is made before finds
// a connection that breaks, and not what the next dial will find.
const notice = 500 * time.Millisecond

// Conformance runs the suite against two real hosts with libvirt's test driver.
func Conformance(t *testing.T, newFactory func() *libvirt.Factory) {
	bed := New(t, newFactory(), 2)
	block := string(bed.Factory.Type())
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
		bad := func(change func(*v1alpha1.LibvirtClass)) *v1alpha1.ProviderClass {
			class := bed.Class("a", 2)
			change(Block(class))
			return class
		}
		return providertest.Harness{
			Factory:  bed.Factory,
			Runtime:  providers.Runtime{ClusterID: "cluster", Clock: clock},
			Class:    func(name string) *v1alpha1.ProviderClass { return bed.Class(name, 2) },
			Spec:     func() v1alpha1.ProxySpec { return Spec() },
			Tick:     func() { clock.Step(time.Second); <-time.After(breath) },
			Patience: 200,
			Invalid: map[string]v1alpha1.ProxySpec{
				"spec.placement.machineType": Spec(func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "?" }),
				"spec.placement.image":       Spec(func(s *v1alpha1.ProxySpec) { s.Placement.Image = "" }),
				"spec.placement.zone":        Spec(func(s *v1alpha1.ProxySpec) { s.Placement.Zone = "nowhere" }),
				"spec.cloudInit": Spec(func(s *v1alpha1.ProxySpec) {
					s.CloudInit = &v1alpha1.CloudInit{Inline: strings.Repeat("x", libvirt.MaxUserData+1)}
				}),
			},
			InvalidClasses: map[string]*v1alpha1.ProviderClass{
				"spec." + block + ".sshKeyFile":             bad(func(c *v1alpha1.LibvirtClass) { c.SSHKeyFile = "/etc/shadow" }),
				"spec." + block + ".knownHostsFile":         bad(func(c *v1alpha1.LibvirtClass) { c.KnownHostsFile = "" }),
				"spec." + block + ".images[1].url":          bad(func(c *v1alpha1.LibvirtClass) { c.Images[1].URL = "ftp://a/b" }),
				"spec." + block + ".machineTypes[0].memory": bad(func(c *v1alpha1.LibvirtClass) { c.MachineTypes[0].Memory = resource.MustParse("1Ki") }),
				"spec." + block + ".hosts[1].address":       bad(func(c *v1alpha1.LibvirtClass) { c.Hosts[1].Address = "a b" }),
				"spec." + block + ".hosts[1].network":       bad(func(c *v1alpha1.LibvirtClass) { c.Hosts[1].Bridge, c.Hosts[1].Network = "br0", "n" }),
				"spec." + block + ".hosts[1].name":          bad(func(c *v1alpha1.LibvirtClass) { c.Hosts[1].Name = c.Hosts[0].Name }),
			},
			UserData:      []byte("#cloud-config\npackages: [squid]\n"),
			UserDataLimit: libvirt.MaxUserData,
			Secrets:       []string{string(bed.Hosts[0].Key.Private)},
			Zones:         []string{bed.Hosts[0].Name, bed.Hosts[1].Name},
			Calls:         bed.calls,
			Exists:        func(ref providers.Ref) bool { return bed.exists(t, ref) },
			Missing: map[string]func(*providers.CreateRequest){
				"its host": func(req *providers.CreateRequest) { req.Zone = "nowhere" },
			},
			Foreign: bed.foreign,
			Fail: func(reason providers.Reason) func() {
				restore := bed.fail(t, reason)
				if restore == nil {
					return nil
				}
				// A host that was down is not dialled at once.
				clock.Step(host.MaxBackoff)
				return func() { restore(); clock.Step(host.MaxBackoff) }
			},
			Hang: bed.hang,
			Partial: map[string]providertest.Partial{"a host": {
				Shown: func() int { return bed.Hosts[0].Frames.Count(libvirttest.DomainGetXMLDesc) },
				Hide: func() func() {
					bed.Hosts[0].Frames.Reset()
					restore := bed.down(t, bed.Hosts[1])
					return func() { restore(); clock.Step(host.MaxBackoff) }
				},
			}},
		}
	})
}

func (b *Bed) calls() int {
	n := 0
	for _, h := range b.Hosts {
		n += len(h.Frames.Calls()) + h.Link.Opened()
	}
	return n
}

// host of a name.
func (b *Bed) host(name string) *libvirttest.Host {
	for _, h := range b.Hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

func (b *Bed) exists(t testing.TB, ref providers.Ref) bool {
	_, err := b.host(ref.Zone).Conn().DomainLookupByName(t.Context(), ref.Name)
	if err != nil && rpc.CodeOf(err) != rpc.NoDomain {
		t.Errorf("look up %s past the provider: %v", ref.Name, err)
	}
	return err == nil
}

// foreign defines a machine that is not the operator's.
func (b *Bed) foreign(t testing.TB, ref providers.Ref) {
	t.Helper()
	conn := b.host(ref.Zone).Conn()
	text, err := virtxml.Domain{
		Name: ref.Name, UUID: uuid.NewString(), Type: "kvm", CPUs: 1, MemoryBytes: 128 << 20, Pool: libvirttest.Pool,
		Disk: "theirs", Seed: "theirs-too", Network: libvirttest.Network, MAC: "52:54:00:00:00:01",
		Metadata: virtxml.Metadata{Provider: "somebody-else", CreatedAt: time.Now()},
	}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	domain, err := conn.DomainDefine(t.Context(), text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.DomainUndefine(cleanupContext(), domain); err != nil && rpc.CodeOf(err) != rpc.NoDomain {
			t.Error(err)
		}
	})
}

// down takes a host out of reach until it is restored.
func (b *Bed) down(t testing.TB, h *libvirttest.Host) (restore func()) {
	h.SSHD.Kill()
	h.Link.Cut()
	<-time.After(notice)
	return sync.OnceFunc(func() { h.SSHD.Start(t) })
}

func (b *Bed) hang() (restore func()) {
	for _, h := range b.Hosts {
		h.Link.Stall()
	}
	return sync.OnceFunc(func() {
		for _, h := range b.Hosts {
			h.Link.Resume()
		}
	})
}

func (b *Bed) fail(t testing.TB, reason providers.Reason) (restore func()) {
	var undo []func()
	for _, h := range b.Hosts {
		switch reason {
		case providers.Unavailable:
			undo = append(undo, b.down(t, h))
		case providers.Auth:
			h.Authorize(t)
			h.Link.Cut()
			<-time.After(notice)
			undo = append(undo, func() { h.Authorize(t, b.Hosts[0].Key.AuthorizedKey(libvirttest.SafeOptions)) })
		case providers.Capacity:
			undo = append(undo, b.fill(t, h))
		default:
			return nil
		}
	}
	return sync.OnceFunc(func() {
		for _, f := range undo {
			f()
		}
	})
}

// fill promises all space of a host's pool to a disk that does not use it yet, and refuses new volumes as a full file system
// does.
func (b *Bed) fill(t testing.TB, h *libvirttest.Host) (restore func()) {
	conn := h.Conn()
	pool, err := conn.PoolLookupByName(t.Context(), libvirttest.Pool)
	if err != nil {
		t.Fatal(err)
	}
	text, err := virtxml.Volume{Name: fmt.Sprintf("px-filler-%s.qcow2", uuid.NewString()), Format: "qcow2", Capacity: 1 << 50}.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	volume, err := conn.VolumeCreate(t.Context(), pool, text)
	if err != nil {
		t.Fatal(err)
	}
	h.Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
		if c.Procedure == libvirttest.StorageVolCreateXML {
			return libvirttest.Fault{Action: libvirttest.Fail, Code: rpc.SystemError, Message: "cannot write: No space left on device"}
		}
		return libvirttest.Fault{}
	})
	return func() {
		h.Frames.Decide(nil)
		if err := conn.VolumeDelete(cleanupContext(), volume); err != nil {
			t.Error(err)
		}
	}
}
