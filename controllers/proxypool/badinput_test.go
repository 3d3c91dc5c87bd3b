package proxypool

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// What `kubectl scale` or an autoscaler asks for is bounded like the field itself. What of the specification is refused, and
// by which field, is TestA43_InvalidObjectsAreRefused.
func TestScalingOutOfBoundsIsRefusedByField(t *testing.T) {
	env := testenv.New(t)
	pool := livePool(env.Namespace(t), 1)
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	for _, replicas := range []string{"-1", "-2147483648", "5001", "2147483647", "2147483648", `"ten"`} {
		body := []byte(`{"spec":{"replicas":` + replicas + `}}`)
		err := env.Client.SubResource("scale").Patch(t.Context(), pool.DeepCopy(), client.RawPatch(types.MergePatchType, body))
		if err == nil || !strings.Contains(err.Error(), "replicas") {
			t.Errorf("scaling to %s: %v, want a refusal that names the field", replicas, err)
		}
	}
	if got := getPool(t, env, pool); *got.Spec.Replicas != 1 || got.Generation != 1 {
		t.Errorf("%d replicas, generation %d", *got.Spec.Replicas, got.Generation)
	}
}

// readyCondition waits until the pool's Ready condition says something.
func (f *fleet) readyCondition(pool *v1alpha1.ProxyPool, says string) {
	f.t.Helper()
	last := ""
	defer func() {
		if !strings.Contains(last, says) {
			f.t.Logf("Ready says %q", last)
		}
	}()
	waitFor(f.t, "Ready to say "+says, func() bool {
		c := meta.FindStatusCondition(getPool(f.t, f.env, pool).Status.Conditions, v1alpha1.ConditionReady)
		if c == nil {
			return false
		}
		last = c.Message
		return c.Status == metav1.ConditionFalse && strings.Contains(c.Message, says)
	})
}

// A pool whose template nobody can fulfil says so by the field, makes no more of it, and works once it is corrected.
func TestTemplatesThatCannotBeFulfilledAreToldOfByField(t *testing.T) {
	f := startFleet(t)
	class := fmt.Sprintf(`{"template":{"spec":{"provider":%q}}}`, f.class)
	unknown := f.pool("unknown", 2, 0, func(pool *v1alpha1.ProxyPool) { pool.Spec.Template.Spec.Provider = "no-such-class" })
	f.readyCondition(unknown, "spec.provider: ProviderClass no-such-class does not exist")
	labels := f.pool("labels", 2, 0, func(pool *v1alpha1.ProxyPool) { pool.Spec.Template.Metadata.Labels["geo"] = "not a label" })
	f.readyCondition(labels, "metadata.labels")
	annotations := f.pool("annotations", 2, 0, func(pool *v1alpha1.ProxyPool) {
		pool.Spec.Template.Metadata.Annotations = map[string]string{"no key": ""}
	})
	f.readyCondition(annotations, "metadata.annotations")
	for pool, n := range map[*v1alpha1.ProxyPool]int{unknown: 2, labels: 0, annotations: 0} {
		if got := len(f.members(pool)); got != n {
			t.Errorf("pool %s has %d proxies, want %d", pool.Name, got, n)
		}
	}
	if n := len(f.cloud.Instances()); n != 0 {
		t.Errorf("%d instances", n)
	}
	f.must(f.patch(unknown, class))
	f.must(f.patch(labels, `{"template":{"metadata":{"labels":{"geo":"a-label"}}}}`))
	f.must(f.patch(annotations, `{"template":{"metadata":{"annotations":null}}}`))
	for _, pool := range []*v1alpha1.ProxyPool{unknown, labels, annotations} {
		f.settled(pool, 2)
	}
}

// Pools count their proxies by owner: equal labels mix nothing up, and leases by label are served by both.
func TestPoolsOfEqualLabelsKeepTheirProxiesApart(t *testing.T) {
	f := startFleet(t)
	one := f.pool("one", 2, time.Minute, nil)
	two := f.pool("two", 2, time.Minute, nil)
	f.settled(one, 2)
	f.settled(two, 2)
	// Somebody gives the proxies of one the pool label of the other.
	for _, px := range f.members(one) {
		f.must(f.env.Client.Patch(t.Context(), &px, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"crawl.example.com/pool":"two"}}}`))))
	}
	kept := map[types.UID]bool{}
	for _, px := range f.members(two) {
		kept[px.UID] = true
	}
	scale(t, f.env, one, 0)
	waitFor(t, "pool one to be empty", func() bool { return len(f.members(one)) == 0 })
	for _, lease := range []string{"a", "b"} {
		l := &v1alpha1.ProxyLease{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: lease},
			Spec:       v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "eu"}}, Holder: lease},
		}
		f.must(f.env.Client.Create(t.Context(), l))
		waitFor(t, "lease "+lease, func() bool { return f.readLease(l).Status.Phase == v1alpha1.LeaseBound })
		if !kept[l.Status.ProxyRef.UID] {
			t.Errorf("lease %s is bound to %+v", lease, l.Status.ProxyRef)
		}
	}
	f.settled(two, 2)
	for _, px := range f.members(two) {
		if !kept[px.UID] {
			t.Errorf("pool two lost a proxy for %s", px.Name)
		}
	}
}

// Who takes a proxy away from its pool keeps it: it is replaced, neither taken back nor deleted, whatever labels it has. An
// owner besides the pool changes nothing.
func TestProxiesOfForeignOwnersAreNeitherTakenNorDeleted(t *testing.T) {
	f := startFleet(t)
	pool := f.pool("eu", 3, 0, nil)
	f.settled(pool, 3)
	members := f.members(pool)
	free, foreign, shared := &members[0], &members[1], &members[2]
	own := func(px *v1alpha1.Proxy, owners ...metav1.OwnerReference) {
		waitFor(t, "the owners of "+px.Name, func() bool {
			f.must(f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), px))
			px.OwnerReferences = owners
			return f.env.Client.Update(t.Context(), px) == nil
		})
	}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "somebody", UID: "somebody"}
	controller := other
	controller.Controller = new(true)
	own(free)
	own(foreign, controller)
	own(shared, append(shared.OwnerReferences, other)...)
	waitFor(t, "two new members", func() bool { return len(f.members(pool)) == 3 })
	f.settled(pool, 3)
	scale(t, f.env, pool, 0)
	waitFor(t, "the pool to be empty", func() bool { return len(f.members(pool)) == 0 })
	f.settled(pool, 0)
	for _, px := range []*v1alpha1.Proxy{free, foreign} {
		now := &v1alpha1.Proxy{}
		f.must(f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), now))
		if now.UID != px.UID || !now.DeletionTimestamp.IsZero() || len(now.OwnerReferences) != len(px.OwnerReferences) {
			t.Errorf("%s was touched: %+v", px.Name, now.ObjectMeta)
		}
	}
	if err := f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(shared), shared); err == nil && shared.DeletionTimestamp.IsZero() {
		t.Error("the member with another owner besides was kept")
	}
}

// What `kubectl delete --cascade=orphan` leaves are ordinary proxies with their instances and their leases, and no pool of the
// same name takes them.
func TestOrphanedMembersBecomeOrdinaryProxies(t *testing.T) {
	f := startFleet(t)
	f.env.ControllerManager(t)
	pool := f.pool("eu", 2, time.Minute, nil)
	f.settled(pool, 2)
	lease := f.lease("holder", "eu")
	kept := f.members(pool)
	f.must(f.env.Client.Delete(t.Context(), pool, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	ordinary := func() bool {
		for _, px := range kept {
			now := &v1alpha1.Proxy{}
			f.must(f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(&px), now))
			if now.UID != px.UID || !now.DeletionTimestamp.IsZero() {
				t.Fatalf("%s was deleted", px.Name)
			}
			if len(now.OwnerReferences) > 0 || now.Spec.ReplacePolicy == v1alpha1.ReplaceOnDelete || now.Labels[v1alpha1.LabelPool] != "" || now.Labels["geo"] != "eu" {
				return false
			}
		}
		return true
	}
	waitFor(t, "ordinary proxies", ordinary)
	waitFor(t, "the pool to be gone", func() bool {
		return apierrors.IsNotFound(f.env.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), &v1alpha1.ProxyPool{}))
	})
	namesake := f.pool("eu", 1, 0, nil)
	f.settled(namesake, 1)
	scale(t, f.env, namesake, 0)
	waitFor(t, "the namesake to be empty", func() bool { return len(f.members(namesake)) == 0 })
	if !ordinary() {
		t.Error("the namesake touched them")
	}
	if f.readLease(lease).Status.Phase != v1alpha1.LeaseBound {
		t.Errorf("the lease is %+v", lease.Status)
	}
}
