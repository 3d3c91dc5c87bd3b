package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/coretest"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
)

const poolSize = 3

// farm is a pool of the samples with everything around it: core, its HTTP API, and a Squid on each VM.
type farm struct {
	*cloud
	*machines
	core   *coretest.Core
	ca     *proxyzoo.CA
	origin string
	class  *v1alpha1.ProviderClass
	pool   *v1alpha1.ProxyPool
}

func newFarm(t *testing.T) *farm {
	t.Helper()
	f := &farm{ca: proxyzoo.NewCA(t, "gcp"), class: &v1alpha1.ProviderClass{}, pool: &v1alpha1.ProxyPool{}}
	f.origin = proxyzoo.NewOrigin(t, f.ca, originHost).URL
	free, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	f.machines = newMachines(t, netip.MustParseAddrPort(free).Port(), netip.MustParseAddrPort(strings.TrimPrefix(f.origin, "https://")))
	readSample(t, "providerclass_gcp.yaml", f.class)
	f.cloud = newBareCloud(t, computetest.Options{Zones: f.class.Spec.GCP.Zones, Hooks: f.hooks()})
	f.startCore()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.namespace}}
	change(f, namespace, func() { maps.Copy(namespace.Labels, guideLabel(t, "namespace default")) })
	f.class.Name, f.class.Spec.GCP.Project = "gcp-"+f.namespace, gcpProject
	f.class.Spec.HealthCheck = &v1alpha1.HealthCheck{PeriodSeconds: ptr.To[int32](2), FastPeriodSeconds: ptr.To[int32](1), UnhealthyPeriodMaxSeconds: ptr.To[int32](2)}
	px := &v1alpha1.Proxy{}
	readSample(t, "proxy_gcp.yaml", px)
	readSample(t, "proxypool_gcp.yaml", f.pool)
	f.pool.Namespace, f.pool.Spec.Replicas = f.namespace, ptr.To[int32](poolSize)
	template := &f.pool.Spec.Template.Spec
	template.Provider, template.Port = f.class.Name, int32(f.port)
	userData := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: f.namespace, Name: template.CloudInit.SecretKeyRef.Name, Labels: guideLabel(t, "secret "+template.CloudInit.SecretKeyRef.Name),
	}}
	userData.StringData = map[string]string{template.CloudInit.SecretKeyRef.Key: px.Spec.CloudInit.Inline}
	for _, object := range []client.Object{f.class, userData, f.pool} {
		if err := f.env.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	kubelettest.CollectGarbage(t, f.env.Config, f.namespace, kindOf("ProxyPool"), kindOf("Proxy"))
	f.start()
	return f
}

// readSample reads a file of config/samples.
func readSample(t *testing.T, name string, into any) {
	t.Helper()
	root, err := testenv.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "config", "samples", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// guideLabel is the label that docs/gcp-provider.md tells people to put on something. Nothing here knows it otherwise, so that
// what the guide leaves out is missing here too.
func guideLabel(t *testing.T, object string) map[string]string {
	t.Helper()
	root, err := testenv.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "gcp-provider.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, label, found := strings.Cut(string(guide), "\nkubectl label "+object+" ")
	label, _, _ = strings.Cut(label, "\n")
	key, value, ok := strings.Cut(label, "=")
	if !found || !ok {
		t.Fatalf("the guide does not label the %s", object)
	}
	return map[string]string{key: value}
}

func (f *farm) startCore() {
	t := f.cloud.t
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{"token": apiToken, "ca.pem": f.ca.PEM()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	f.core, err = coretest.Start(f.binary, slices.Concat([]string{"core"}, f.arguments, []string{
		"--kubeconfig=" + testenv.Kubeconfig(t, f.env.Core(t)), "--default-namespace=" + f.namespace,
		"--api-auth=token", "--api-token-file=" + filepath.Join(dir, "token"),
		"--health-check-urls=" + f.origin + "/ip", "--health-check-ca-file=" + filepath.Join(dir, "ca.pem"),
		"--allow-proxy-cidrs=127.0.0.0/8", "--allow-probe-target-cidrs=127.0.0.0/8",
	}), apiToken, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.core.Kill()
		if t.Failed() {
			t.Logf("core\n%s", f.core.Tail())
		}
	})
	f.await("core answers", func() string {
		if !f.core.Answers(t.Context()) {
			return "no answer"
		}
		return ""
	})
}

// await waits until nothing is missing. Meanwhile time passes for the VMs.
func (f *farm) await(what string, missing func() string) {
	t := f.cloud.t
	t.Helper()
	last, begin := "", time.Now()
	err := wait.PollUntilContextTimeout(t.Context(), pollPeriod, gcpSettle, true, func(context.Context) (bool, error) {
		f.Settle()
		last = missing()
		return last == "", nil
	})
	if err != nil {
		t.Fatalf("in vain waited until %s: %s", what, last)
	}
	t.Logf("%5.1f s until %s", time.Since(begin).Seconds(), what)
}

// change patches an object.
func change(f *farm, object client.Object, how func()) {
	t := f.cloud.t
	t.Helper()
	if err := f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	patch := client.MergeFrom(object.DeepCopyObject().(client.Object))
	how()
	if err := f.env.Client.Patch(t.Context(), object, patch); err != nil {
		t.Fatal(err)
	}
}

// vmOf is the VM of a Proxy.
func (f *farm) vmOf(px *v1alpha1.Proxy) (computetest.VM, bool) {
	vms := f.VMs()
	i := slices.IndexFunc(vms, func(vm computetest.VM) bool { return vm.Labels[uidLabel] == string(px.UID) && !vm.Deleting })
	if i < 0 {
		return computetest.VM{}, false
	}
	return vms[i], true
}

// unlike is what keeps Proxies, as many as given, from being like this: each with one VM of a machine type, and these
// conditions.
func (f *farm) unlike(n int, machineType string, conditions ...string) string {
	proxies := f.proxies()
	if len(proxies) != n || len(f.VMs()) != n {
		return fmt.Sprintf("%d Proxies and %d machines, want %d", len(proxies), len(f.VMs()), n)
	}
	for i := range proxies {
		px := &proxies[i]
		for _, kind := range conditions {
			if !meta.IsStatusConditionTrue(px.Status.Conditions, kind) {
				return fmt.Sprintf("%s: not %s: %+v", px.Name, kind, px.Status.Conditions)
			}
		}
		vm, ok := f.vmOf(px)
		if text, _ := vm.Body["machineType"].(string); !ok || !strings.HasSuffix(text, "/machineTypes/"+machineType) {
			return fmt.Sprintf("%s has the machine %s of type %q", px.Name, vm.Name, text)
		}
		if px.Status.Instance == nil || !slices.Contains(px.Status.Instance.Addresses, vm.NatIP) {
			return fmt.Sprintf("%s: %+v, and its machine has the address %s", px.Name, px.Status.Instance, vm.NatIP)
		}
	}
	return ""
}

var usable = []string{
	v1alpha1.ConditionProvisioned, v1alpha1.ConditionUpToDate, v1alpha1.ConditionHealthy, v1alpha1.ConditionAccessRestricted, v1alpha1.ConditionReady,
}

// addresses are those of all VMs.
func (f *farm) addresses() map[string]bool {
	all := map[string]bool{}
	for _, vm := range f.VMs() {
		all[vm.NatIP] = true
	}
	return all
}

// lease asks core for a proxy.
func (f *farm) lease(key string) (status int, lease wire.Lease) {
	t := f.cloud.t
	t.Helper()
	status, answer, err := f.core.Call(t.Context(), http.MethodPost, wire.PathLeases, wire.LeaseRequest{
		Selector: map[string]*string{"geo": new("eu")}, Holder: "crawler", TTLSeconds: new(int32(600)),
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	if status == http.StatusCreated {
		if err := json.Unmarshal(answer, &lease); err != nil {
			t.Fatal(err)
		}
	}
	return status, lease
}

// fetch gets a page through a leased proxy.
func (f *farm) fetch(lease wire.Lease, page string) (status int, body string) {
	t := f.cloud.t
	t.Helper()
	proxy, err := url.Parse(lease.Proxy.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: f.ca.Pool()}, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, page, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatalf("fetch %s through %s: %v", page, lease.Proxy.URL, err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, strings.TrimSpace(string(text))
}

// mustFetch checks that a leased proxy serves, by the exit that is its own.
func (f *farm) mustFetch(lease wire.Lease) {
	f.cloud.t.Helper()
	if status, body := f.fetch(lease, f.origin+"/ip"); status != http.StatusOK || body != lease.Proxy.IP {
		f.cloud.t.Errorf("through %s: %d %q", lease.Proxy.IP, status, body)
	}
}

// TestGT12_G7_PoolEndToEnd runs the binary's managers and the project's samples, with a real Squid on each VM: a pool comes,
// is leased, loses a machine, is replaced while a crawler goes on, and leaves nothing. Most of its time is the two minutes
// for which a Proxy is kept after an attempt to create its machine.
func TestGT12_G7_PoolEndToEnd(t *testing.T) {
	f := newFarm(t)

	// Machines that run are not usable as long as no proxy answers on them.
	f.await("machines run", func() string { return f.unlike(poolSize, "e2-micro", v1alpha1.ConditionProvisioned) })
	if status, _ := f.lease("too-early"); status == http.StatusCreated {
		t.Error("a machine without a proxy was leased")
	}
	close(f.installed)
	f.await("all proxies are Ready", func() string { return f.unlike(poolSize, "e2-micro", usable...) })
	for _, px := range f.proxies() {
		if px.Status.Health == nil || px.Status.Health.EgressIP != px.Status.Instance.Addresses[0] {
			t.Errorf("%s leaves by %+v, its address is %s", px.Name, px.Status.Health, px.Status.Instance.Addresses)
		}
		vm, _ := f.vmOf(&px)
		if tags, _ := json.Marshal(vm.Body["tags"]); !strings.Contains(string(tags), f.class.Spec.GCP.NetworkTag) {
			t.Errorf("%s has the tags %s", vm.Name, tags)
		}
	}

	status, lease := f.lease("crawl-1")
	if status != http.StatusCreated || !f.addresses()[lease.Proxy.IP] {
		t.Fatalf("lease: %d %+v", status, lease)
	}
	f.mustFetch(lease)
	if status, body := f.fetch(lease, "http://169.254.169.254/computeMetadata/v1/"); status != http.StatusForbidden {
		t.Errorf("metadata through the proxy: %d %s", status, body)
	}

	// A machine is preempted: the same Proxy gets another one, with an address of its own.
	proxies := f.proxies()
	i := slices.IndexFunc(proxies, func(px v1alpha1.Proxy) bool { return px.Name != lease.Proxy.Name })
	lost, _ := f.vmOf(&proxies[i])
	f.Preempt(lost.Project, lost.Zone, lost.Name)
	f.await("the preempted machine is replaced", func() string {
		if f.addresses()[lost.NatIP] {
			return lost.NatIP + " is still there"
		}
		return f.unlike(poolSize, "e2-micro", usable...)
	})
	vm, _ := f.vmOf(&proxies[i])
	if vm.ID == lost.ID || vm.Metadata["user-data"] == "" || vm.Metadata["user-data"] != lost.Metadata["user-data"] {
		t.Errorf("%s came after %s", vm.Name, lost.Name)
	}

	// A new template replaces every machine but the leased one, which serves until it is given back.
	before := f.addresses()
	change(f, f.pool, func() { f.pool.Spec.Template.Spec.Placement.MachineType = "e2-small" })
	f.await("all other machines are replaced", func() string {
		left := f.addresses()
		maps.DeleteFunc(left, func(ip string, _ bool) bool { return !before[ip] })
		if len(left) != 1 || !left[lease.Proxy.IP] {
			return fmt.Sprintf("machines of before: %v", left)
		}
		return ""
	})
	f.mustFetch(lease)
	if status, answer, err := f.core.Call(t.Context(), http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(lease.LeaseID), nil, ""); status != http.StatusNoContent {
		t.Fatalf("release: %d %s %v", status, answer, err)
	}
	f.await("all machines are new", func() string {
		if f.addresses()[lease.Proxy.IP] {
			return lease.Proxy.IP + " is still there"
		}
		return f.unlike(poolSize, "e2-small", usable...)
	})
	if status, lease = f.lease("crawl-2"); status != http.StatusCreated || before[lease.Proxy.IP] {
		t.Fatalf("lease: %d %+v", status, lease)
	}
	f.mustFetch(lease)
	if status, answer, err := f.core.Call(t.Context(), http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(lease.LeaseID), nil, ""); status != http.StatusNoContent {
		t.Fatalf("release: %d %s %v", status, answer, err)
	}

	for _, object := range []client.Object{f.pool, f.class} {
		if err := f.env.Client.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	f.await("nothing is left", func() string {
		err := f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(f.class), f.class)
		if n, vms, serving := len(f.proxies()), len(f.VMs()), f.serving.Load(); n+vms+int(serving) > 0 || !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%d Proxies, %d machines and %d Squids; the class: %v %+v", n, vms, serving, err, f.class.Finalizers)
		}
		return ""
	})
	t.Logf("%d machines in all; %d inserts, %d deletions, %d gets, %d lists", vmsMade(f), f.Count(computetest.Insert), f.Count(computetest.Delete),
		f.Count(computetest.Get), f.Count(computetest.AggregatedList))
}

// vmsMade is how many addresses were given away.
func vmsMade(f *farm) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	address := f.last.As4()
	return int(address[3])
}
