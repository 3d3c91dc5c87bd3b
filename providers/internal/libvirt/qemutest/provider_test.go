//go:build libvirt

// Package qemutest tries the libvirt providers on real hypervisors with real guests: sshd, libvirtd and QEMU of a lab, see
// internal/libvirtlab. `make test-libvirt` runs it. Tests that do something to a host or to the images on it have a host of their
// own or come one after the other; the rest runs in parallel, as many as there are cores.
package qemutest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/providers"
	libvirt "crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
)

const (
	clusterID = "lab"
	imageName = "base"
	sizeName  = "small"
	// callLimit is that of one call of a provider, as its guard would set it.
	callLimit = time.Minute
)

// setup is a class on hosts of the lab.
type setup struct {
	// factory of kvm or kvm2.
	factory func() *libvirt.Factory
	hosts   []libvirtlab.Host
	source  *source
	// bridged connects the machines to the plain bridge instead of the network.
	bridged bool
	memory  string
	// alter changes the block of the class; nil does not.
	alter func(*v1alpha1.LibvirtClass)
}

// cloud is an opened class with what the tests need to know about it.
type cloud struct {
	providers.Provider
	setup
}

// open opens the class; another one with the same files is another process of the manager.
func (s setup) open(t *testing.T) *cloud {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, libvirt.CredentialsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	block := &v1alpha1.LibvirtClass{
		SSHKeyFile: libvirt.CredentialsDir + "/id", KnownHostsFile: libvirt.CredentialsDir + "/known_hosts",
		Images:       []v1alpha1.LibvirtImage{{Name: imageName, URL: s.source.URL + "/base.qcow2", SHA256: s.source.sum}},
		MachineTypes: []v1alpha1.LibvirtMachineType{{Name: sizeName, CPUs: 1, Memory: resource.MustParse(s.memory)}},
		DiskSizeGb:   ptr.To[int32](1), DomainType: "qemu",
	}
	for _, h := range s.hosts {
		host := v1alpha1.LibvirtHost{
			Name: h.Name, Address: h.Address, Port: int32(h.Port), User: h.User, Socket: h.Socket, URI: h.URI, Pool: h.Pool, Network: h.Network,
		}
		if s.bridged {
			host.Network, host.Bridge = "", h.Bridge
		}
		block.Hosts = append(block.Hosts, host)
	}
	key, known := libvirtlab.Credentials(t, s.hosts...)
	writeFile(t, filepath.Join(dir, "id"), key)
	writeFile(t, filepath.Join(dir, "known_hosts"), known)
	if s.alter != nil {
		s.alter(block)
	}
	factory := s.factory()
	factory.Root = root
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Spec: v1alpha1.ProviderClassSpec{Type: factory.Type()}}
	if factory.Type() == v1alpha1.ProviderKVM {
		class.Spec.KVM = block
	} else {
		class.Spec.KVM2 = block
	}
	if problems := factory.Validate(class); len(problems) > 0 {
		t.Fatal(problems.ToAggregate())
	}
	provider, err := factory.Open(t.Context(), class, providers.Runtime{
		ClusterID: clusterID, Clock: clock.RealClock{}, Logger: testr.New(t), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := &cloud{provider, s}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// request is for a machine named after the test's wish.
func (c *cloud) request(name, zone, userData string) providers.CreateRequest {
	owner := providers.Owner{ClusterID: clusterID, Namespace: "crawl", Name: name, UID: types.UID("uid-of-" + name)}
	return providers.CreateRequest{
		Name: providers.InstanceName(clusterID, name, owner.UID), Owner: owner, Zone: zone, Hash: "v1-" + name, Attempt: name + "-1",
		Spec:     v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Placement: &v1alpha1.Placement{MachineType: sizeName, Image: imageName, Zone: zone}}},
		UserData: []byte(userData),
	}
}

func ref(r providers.CreateRequest) providers.Ref {
	return providers.Ref{Namespace: r.Owner.Namespace, Name: r.Name, Zone: r.Zone}
}

// create asks for a machine and fails the test when that is refused. Whatever becomes of it goes with the test.
func (c *cloud) create(t *testing.T, r providers.CreateRequest) {
	t.Helper()
	t.Cleanup(func() { c.remove(t, ref(r)) })
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	if _, err := c.Create(ctx, r); err != nil {
		t.Fatalf("create %s: %v", r.Owner.Name, err)
	}
}

// createAtOnce asks for several machines at the same moment. Whatever becomes of them goes with the test.
func (c *cloud) createAtOnce(t *testing.T, requests []providers.CreateRequest) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	errs := make([]error, len(requests))
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i, r := range requests {
		t.Cleanup(func() { c.remove(t, ref(r)) })
		wg.Go(func() {
			<-start
			_, errs[i] = c.Create(ctx, r)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// get asks for the machine once.
func (c *cloud) get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return c.Get(ctx, ref)
}

// await polls the machine until it is in a state.
func (c *cloud) await(t *testing.T, r providers.CreateRequest, limit time.Duration, state providers.State) (out providers.Instance) {
	t.Helper()
	libvirtlab.Eventually(t, limit, r.Owner.Name+" is "+string(state), func(ctx context.Context) (err error) {
		if out, err = c.get(ctx, ref(r)); err != nil {
			return err
		}
		if out.State != state {
			return fmt.Errorf("it is %s: %s", out.State, out.Message)
		}
		return nil
	})
	return out
}

// serving polls until a page comes through the machine, and returns the machine.
func (c *cloud) serving(t *testing.T, r providers.CreateRequest, limit time.Duration) (out providers.Instance) {
	t.Helper()
	origin := libvirtlab.Origin(t, c.hosts[0])
	libvirtlab.Eventually(t, limit, "a page comes through "+r.Owner.Name, func(ctx context.Context) (err error) {
		if out, err = c.get(ctx, ref(r)); err != nil {
			return err
		}
		if out.State != providers.StateRunning || len(out.Addresses) == 0 {
			return fmt.Errorf("it is %s with the addresses %v: %s", out.State, out.Addresses, out.Message)
		}
		from, err := guest(out).Fetch(ctx, origin, "/")
		if err == nil && from != out.Addresses[0] {
			t.Fatalf("the page was fetched from %s, the machine is at %v", from, out.Addresses)
		}
		return err
	})
	return out
}

func guest(i providers.Instance) libvirtlab.Guest { return libvirtlab.Guest(i.Addresses[0]) }

// remove deletes the machine until it is gone, and shows that nothing of it is left on its host.
func (c *cloud) remove(t *testing.T, ref providers.Ref) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), libvirtlab.SettleLimit)
	defer cancel()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		err := c.Delete(ctx, ref)
		if err == nil {
			_, err = c.get(ctx, ref)
		}
		if providers.IsNotFound(err) {
			break
		}
		select {
		case <-ctx.Done():
			t.Errorf("%s could not be removed: %v", ref.Name, err)
			return
		case <-tick.C:
		}
	}
	for _, h := range c.hosts {
		if h.Name != ref.Zone {
			continue
		}
		isOfIt := func(name string) bool { return strings.HasPrefix(name, ref.Name) }
		if left := slices.DeleteFunc(append(h.Domains(t), h.Files(t)...), func(n string) bool { return !isOfIt(n) }); len(left) > 0 {
			t.Errorf("%s was removed from %s, but left %v", ref.Name, h.Name, left)
		}
	}
}

// source serves an image by HTTP and counts the downloads.
type source struct {
	*httptest.Server
	file, sum string
	mu        sync.Mutex
	downloads int
	// pause, when there is one, is waited for after half of the image.
	pause chan struct{}
}

func serve(t *testing.T, file string) *source {
	t.Helper()
	data := readFile(t, file)
	sum := sha256.Sum256(data)
	s := &source{file: file, sum: hex.EncodeToString(sum[:])}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.ServeFile(w, r, file)
			return
		}
		s.mu.Lock()
		s.downloads++
		pause := s.pause
		s.mu.Unlock()
		if pause == nil {
			http.ServeFile(w, r, file)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		if _, err := w.Write(data[:len(data)/2]); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-pause:
			_, _ = w.Write(data[len(data)/2:])
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// hold makes downloads stop half-way until they are released.
func (s *source) hold() (release func()) {
	pause := make(chan struct{})
	s.mu.Lock()
	s.pause = pause
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		s.mu.Lock()
		s.pause = nil
		s.mu.Unlock()
		close(pause)
	})
}

// count of downloads so far.
func (s *source) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.downloads
}

// mini is a class whose machines have the mini image.
func mini(t *testing.T, factory func() *libvirt.Factory, hosts ...libvirtlab.Host) setup {
	t.Helper()
	return setup{factory: factory, hosts: hosts, source: serve(t, libvirtlab.MiniImage(t)), memory: "192Mi"}
}
