//go:build libvirt

// Package kvmtest runs the binary's managers and the project's samples on real hypervisors: core, and the provider managers of
// kvm and kvm2, with machines that boot, and that cloud-init and Squid run on. See internal/libvirtlab; `make test-libvirt`
// runs it.
package kvmtest

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/coretest"
	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const (
	apiToken   = "a-token-of-this-test-only"
	pollPeriod = 500 * time.Millisecond
	// sampleClients is what a user has to replace in the sample's Squid configuration, and clients are the operator's addresses:
	// the lab's ends of the cables to both hosts.
	sampleClients = "acl clients src 203.0.113.0/24"
	clients       = "acl clients src 10.77.1.254 10.77.2.254"
	// diskGb is room for the image; the lab's disks are in memory.
	diskGb = 2
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// world has the API server, core, a class of each provider with both hosts, and a Proxy of each class.
type world struct {
	t         *testing.T
	env       *testenv.Env
	namespace string
	hosts     []libvirtlab.Host
	binary    string
	arguments []string
	core      *coretest.Core
	ca        *proxyzoo.CA
	// site is a page on the Internet that answers with the address that asked.
	site string
	// fleet has the Proxies, in the order of hosts.
	fleet []*member
}

// member is a Proxy, its class and the host that it names.
type member struct {
	kind  v1alpha1.ProviderType
	host  libvirtlab.Host
	class *v1alpha1.ProviderClass
	proxy *v1alpha1.Proxy
	// userData is in a Secret, when the Proxy does not have it inline.
	userData *corev1.Secret
}

func newWorld(t *testing.T) *world {
	t.Helper()
	hosts := libvirtlab.Hosts(t)[:2]
	env := testenv.New(t)
	w := &world{t: t, env: env, namespace: env.Namespace(t), hosts: hosts, binary: testenv.BuildOperator(t), ca: proxyzoo.NewCA(t, "site")}
	w.arguments = []string{
		"--leader-elect=false", "--leader-election-namespace=" + w.namespace,
		"--watch-namespaces=" + w.namespace, "--health-probe-bind-address=0", "--metrics-bind-address=0",
	}
	w.openSite()
	w.mountCredentials()
	w.startCore()
	image := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { http.ServeFile(rw, r, libvirtlab.FullImage(t)) }))
	t.Cleanup(image.Close)

	// The sample's user data is inline for the one, and for the other in a Secret, as the sample of a pool has it.
	first := w.newMember(v1alpha1.ProviderKVM, "providerclass_kvm.yaml", 0, image.URL)
	second := w.newMember(v1alpha1.ProviderKVM2, "providerclass_kvm2.yaml", 1, image.URL)
	pool := &v1alpha1.ProxyPool{}
	w.sample("proxypool_kvm.yaml", pool)
	ref := pool.Spec.Template.Spec.CloudInit.SecretKeyRef
	second.userData = &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: ref.Name, Labels: map[string]string{v1alpha1.LabelCloudInit: "true"}},
		StringData: map[string]string{ref.Key: second.proxy.Spec.CloudInit.Inline},
	}
	second.proxy.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: ref}
	w.fleet = []*member{first, second}

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	w.change(namespace, func() { namespace.Labels = first.class.Spec.AllowedNamespaces.Selector.MatchLabels })
	w.create(first.class, second.class, second.userData)
	for _, m := range w.fleet {
		w.launch("provider", string(m.kind))
	}
	return w
}

// newMember is a class and a Proxy of the samples, with the lab's addresses in them.
func (w *world) newMember(kind v1alpha1.ProviderType, file string, host int, image string) *member {
	w.t.Helper()
	m := &member{kind: kind, host: w.hosts[host], class: &v1alpha1.ProviderClass{}, proxy: &v1alpha1.Proxy{}}
	w.sample(file, m.class)
	block := m.class.Spec.KVM
	if kind == v1alpha1.ProviderKVM2 {
		block = m.class.Spec.KVM2
	}
	block.DomainType, block.DiskSizeGb = "qemu", ptr.To[int32](diskGb)
	// By default the time between two checks has grown to minutes by the time that Squid answers on a machine that is emulated.
	m.class.Spec.HealthCheck = &v1alpha1.HealthCheck{UnhealthyPeriodMaxSeconds: ptr.To[int32](10)}
	block.Images[0].URL = image + "/" + filepath.Base(block.Images[0].URL)
	if len(block.Hosts) != len(w.hosts) {
		w.t.Fatalf("%s has %d hosts", file, len(block.Hosts))
	}
	for i, h := range w.hosts {
		to := &block.Hosts[i]
		to.Address, to.Port, to.User, to.Pool = h.Address, int32(h.Port), h.User, h.Pool
	}
	block.Hosts[0].Bridge, block.Hosts[0].Network = w.hosts[0].Bridge, ""
	block.Hosts[1].Bridge, block.Hosts[1].Network = "", w.hosts[1].Network

	w.sample("proxy_kvm.yaml", m.proxy)
	m.proxy.Namespace, m.proxy.Name = w.namespace, "proxy-"+string(kind)
	m.proxy.Spec.Provider, m.proxy.Spec.Placement.Zone = m.class.Name, block.Hosts[host].Name
	userData := &m.proxy.Spec.CloudInit.Inline
	if !strings.Contains(*userData, sampleClients) {
		w.t.Fatalf("the sample has no line %q", sampleClients)
	}
	*userData = strings.Replace(*userData, sampleClients, clients, 1)
	return m
}

// sample reads a file of config/samples.
func (w *world) sample(name string, into any) {
	w.t.Helper()
	root, err := testenv.RepositoryRoot()
	if err != nil {
		w.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "samples", name))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
}

// mountCredentials puts the Secret kvm-ssh where a manager's pod has it, in the lab's own /etc.
func (w *world) mountCredentials() {
	w.t.Helper()
	const dir = "/etc/proxy-operator/kvm"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		w.t.Fatal(err)
	}
	key, known := libvirtlab.Credentials(w.t, w.hosts...)
	for name, content := range map[string][]byte{"id_ed25519": key, "known_hosts": known} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
}

// openSite serves HTTPS where a page on the Internet would be.
func (w *world) openSite() {
	w.t.Helper()
	name, address := libvirtlab.Site(w.t)
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "443"))
	if err != nil {
		w.t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(proxyzoo.Handler())
	_ = server.Listener.Close()
	server.Listener = listener
	server.TLS = &tls.Config{Certificates: []tls.Certificate{w.ca.Leaf(w.t, name)}}
	server.StartTLS()
	w.t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	w.site = "https://" + name + "/ip"
}

func (w *world) startCore() {
	w.t.Helper()
	dir := w.t.TempDir()
	for name, content := range map[string]string{"token": apiToken, "ca.pem": w.ca.PEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	var err error
	w.core, err = coretest.Start(w.binary, slices.Concat([]string{"core"}, w.arguments, []string{
		"--kubeconfig=" + testenv.Kubeconfig(w.t, w.env.Core(w.t)), "--default-namespace=" + w.namespace,
		"--api-auth=token", "--api-token-file=" + filepath.Join(dir, "token"),
		"--health-check-urls=" + w.site, "--health-check-ca-file=" + filepath.Join(dir, "ca.pem"),
	}), apiToken, 1)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		w.core.Kill()
		if w.t.Failed() {
			w.t.Logf("core\n%s", w.core.Tail())
		}
	})
}

// launch starts a manager that ends with the test.
func (w *world) launch(command ...string) {
	w.t.Helper()
	arguments := slices.Concat(command, w.arguments, []string{"--kubeconfig=" + testenv.Kubeconfig(w.t, w.env.Config)})
	p, err := testenv.StartProcess(w.binary, arguments, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		select {
		case <-p.Done():
			w.t.Errorf("%v ended by itself: %v", command, p.Wait())
		default:
		}
		p.Signal(syscall.SIGKILL)
		<-p.Done()
		if w.t.Failed() {
			w.t.Logf("%v\n%s", command, p.Tail())
		}
	})
}

func (w *world) create(objects ...client.Object) {
	w.t.Helper()
	for _, object := range objects {
		if err := w.env.Client.Create(w.t.Context(), object); err != nil {
			w.t.Fatal(err)
		}
	}
}

// read brings an object up to date.
func (w *world) read(object client.Object) {
	w.t.Helper()
	if err := w.env.Client.Get(w.t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		w.t.Fatal(err)
	}
}

// change patches an object.
func (w *world) change(object client.Object, how func()) {
	w.t.Helper()
	w.read(object)
	patch := client.MergeFrom(object.DeepCopyObject().(client.Object))
	how()
	if err := w.env.Client.Patch(w.t.Context(), object, patch); err != nil {
		w.t.Fatal(err)
	}
}

// await waits until nothing is missing of any member, and prints how long each took.
func (w *world) await(limit time.Duration, what string, missing func(*member) string) {
	w.t.Helper()
	begin, left := time.Now(), map[*member]string{}
	for _, m := range w.fleet {
		left[m] = "not looked at"
	}
	err := wait.PollUntilContextTimeout(w.t.Context(), pollPeriod, limit, true, func(context.Context) (bool, error) {
		for m := range left {
			if left[m] = missing(m); left[m] == "" {
				delete(left, m)
				w.t.Logf("%5.1f s until %s: %s", time.Since(begin).Seconds(), m.kind, what)
			}
		}
		return len(left) == 0, nil
	})
	if err != nil {
		for m, reason := range left {
			w.t.Errorf("%s: in vain waited %s until: %s: %s", m.kind, limit, what, reason)
		}
		w.t.FailNow()
	}
}

// fetch gets a page through a proxy, from an address of the lab; an invalid one leaves the choice to the system.
func (w *world) fetch(proxy, page string, from netip.Addr) (status int, body string, err error) {
	through, err := url.Parse(proxy)
	if err != nil {
		return 0, "", err
	}
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, page, nil)
	if err != nil {
		return 0, "", err
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	if from.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	transport := &http.Transport{
		Proxy: http.ProxyURL(through), DialContext: dialer.DialContext,
		TLSClientConfig: &tls.Config{RootCAs: w.ca.Pool()}, DisableKeepAlives: true,
	}
	response, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(request)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	_ = response.Body.Close()
	if err != nil {
		return 0, "", fmt.Errorf("read the page: %w", err)
	}
	return response.StatusCode, strings.TrimSpace(string(text)), nil
}
