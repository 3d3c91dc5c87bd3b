package kubernetes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
)

// A budget of percents asks the controller of each pod for its scale, and that is the Proxy. Of three pods 60% are two: one may
// be evicted, and then the pod of the leased proxy may not.
func TestP15_PercentageBudgetRefusesTheEvictionOfALeasedProxy(t *testing.T) {
	env := testenv.New(t)
	env.ControllerManager(t, "disruption-controller")
	namespace := env.Namespace(t)
	kubelettest.Run(t, env.Config, namespace)
	provider := open(t, providers.Runtime{Client: env.Client, Reader: env.Client}, newClass(nil))
	percent := intstr.FromString("60%")
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "budget"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: &percent,
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{v1alpha1.LabelPool: "demo"}},
		},
	}
	must(t, env.Client.Create(t.Context(), budget))
	var pods []*corev1.Pod
	var leased *v1alpha1.Proxy
	for _, name := range []string{"a", "b", "c"} {
		px := &v1alpha1.Proxy{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec:       v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "kubernetes"}},
		}
		must(t, env.Client.Create(t.Context(), px))
		req := newRequest(namespace, px.UID, func(r *providers.CreateRequest) {
			r.Owner.Name, r.Name = name, providers.InstanceName(testCluster, name, px.UID)
		})
		_, err := provider.Create(t.Context(), req)
		must(t, err)
		waitForState(t, provider, refOf(req), providers.StateRunning)
		pods = append(pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: req.Name}})
		leased = px
	}
	lease := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "lease"},
		Spec:       v1alpha1.ProxyLeaseSpec{ProxyName: leased.Name, Holder: "holder"},
	}
	must(t, env.Client.Create(t.Context(), lease))
	lease.Status.Phase, lease.Status.ProxyRef = v1alpha1.LeaseBound, &v1alpha1.BoundProxy{Name: leased.Name, UID: leased.UID}
	must(t, env.Client.Status().Update(t.Context(), lease))

	eventually(t, "the budget of three pods", func() bool {
		must(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(budget), budget))
		s := budget.Status
		return s.ExpectedPods == 3 && s.DesiredHealthy == 2 && s.CurrentHealthy == 3 && s.DisruptionsAllowed == 1
	})
	must(t, env.Client.SubResource("eviction").Create(t.Context(), pods[0], &policyv1.Eviction{}))
	err := env.Client.SubResource("eviction").Create(t.Context(), pods[2], &policyv1.Eviction{})
	if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
		t.Fatalf("eviction of the leased proxy's pod: %v, want 429 by the disruption budget", err)
	}
	must(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(pods[2]), pods[2]))
	if !pods[2].DeletionTimestamp.IsZero() {
		t.Error("the pod is being deleted nevertheless")
	}
}
