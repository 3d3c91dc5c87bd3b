package fleettest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/digitalocean/go-libvirt"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	libvirtprovider "crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

const (
	// pollPeriod is the time between two looks at what is waited for.
	pollPeriod = 100 * time.Millisecond
	// settleLimit bounds how long the operator may take once it is left in peace.
	settleLimit = 5 * time.Minute
)

// bed is one class on hosts, with core and a provider manager.
type bed struct {
	*libvirtcheck.Bed
	t         *testing.T
	env       *testenv.Env
	namespace string
	class     *v1alpha1.ProviderClass
}

func newBed(t *testing.T, f *libvirtprovider.Factory, hosts int) *bed {
	t.Helper()
	env := testenv.New(t)
	b := &bed{Bed: libvirtcheck.New(t, f, hosts), t: t, env: env, namespace: env.Namespace(t)}
	b.class = b.classOf("", hosts, func(*v1alpha1.LibvirtClass) {})
	core, err := testenv.StartProcess(testenv.BuildOperator(t), []string{
		"core", "--api-bind-address=0", "--kubeconfig=" + testenv.Kubeconfig(t, env.Config), "--leader-elect=false",
		"--leader-election-namespace=" + b.namespace, "--watch-namespaces=" + b.namespace, "--health-probe-bind-address=0", "--metrics-bind-address=0",
	}, nil)
	b.must(err)
	t.Cleanup(func() {
		core.Signal(syscall.SIGKILL)
		<-core.Done()
		if t.Failed() {
			t.Log(core.Tail())
		}
	})
	return b
}

// classOf makes a class on the first so many hosts, with something changed.
func (b *bed) classOf(suffix string, hosts int, change func(*v1alpha1.LibvirtClass)) *v1alpha1.ProviderClass {
	b.t.Helper()
	class := b.Class(string(b.Factory.Type())+"-"+b.namespace+suffix, hosts)
	class.ObjectMeta = metav1.ObjectMeta{Name: class.Name}
	class.Spec.AllowedNamespaces = v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll}
	class.Spec.MaxConcurrentCreates, class.Spec.MaxConcurrentReplacements = ptr.To[int32](50), ptr.To[int32](50)
	change(libvirtcheck.Block(class))
	b.must(b.env.Client.Create(b.t.Context(), class))
	return class
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// start starts a provider manager; stop ends it as a rollout does.
func (b *bed) start() (stop func()) {
	b.t.Helper()
	mgr, err := manager.New(b.env.Config, manager.Provider(b.Factory.Type()), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", WatchNamespaces: []string{b.namespace}, SkipNameValidation: true,
	})
	b.must(err)
	b.must(provider.Add(mgr, provider.Options{
		Factory: b.Factory, Clock: clock.RealClock{}, ClusterID: "cluster-" + b.namespace, ControllerName: v1alpha1.DefaultControllerName,
		Namespaces: []string{b.namespace},
	}))
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := mgr.Start(ctx); err != nil {
			b.t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); group.Wait() })
	b.t.Cleanup(stop)
	return stop
}

func (b *bed) proxy(name string) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}, Spec: libvirtcheck.Spec()}
	px.Spec.Provider = b.class.Name
	px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config\n{}\n"}
	return px
}

func (b *bed) proxies() []v1alpha1.Proxy {
	b.t.Helper()
	list := &v1alpha1.ProxyList{}
	b.must(b.env.Client.List(b.t.Context(), list, client.InNamespace(b.namespace)))
	return list.Items
}

// machine is a domain as its host has it.
type machine struct {
	host   *libvirttest.Host
	domain libvirt.Domain
	virtxml.Domain
}

// machines are all domains of the hosts that this installation has made, past the provider.
func (b *bed) machines() []machine {
	b.t.Helper()
	var out []machine
	for _, h := range b.Hosts {
		domains, err := h.Conn().Domains(b.t.Context())
		b.must(err)
		for _, d := range domains {
			text, err := h.Conn().DomainXML(b.t.Context(), d)
			if rpc.CodeOf(err) == rpc.NoDomain {
				continue
			}
			b.must(err)
			parsed, err := virtxml.ParseDomain(text)
			b.must(err)
			if parsed.Metadata.ClusterID == "cluster-"+b.namespace {
				out = append(out, machine{h, d, parsed})
			}
		}
	}
	return out
}

// volumes are the names of all volumes of a host but for base images and their markers.
func (b *bed) volumes(h *libvirttest.Host) []string {
	b.t.Helper()
	return slices.DeleteFunc(h.Volumes(b.t, libvirttest.Pool), func(name string) bool { return strings.Contains(name, "-base-") })
}

// differences are what keeps hosts and Proxies from being the same; "" when they are.
func (b *bed) differences() string {
	machines, want := map[string][]machine{}, map[string][]string{}
	for _, m := range b.machines() {
		machines[m.Metadata.UID] = append(machines[m.Metadata.UID], m)
		want[m.host.Name] = append(want[m.host.Name], m.Disk, m.Seed)
	}
	for _, px := range b.proxies() {
		if !px.DeletionTimestamp.IsZero() || !meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) ||
			!meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionUpToDate) {
			return fmt.Sprintf("%s: deleted %v, %+v", px.Name, px.DeletionTimestamp, px.Status.Conditions)
		}
		if n := len(machines[string(px.UID)]); n != 1 {
			return fmt.Sprintf("%s has %d machines", px.Name, n)
		}
		if m := machines[string(px.UID)][0]; m.domain.ID < 0 {
			return fmt.Sprintf("the machine of %s does not run", px.Name)
		}
		delete(machines, string(px.UID))
	}
	if len(machines) > 0 {
		return fmt.Sprintf("machines without a Proxy: %v", slices.Collect(maps.Keys(machines)))
	}
	for _, h := range b.Hosts {
		have, want := b.volumes(h), want[h.Name]
		slices.Sort(want)
		if !slices.Equal(have, want) {
			return fmt.Sprintf("volumes of %s: %v, want %v", h.Name, have, want)
		}
	}
	return ""
}

// settle waits until hosts and Proxies are the same.
func (b *bed) settle() {
	b.t.Helper()
	last := ""
	if err := wait.PollUntilContextTimeout(b.t.Context(), pollPeriod, settleLimit, true, func(context.Context) (bool, error) {
		last = b.differences()
		return last == "", nil
	}); err != nil {
		b.t.Errorf("not settled: %s", last)
	}
}
