package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// restarts of both managers after the end, each of which reconciles every Proxy.
const restarts = 2

// wantProbes is how many proxies are probed anew after each. The others' turn comes within their period.
const wantProbes = 50

// awaitEnd waits until everything is as it was asked for and nothing has moved for a while.
func (c *chaos) awaitEnd() {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), pollPeriod, settleLimit, true, func(context.Context) (bool, error) {
		return c.observer.still() >= quiet && len(c.problems()) == 0, nil
	})
	if err == nil {
		return
	}
	if problems := c.problems(); len(problems) > 0 {
		c.t.Fatalf("not as it was asked for after %s:\n%s", settleLimit, strings.Join(problems, "\n"))
	}
	c.t.Fatalf("no peace after %s, the last change was %s ago", settleLimit, c.observer.still())
}

// problems are how the stored objects differ from what was asked for.
func (c *chaos) problems() []string {
	c.t.Helper()
	var out []string
	problem := func(format string, arguments ...any) { out = append(out, fmt.Sprintf(format, arguments...)) }
	proxies, pods, pools, secrets := &v1alpha1.ProxyList{}, &corev1.PodList{}, &v1alpha1.ProxyPoolList{}, &corev1.SecretList{}
	c.list(proxies)
	c.list(pods)
	c.list(pools)
	c.list(secrets, client.HasLabels{v1alpha1.LabelProxyUID})

	if len(proxies.Items) != wantProxies || len(pods.Items) != wantProxies {
		problem("%d Proxies and %d pods, want %d of each", len(proxies.Items), len(pods.Items), wantProxies)
	}
	instances := map[types.UID]*corev1.Pod{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.DeletionTimestamp != nil {
			problem("pod %s is still being deleted", pod.Name)
		}
		instances[types.UID(pod.Labels[v1alpha1.LabelProxyUID])] = pod
	}
	loose, closed := map[string]types.UID{}, map[types.UID]bool{}
	for i := range proxies.Items {
		px := &proxies.Items[i]
		for _, p := range proxyProblems(px, instances[px.UID]) {
			problem("Proxy %s %s", px.Name, p)
		}
		if len(px.OwnerReferences) == 0 {
			loose[px.Name] = px.UID
		}
		closed[px.UID] = px.Spec.CredentialsSecretRef != nil
	}
	want := map[string]types.UID{}
	for name, px := range c.workload.have {
		want[name] = px.uid
	}
	if !maps.Equal(loose, want) {
		problem("loose Proxies %v, want %v", loose, want)
	}
	for i := range secrets.Items {
		if owner := types.UID(secrets.Items[i].Labels[v1alpha1.LabelProxyUID]); !closed[owner] {
			problem("Secret %s is left of Proxy %s", secrets.Items[i].Name, owner)
		}
		delete(closed, types.UID(secrets.Items[i].Labels[v1alpha1.LabelProxyUID]))
	}
	for uid, missing := range closed {
		if missing {
			problem("Proxy %s has no Secret with its password file", uid)
		}
	}
	return append(out, c.poolProblems(pools)...)
}

func (c *chaos) poolProblems(pools *v1alpha1.ProxyPoolList) []string {
	var out []string
	if len(pools.Items) != len(c.workload.replicas) {
		out = append(out, fmt.Sprintf("%d pools, want %d", len(pools.Items), len(c.workload.replicas)))
	}
	for i := range pools.Items {
		pool := &pools.Items[i]
		want := int32(c.workload.replicas[pool.Name])
		if s := pool.Status; s.Replicas != want || s.Ready != want || s.Updated != want || s.Draining+s.Terminating != 0 ||
			!meta.IsStatusConditionTrue(s.Conditions, v1alpha1.ConditionReady) {
			out = append(out, fmt.Sprintf("pool %s has status %+v, want %d replicas", pool.Name, s, want))
		}
	}
	return out
}

// proxyProblems are what is wrong with a Proxy whose instance is pod.
func proxyProblems(px *v1alpha1.Proxy, pod *corev1.Pod) []string {
	var out []string
	problem := func(format string, arguments ...any) { out = append(out, fmt.Sprintf(format, arguments...)) }
	if px.DeletionTimestamp != nil {
		problem("is still being deleted, with the finalizers %v", px.Finalizers)
	}
	for _, kind := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProvisioned, v1alpha1.ConditionUpToDate, v1alpha1.ConditionHealthy, v1alpha1.ConditionAccessRestricted, v1alpha1.ConditionReady} {
		condition := meta.FindStatusCondition(px.Status.Conditions, kind)
		if condition == nil || condition.Status != "True" || condition.ObservedGeneration != px.Generation {
			problem("of generation %d has the condition %s: %+v", px.Generation, kind, condition)
		}
	}
	if condition := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionCleanupBlocked); condition != nil {
		problem("has the condition %+v", condition)
	}
	if pod == nil {
		problem("has no pod; status.instance is %+v", instanceOf(px))
		return out
	}
	instance := instanceOf(px)
	if instance.ID != string(pod.UID) || instance.Name != pod.Name || instance.State != string(providers.StateRunning) ||
		!slices.Equal(instance.Addresses, []string{pod.Status.PodIP}) || instance.Port != px.Spec.Port ||
		instance.Hash != pod.Annotations[v1alpha1.AnnotationInstanceHash] || instance.MissingTime != nil {
		problem("has pod %s (%s, %s, hash %s) and port %d; status.instance is %+v", pod.Name, pod.UID, pod.Status.PodIP,
			pod.Annotations[v1alpha1.AnnotationInstanceHash], px.Spec.Port, instance)
	}
	if port := pod.Spec.Containers[0].Ports[0].ContainerPort; port != px.Spec.Port {
		problem("has port %d and its pod %d", px.Spec.Port, port)
	}
	return out
}

// checkAsked compares everything that was ever made with what was asked for: a kill alone makes nothing anew. Where two
// managers of a role were at work at once, a late call of the one may cost the other something more.
func (c *chaos) checkAsked() {
	c.t.Helper()
	most, more := 0, 0
	for uid, pods := range c.observer.podsOf() {
		asked := 1 + c.workload.again[uid]
		most += asked
		if pods > asked {
			more += pods - asked
			c.t.Logf("Proxy %s has had %d pods, and %d were asked for:\n%s", uid, pods, asked, c.observer.story(uid))
		}
	}
	if most := c.fleet.together(roleProvider); more > most {
		c.t.Errorf("%d pods more than asked for, want at most %d", more, most)
	}
	c.t.Logf("%d pods were made, and at most %d were asked for", c.observer.podsMade(), most)
	members := c.observer.membersMade()
	for name, uid := range c.workload.pools {
		if most := c.workload.members[name] + c.fleet.together(roleCore); members[uid] > most {
			c.t.Errorf("pool %s has had %d members, want at most %d", name, members[uid], most)
		}
	}

	proxies := &v1alpha1.ProxyList{}
	c.list(proxies)
	takenOver := 0
	for i := range proxies.Items {
		px := &proxies.Items[i]
		pod, ok := c.unrecorded[px.UID]
		switch {
		case !ok:
		case instanceOf(px).ID == string(pod):
			takenOver++
		case c.workload.again[px.UID] == 0:
			c.t.Errorf("Proxy %s had pod %s when a manager was killed, and has %s now", px.Name, pod, instanceOf(px).ID)
		}
	}
	if takenOver == 0 {
		c.t.Error("no kill fell between the creation of an instance and the status that names it")
	}
	c.t.Logf("%d instances that no status named when their manager was killed, %d of them run still and are in it now", len(c.unrecorded), takenOver)
}

// checkStill lets the managers look at everything again and again, and nothing may be written.
func (c *chaos) checkStill() {
	c.t.Helper()
	before := c.versions()
	for range restarts {
		c.fleet.replaceWithMetrics()
		c.awaitMetric(roleProvider, "controller_runtime_reconcile_total", `controller="proxy-instance-kubernetes"`, wantProxies)
		c.awaitMetric(roleCore, "controller_runtime_reconcile_total", `controller="proxy"`, wantProxies)
		c.awaitMetric(roleCore, "proxy_operator_healthcheck_probes_total", "", wantProbes)
		for _, r := range []role{roleProvider, roleCore} {
			if errors, err := c.fleet.metric(r, "controller_runtime_reconcile_errors_total", ""); err != nil || errors != 0 {
				c.t.Errorf("%s: %v failed reconciles of objects that nothing is wrong with (%v)", r, errors, err)
			}
		}
	}
	after := c.versions()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if before[name] != after[name] {
			c.t.Errorf("%s moved from resourceVersion %q to %q although nothing had changed", name, before[name], after[name])
		}
	}
	if len(after) != len(before) {
		c.t.Errorf("%d objects, and %d before", len(after), len(before))
	}
}

// awaitMetric waits until a metric of a role's manager is large enough.
func (c *chaos) awaitMetric(r role, name, labels string, want float64) {
	c.t.Helper()
	value := 0.0
	err := wait.PollUntilContextTimeout(c.t.Context(), pollPeriod, settleLimit, true, func(context.Context) (bool, error) {
		var err error
		value, err = c.fleet.metric(r, name, labels)
		return value >= want, err
	})
	if err != nil {
		c.t.Fatalf("%s: %s{%s} is %v, want at least %v: %v", r, name, labels, value, want, err)
	}
	c.t.Logf("%s: %s{%s} %v", r, name, labels, value)
}

// versions are the resourceVersions of all objects that the operator writes.
func (c *chaos) versions() map[string]string {
	c.t.Helper()
	out := map[string]string{}
	for _, list := range []client.ObjectList{&v1alpha1.ProxyList{}, &v1alpha1.ProxyPoolList{}, &v1alpha1.ProviderClassList{}, &corev1.PodList{}, &corev1.SecretList{}} {
		c.list(list)
		if err := meta.EachListItem(list, func(object runtime.Object) error {
			o, err := meta.Accessor(object)
			if err == nil {
				out[fmt.Sprintf("%T %s %s", object, o.GetName(), o.GetUID())] = o.GetResourceVersion()
			}
			return err
		}); err != nil {
			c.t.Fatal(err)
		}
	}
	return out
}
