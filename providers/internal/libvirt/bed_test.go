package libvirt_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

const (
	cluster = "cluster"
	// breath is how long a tick waits for what runs beside the clock, in real time.
	breath = 5 * time.Millisecond
	// patience is how many ticks of a second anything may take.
	patience = 600
)

// bothTypes runs a test for each of the two types.
func bothTypes(t *testing.T, test func(*testing.T, func() *libvirt.Factory)) {
	t.Helper()
	t.Run("kvm", func(t *testing.T) { t.Parallel(); test(t, kvm.NewFactory) })
	t.Run("kvm2", func(t *testing.T) { t.Parallel(); test(t, kvm2.NewFactory) })
}

// bed is a provider on hosts, with a clock that the test moves.
type bed struct {
	*libvirtcheck.Bed
	t     *testing.T
	clock *clocktesting.FakeClock
	providers.Provider
}

func newBed(t *testing.T, factory func() *libvirt.Factory, hosts int) *bed {
	t.Helper()
	b := &bed{Bed: libvirtcheck.New(t, factory(), hosts), t: t, clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second))}
	b.Provider = b.open(b.Factory, cluster, b.Class("a", hosts))
	return b
}

// open opens a class as another process does.
func (b *bed) open(f *libvirt.Factory, clusterID string, class *v1alpha1.ProviderClass) providers.Provider {
	b.t.Helper()
	if problems := f.Validate(class); len(problems) > 0 {
		b.t.Fatal(problems.ToAggregate())
	}
	p, err := f.Open(b.t.Context(), class, providers.Runtime{ClusterID: clusterID, Clock: b.clock})
	b.must(err)
	b.t.Cleanup(func() { _ = p.Close() })
	return p
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(providers.RawText(err))
	}
}

func (b *bed) tick() {
	b.clock.Step(time.Second)
	<-time.After(breath)
}

func (b *bed) eventually(what string, holds func() bool) {
	b.t.Helper()
	for range patience {
		if holds() {
			return
		}
		b.tick()
	}
	b.t.Fatalf("%s: not within %d ticks", what, patience)
}

// request of a new Proxy on the first host.
func (b *bed) request(name string) providers.CreateRequest {
	uid := uuid.NewUUID()
	return providers.CreateRequest{
		Name: providers.InstanceName(cluster, name, uid), Owner: providers.Owner{ClusterID: cluster, Namespace: "default", Name: name, UID: uid},
		Zone: b.Hosts[0].Name, Hash: "v1-0123456789abcdef", Attempt: string(uid) + "-1", Spec: libvirtcheck.Spec(), UserData: []byte("#cloud-config\n{}\n"),
	}
}

func refOf(req providers.CreateRequest) providers.Ref {
	return providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone}
}

// settle does what the controller does until the machine runs, and gives it.
func (b *bed) settle(req providers.CreateRequest) providers.Instance {
	b.t.Helper()
	var last string
	for attempt := range patience {
		i, err := b.Get(b.t.Context(), refOf(req))
		last = fmt.Sprintf("%s %q %v", i.State, i.Message, err)
		switch {
		case providers.IsNotFound(err):
			req.Attempt = fmt.Sprintf("%s-%d", req.Owner.UID, attempt)
			_, _ = b.Create(b.t.Context(), req)
		case err != nil:
		case i.State == providers.StateRunning && len(i.Addresses) > 0:
			return i
		case i.State == providers.StateStopped, i.State == providers.StateFailed:
			_ = b.Delete(b.t.Context(), i.Ref)
		}
		b.tick()
	}
	b.t.Fatalf("%s does not run: %s", req.Name, last)
	return providers.Instance{}
}

// remove does what the controller does until the machine is gone.
func (b *bed) remove(req providers.CreateRequest) {
	b.t.Helper()
	b.eventually("gone", func() bool {
		i, err := b.Get(b.t.Context(), refOf(req))
		if err == nil {
			_ = b.Delete(b.t.Context(), i.Ref)
		}
		return providers.IsNotFound(err)
	})
}

// traces are the domains and volumes of a name on a host, past the provider.
func (b *bed) traces(h *libvirttest.Host, name string) (domains, volumes []string) {
	b.t.Helper()
	others := func(other string) bool { return !strings.HasPrefix(other, name) }
	return slices.DeleteFunc(h.Domains(b.t), others), slices.DeleteFunc(b.volumes(h), others)
}

// volumes are all volumes of a host.
func (b *bed) volumes(h *libvirttest.Host) []string {
	b.t.Helper()
	return h.Volumes(b.t, libvirttest.Pool)
}

// calls counts the RPCs of something.
func (b *bed) calls(do func()) int {
	b.Hosts[0].Frames.Reset()
	do()
	return len(b.Hosts[0].Frames.Calls())
}

// cut lets one RPC meet a fault: the one that follows so many others.
func (b *bed) cut(after int, action libvirttest.Action) {
	b.Hosts[0].Frames.Reset()
	b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
		if c.N == after {
			return libvirttest.Fault{Action: action}
		}
		return libvirttest.Fault{}
	})
}

func (b *bed) whole() {
	b.Hosts[0].Frames.Decide(nil)
	b.clock.Step(host.MaxBackoff)
}
