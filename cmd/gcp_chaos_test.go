package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers/gcp"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

const (
	gcpProject = "demo-project"
	gcpToken   = "a-token-of-this-test"
	gcpImage   = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
	// gcpProxies is how many Proxies there are at the end, gcpKills how often their manager is killed meanwhile.
	gcpProxies = 50
	gcpKills   = 22
	// gcpSettle bounds how long the operator may take, once it is left in peace: an attempt whose outcome is open settles in
	// two minutes.
	gcpSettle = 5 * time.Minute
	uidLabel  = "egress-proxy-uid"
)

// cloud is a Compute Engine server, credentials for it and the managers that use it.
type cloud struct {
	*computetest.Server
	t         *testing.T
	env       *testenv.Env
	namespace string
	class     string
	binary    string
	arguments []string
	account   *computetest.ServiceAccount
	// key is the file with the account's key.
	key string
	// environment of the provider manager: its endpoint and its credentials.
	environment []string

	provider *testenv.Process
}

// quickVMs take as long as their managers need to be in the middle of something.
var quickVMs = &computetest.Timing{
	Visible: 50 * time.Millisecond, Staging: 200 * time.Millisecond, Running: 500 * time.Millisecond, Address: 700 * time.Millisecond, Delete: time.Second,
}

// newBareCloud starts the server. No manager runs yet.
func newBareCloud(t *testing.T, o computetest.Options) *cloud {
	t.Helper()
	env := testenv.New(t)
	c := &cloud{t: t, env: env, namespace: env.Namespace(t)}
	c.binary = testenv.BuildOperator(t)
	o.Token, o.Projects, o.Timing = gcpToken, []string{gcpProject}, quickVMs
	c.Server = computetest.New(t, o)
	c.account, c.key = computetest.NewServiceAccount(t, gcpToken), filepath.Join(t.TempDir(), "key.json")
	c.account.WriteFile(c.key)
	metadataServer, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	c.environment = []string{
		gcp.EndpointVariable + "=" + c.URL, "GOOGLE_APPLICATION_CREDENTIALS=" + c.key, "GCE_METADATA_HOST=" + metadataServer, "CLOUDSDK_CONFIG=" + t.TempDir(),
	}
	c.arguments = []string{
		"--kubeconfig=" + testenv.Kubeconfig(t, env.Config), "--leader-elect=false", "--leader-election-namespace=" + c.namespace,
		"--watch-namespaces=" + c.namespace, "--health-probe-bind-address=0", "--metrics-bind-address=0",
	}
	return c
}

// newCloud makes a class and starts core. The provider manager is started by start.
func newCloud(t *testing.T, gcpClass v1alpha1.GCPClass) *cloud {
	t.Helper()
	c := newBareCloud(t, computetest.Options{})
	c.class = "gcp-" + c.namespace
	gcpClass.Project = gcpProject
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: c.class}, Spec: v1alpha1.ProviderClassSpec{
		Type: v1alpha1.ProviderGCP, AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll}, GCP: &gcpClass,
		MaxConcurrentCreates: ptr.To[int32](50), MaxConcurrentReplacements: ptr.To[int32](50),
	}}
	if err := c.env.Client.Create(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	c.launch(slices.Concat([]string{"core", "--api-bind-address=0"}, c.arguments))
	return c
}

// launch starts a manager that ends with the test.
func (c *cloud) launch(arguments []string) *testenv.Process {
	c.t.Helper()
	p, err := testenv.StartProcess(c.binary, arguments, c.environment)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.Done()
		if c.t.Failed() {
			c.t.Logf("%s\n%s", arguments[:2], p.Tail())
		}
	})
	return p
}

func (c *cloud) start() {
	c.provider = c.launch(slices.Concat([]string{"provider", "gcp"}, c.arguments))
}

func (c *cloud) kill() {
	select {
	case <-c.provider.Done():
		c.t.Errorf("the manager ended by itself: %v\n%s", c.provider.Wait(), c.provider.Tail())
	default:
	}
	c.provider.Signal(syscall.SIGKILL)
	<-c.provider.Done()
}

func (c *cloud) proxy(name string) *v1alpha1.Proxy {
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: name}}
	px.Spec.Provider = c.class
	px.Spec.Placement = &v1alpha1.Placement{MachineType: "e2-micro", Image: gcpImage}
	px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "#cloud-config\n{}\n"}
	return px
}

func (c *cloud) proxies() []v1alpha1.Proxy {
	c.t.Helper()
	list := &v1alpha1.ProxyList{}
	if err := c.env.Client.List(c.t.Context(), list, client.InNamespace(c.namespace)); err != nil {
		c.t.Fatal(err)
	}
	return list.Items
}

// differences are what keeps machines and Proxies from being the same; "" when they are.
func (c *cloud) differences() string {
	proxies, owned := c.proxies(), map[string]int{}
	for _, vm := range c.VMs() {
		owned[vm.Labels[uidLabel]]++
	}
	for i := range proxies {
		px := &proxies[i]
		if !px.DeletionTimestamp.IsZero() || !meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionProvisioned) ||
			!meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionUpToDate) {
			return fmt.Sprintf("%s: deleted %v, %+v", px.Name, px.DeletionTimestamp, px.Status.Conditions)
		}
		if n := owned[string(px.UID)]; n != 1 {
			return fmt.Sprintf("%s has %d machines", px.Name, n)
		}
		delete(owned, string(px.UID))
	}
	if len(owned) > 0 {
		return fmt.Sprintf("machines without a Proxy, by owner: %v", owned)
	}
	return ""
}

// watchTwins notes machines of one owner beside each other, of which at most one may not be on its way out.
func (c *cloud) watchTwins() (stop func() []string) {
	var (
		found []string
		group sync.WaitGroup
		end   = make(chan struct{})
	)
	group.Go(func() {
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			alive := map[string]string{}
			for _, vm := range c.VMs() {
				if vm.Deleting {
					continue
				}
				if other, ok := alive[vm.Labels[uidLabel]]; ok {
					found = append(found, fmt.Sprintf("%s in %s and %s", vm.Name, vm.Zone, other))
				}
				alive[vm.Labels[uidLabel]] = vm.Zone
			}
			select {
			case <-end:
				return
			case <-ticker.C:
			}
		}
	})
	return func() []string { close(end); group.Wait(); return found }
}

// TestGT12_KilledManagersLeakAndDoubleNothing runs the real binary against a Compute Engine server: its provider manager is
// killed again and again at random moments, while Proxies come, change and go, answers are lost, zones are full and machines
// are preempted. In the end there is one machine for each Proxy, and there never were two.
func TestGT12_KilledManagersLeakAndDoubleNothing(t *testing.T) {
	c := newCloud(t, v1alpha1.GCPClass{Zones: computetest.DefaultZones, ProvisioningModel: "SPOT"})
	seed := seedOf(t)
	t.Logf("%s=%d makes the same decisions again", seedVariable, seed)
	rng, begin := rand.New(rand.NewPCG(seed, 0)), time.Now()
	stop := c.watchTwins()
	for n := range gcpProxies {
		if err := c.env.Client.Create(t.Context(), c.proxy(fmt.Sprintf("px-%02d", n))); err != nil {
			t.Fatal(err)
		}
	}
	made, pause := gcpProxies, time.NewTimer(0)
	defer pause.Stop()
	for n := range gcpKills {
		c.start()
		restore := c.trouble(rng)
		<-pause.C
		pause.Reset(time.Duration(100+rng.IntN(2000)) * time.Millisecond)
		for range 3 {
			made += c.change(rng, made)
		}
		<-pause.C
		pause.Reset(0)
		c.kill()
		restore()
		t.Logf("%5.1f s: kill %d, %d Proxies and %d inserts so far", time.Since(begin).Seconds(), n+1, made, c.Count(computetest.Insert))
	}
	c.start()
	last := ""
	err := wait.PollUntilContextTimeout(t.Context(), pollPeriod, gcpSettle, true, func(context.Context) (bool, error) {
		last = c.differences()
		return last == "", nil
	})
	if err != nil {
		t.Errorf("not settled: %s", last)
	}
	for _, twins := range stop() {
		t.Errorf("two machines at once: %s", twins)
	}
	if n := len(c.proxies()); n != gcpProxies {
		t.Errorf("%d Proxies, want %d", n, gcpProxies)
	}
	t.Logf("settled after %s: %d VMs, %d Proxies; %d inserts, %d deletions, %d lists", time.Since(begin).Round(time.Second), len(c.VMs()), len(c.proxies()),
		c.Count(computetest.Insert), c.Count(computetest.Delete), c.Count(computetest.AggregatedList))
}

// trouble is one of the ways in which Compute Engine is not at its best.
func (c *cloud) trouble(rng *rand.Rand) (restore func()) {
	zone := computetest.DefaultZones[rng.IntN(len(computetest.DefaultZones))]
	return c.Fail([]computetest.Fault{
		{Call: computetest.Insert, Skip: rng.IntN(3), Times: 3, Drop: true, Commit: true},
		{Call: computetest.Insert, Skip: rng.IntN(3), Times: 3, Answer: computetest.BackendError(http.StatusServiceUnavailable), Commit: true},
		{Call: computetest.Insert, Zone: zone, Operation: computetest.Stockout(zone)},
		{Call: computetest.Insert, Zone: zone, Times: 5, Answer: computetest.QuotaExceeded("CPUS", "europe-west3")},
		{Call: computetest.Delete, Times: 3, Drop: true, Commit: true},
		{Call: computetest.Get, Skip: rng.IntN(10), Times: 2, Answer: computetest.BackendError(http.StatusBadGateway)},
		{Call: computetest.GetOperation, Times: 3, Answer: computetest.BackendError(http.StatusServiceUnavailable)},
	}[rng.IntN(7)])
}

// change does something to one Proxy or its machine. It gives how many Proxies it has made.
func (c *cloud) change(rng *rand.Rand, made int) int {
	c.t.Helper()
	proxies := c.proxies()
	px := &proxies[rng.IntN(len(proxies))]
	switch rng.IntN(4) {
	case 0:
		// One goes and another one comes.
		if err := c.env.Client.Delete(c.t.Context(), px); client.IgnoreNotFound(err) != nil {
			c.t.Fatal(err)
		}
		if !px.DeletionTimestamp.IsZero() {
			return 0
		}
		if err := c.env.Client.Create(c.t.Context(), c.proxy(fmt.Sprintf("px-%02d", made))); err != nil {
			c.t.Fatal(err)
		}
		return 1
	case 1:
		patch := client.MergeFrom(px.DeepCopy())
		px.Spec.Port = int32(3128 + rng.IntN(100))
		if err := c.env.Client.Patch(c.t.Context(), px, patch); client.IgnoreNotFound(err) != nil {
			c.t.Fatal(err)
		}
	case 2:
		if vms := c.VMs(); len(vms) > 0 {
			vm := vms[rng.IntN(len(vms))]
			c.Preempt(vm.Project, vm.Zone, vm.Name)
		}
	}
	return 0
}
