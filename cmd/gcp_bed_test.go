package main

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/provider/instance"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// bedZone is where Proxies of a bed go that name their zone.
const bedZone = "europe-west3-a"

// bed is a class and its Proxies in a real API server, their VMs at a Compute Engine server, the controller between them, and
// one clock for all, which the test moves.
type bed struct {
	*computetest.Server
	t         *testing.T
	client    client.WithWatch
	namespace string
	clock     *clocktesting.FakeClock
	class     *v1alpha1.ProviderClass
	set       *providers.Set
	*instance.Reconciler
	// due is when the work queue hands out each Proxy; failures are those in a row.
	due      map[client.ObjectKey]time.Time
	failures map[client.ObjectKey]int
}

func newBed(t *testing.T, change ...func(*v1alpha1.ProviderClassSpec)) *bed {
	t.Helper()
	env := testenv.New(t)
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: manager.Scheme(), FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{
		t: t, client: c, namespace: env.Namespace(t), clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second)),
		due: map[client.ObjectKey]time.Time{}, failures: map[client.ObjectKey]int{},
	}
	computetest.Isolate(t)
	b.Server = computetest.New(t, computetest.Options{Clock: b.clock, Token: gcpToken, Projects: []string{gcpProject}})
	account, key := computetest.NewServiceAccount(t, gcpToken), filepath.Join(t.TempDir(), "key.json")
	account.WriteFile(key)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", key)
	b.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: "bed-" + b.namespace},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderGCP, ControllerName: "crawl.example.com/" + b.namespace,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
			GCP:               &v1alpha1.GCPClass{Project: gcpProject, Zones: computetest.DefaultZones},
		},
	}
	for _, f := range change {
		f(&b.class.Spec)
	}
	b.must(c.Create(t.Context(), b.class))
	b.restart(c)
	return b
}

// restart puts a new manager in the place of the old one, which writes with a client of its own.
func (b *bed) restart(c client.Client) {
	b.set = providers.NewSet(&gcp.Factory{Endpoint: b.URL}, providers.Runtime{ClusterID: gcpCluster, Clock: b.clock}, nil)
	b.t.Cleanup(b.set.Close)
	b.Reconciler = instance.NewReconciler(c, b.client, events.NewFakeRecorder(10000), instance.Options{
		Set: b.set, Clock: b.clock, ClusterID: gcpCluster, ControllerName: b.class.Spec.ControllerName,
	})
}

func (b *bed) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// proxy stores a Proxy that core has bound to the class.
func (b *bed) proxy(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	b.t.Helper()
	px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: name}}
	px.Spec.Provider = b.class.Name
	px.Spec.Placement = &v1alpha1.Placement{MachineType: "e2-micro", Image: gcpImage}
	for _, f := range change {
		f(px)
	}
	b.must(b.client.Create(b.t.Context(), px))
	next := px.Status.DeepCopy()
	next.Binding = &v1alpha1.Binding{Type: v1alpha1.ProviderGCP, ClassName: b.class.Name, ClassUID: b.class.UID}
	b.must(statusapply.Proxy(b.t.Context(), b.client, v1alpha1.ManagerCore, px, next))
	b.wake(px)
	return px
}

// pinned names the zone of a Proxy.
func pinned(px *v1alpha1.Proxy) { px.Spec.Placement.Zone = bedZone }

// wake is an event about a Proxy: it is due now.
func (b *bed) wake(px *v1alpha1.Proxy) { b.due[client.ObjectKeyFromObject(px)] = b.clock.Now() }

// get reads a Proxy; nil when it is gone.
func (b *bed) get(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	b.t.Helper()
	now := &v1alpha1.Proxy{}
	err := b.client.Get(b.t.Context(), client.ObjectKeyFromObject(px), now)
	if apierrors.IsNotFound(err) || (err == nil && now.UID != px.UID) {
		return nil
	}
	b.must(err)
	return now
}

// change patches a Proxy and wakes the controller, as its watch would.
func (b *bed) change(px *v1alpha1.Proxy, how func(*v1alpha1.Proxy)) {
	b.t.Helper()
	now := b.get(px)
	patch := client.MergeFrom(now.DeepCopy())
	how(now)
	b.must(b.client.Patch(b.t.Context(), now, patch))
	b.wake(px)
}

func (b *bed) remove(px *v1alpha1.Proxy) {
	b.t.Helper()
	b.must(b.client.Delete(b.t.Context(), b.get(px)))
	b.wake(px)
}

// step does what the work queue hands out next, once it is due. It tells whether there is anything before the end.
func (b *bed) step(end time.Time) bool {
	b.t.Helper()
	if len(b.due) == 0 {
		return false
	}
	key := slices.MinFunc(slices.Collect(maps.Keys(b.due)), func(x, y client.ObjectKey) int {
		if c := b.due[x].Compare(b.due[y]); c != 0 {
			return c
		}
		return slices.Compare([]string{x.Name}, []string{y.Name})
	})
	at := b.due[key]
	if at.After(end) {
		return false
	}
	if at.After(b.clock.Now()) {
		b.clock.SetTime(at)
	}
	delete(b.due, key)
	result, err := b.Reconcile(b.t.Context(), reconcile.Request{NamespacedName: key})
	switch {
	case err != nil:
		b.due[key] = b.clock.Now().Add(min(time.Second<<min(b.failures[key], 10), 5*time.Minute))
		b.failures[key]++
		return true
	case result.RequeueAfter > 0:
		b.due[key] = b.clock.Now().Add(result.RequeueAfter)
	}
	b.failures[key] = 0
	return true
}

// until lets time pass until something holds, for as long as it may take.
func (b *bed) until(what string, limit time.Duration, holds func() bool) {
	b.t.Helper()
	for end := b.clock.Now().Add(limit); b.step(end); {
		if holds() {
			return
		}
	}
	list := &v1alpha1.ProxyList{}
	b.must(b.client.List(context.Background(), list, client.InNamespace(b.namespace)))
	for _, px := range list.Items {
		b.t.Logf("%s: %+v\n%+v", px.Name, px.Status.Instance, px.Status.Conditions)
	}
	for _, vm := range b.VMs() {
		b.t.Logf("%s in %s: %s %d %s", vm.Name, vm.Zone, vm.Status, vm.ID, vm.NatIP)
	}
	b.t.Fatalf("not within %v: %s", limit, what)
}

// pass lets time pass.
func (b *bed) pass(d time.Duration, each ...func()) {
	b.t.Helper()
	end := b.clock.Now().Add(d)
	for b.step(end) {
		for _, f := range each {
			f()
		}
	}
	b.clock.SetTime(end)
}

// provisioned tells whether Proxies have the VM that they should have.
func (b *bed) provisioned(proxies ...*v1alpha1.Proxy) func() bool {
	return func() bool {
		b.t.Helper()
		for _, px := range proxies {
			now, vm := b.get(px), b.vmOf(px)
			if now == nil || vm == nil || now.Status.Instance == nil || !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionProvisioned) ||
				!slices.Equal(now.Status.Instance.Addresses, []string{vm.NatIP}) {
				return false
			}
		}
		return true
	}
}

// running is a Proxy whose VM runs, and whose last attempt has settled.
func (b *bed) running(name string, change ...func(*v1alpha1.Proxy)) (*v1alpha1.Proxy, computetest.VM) {
	b.t.Helper()
	px := b.proxy(name, change...)
	b.until(name+" runs", 5*time.Minute, b.provisioned(px))
	b.pass(time.Hour)
	return px, *b.vmOf(px)
}

func (b *bed) gone(px *v1alpha1.Proxy) func() bool { return func() bool { return b.get(px) == nil } }

// missed tells whether the VM of a Proxy was looked for in vain.
func (b *bed) missed(px *v1alpha1.Proxy) func() bool {
	return func() bool { return b.get(px).Status.Instance.MissingTime != nil }
}

// vmOf is the VM of a Proxy that is not on its way out; nil for none.
func (b *bed) vmOf(px *v1alpha1.Proxy) *computetest.VM {
	b.t.Helper()
	var found *computetest.VM
	for _, vm := range b.VMs() {
		if vm.Labels[uidLabel] != string(px.UID) || vm.Deleting {
			continue
		}
		if found != nil {
			b.t.Errorf("%s has two machines: %+v and %+v", px.Name, *found, vm)
		}
		found = &vm
	}
	return found
}

// says checks a condition.
func (b *bed) says(px *v1alpha1.Proxy, kind string) metav1.Condition {
	b.t.Helper()
	return ptr.Deref(meta.FindStatusCondition(b.get(px).Status.Conditions, kind), metav1.Condition{})
}

// calls are the calls of a kind that were answered with a status; 0 is any.
func (b *bed) calls(kind string, status int) int {
	n := 0
	for _, r := range b.Requests() {
		if r.Call == kind && (status == 0 || r.Status == status) {
			n++
		}
	}
	return n
}
