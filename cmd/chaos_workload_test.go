package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	steadyReplicas = 50
	closedReplicas = 16
	scaledReplicas = 64
	doomedReplicas = 40
	looseAtTheEnd  = wantProxies - steadyReplicas - closedReplicas - scaledReplicas

	secretName = "credentials"
)

// loose is a Proxy without a pool.
type loose struct {
	uid    types.UID
	port   int32
	closed bool
}

// workload is what users ask for during the run, and an account of it: what was not asked for must not happen.
type workload struct {
	*chaos
	world *world
	// want are the names of the loose Proxies that there should be; have those that the test has made and not deleted. A
	// name that is wanted and not there yet may be that of a Proxy that is still going.
	want map[string]*loose
	have map[string]*loose
	made int
	// replicas of each pool, and how many members it may ever have.
	replicas, members map[string]int
	pools             map[string]types.UID
	// again is how many further instances each Proxy may need.
	again map[types.UID]int
}

func newWorkload(c *chaos, w *world) *workload {
	c.t.Helper()
	l := &workload{
		chaos: c, world: w, want: map[string]*loose{}, have: map[string]*loose{}, again: map[types.UID]int{},
		replicas: map[string]int{}, members: map[string]int{}, pools: map[string]types.UID{},
	}
	w.passwords.add("first")
	l.must("make the Secret", func(ctx context.Context) error {
		return c.env.Client.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: secretName, Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
			Data:       map[string][]byte{"username": []byte(username), "password": []byte("first")},
		})
	})
	return l
}

// steps is the life of the fleet, one step for each kill.
func (l *workload) steps() []func() {
	return []func(){
		func() { l.makePool("scaled", 30, false); l.more(30) },
		func() { l.makePool("steady", steadyReplicas, false) },
		func() { l.makePool("closed", closedReplicas, true) },
		func() { l.more(20) },
		func() { l.doom("doomed") },
		func() { l.scale("scaled", 70) },
		func() { l.movePorts(10) },
		func() { l.removeLoose(12, true) },
		func() { l.deletePods(8) },
		func() { l.rotate("second") },
		func() { l.scale("scaled", 40) },
		func() { l.more(15); l.removeLoose(10, false) },
		func() { l.movePorts(10) },
		func() { l.scale("scaled", scaledReplicas) },
		func() { l.removeLoose(10, true) },
		func() { l.deletePods(8) },
		func() { l.doom("doomed-too") },
		func() { l.movePorts(10) },
		func() { l.more(looseAtTheEnd - len(l.want) + 6); l.removeLoose(6, false) },
		func() { l.deletePods(8) },
	}
}

// finish makes what could not be made yet.
func (l *workload) finish() {
	l.t.Helper()
	l.more(looseAtTheEnd - len(l.want))
	for len(l.have) < len(l.want) {
		l.observer.await(proxyGone, 1, pollPeriod)
		l.make()
	}
}

// must is do for calls that cannot be refused.
func (l *workload) must(what string, call func(ctx context.Context) error) {
	l.t.Helper()
	if err := l.do(what, call); err != nil && !apierrors.IsAlreadyExists(err) {
		l.t.Fatalf("%s: %v", what, err)
	}
}

// more wants so many loose Proxies more; a third of them ask for credentials.
func (l *workload) more(n int) {
	l.t.Helper()
	for range n {
		px := &loose{port: l.world.ports[l.rng.IntN(2)], closed: l.made%3 == 0}
		if px.closed {
			px.port = l.world.closedPort
		}
		l.want[fmt.Sprintf("loose-%03d", l.made)] = px
		l.made++
	}
	l.make()
}

// make makes the loose Proxies that are wanted, except under names that are still taken.
func (l *workload) make() {
	l.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(l.want)) {
		if l.have[name] != nil {
			continue
		}
		want := l.want[name]
		px := &v1alpha1.Proxy{
			ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name},
			Spec:       v1alpha1.ProxySpec{ProxyTemplateSpec: l.template(want.port, want.closed)},
		}
		err := l.do("make Proxy "+name, func(ctx context.Context) error { return l.env.Client.Create(ctx, px) })
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		want.uid = px.UID
		l.have[name] = want
	}
}

func (l *workload) template(port int32, closed bool) v1alpha1.ProxyTemplateSpec {
	spec := v1alpha1.ProxyTemplateSpec{Provider: className, Port: port}
	if closed {
		spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: secretName}
	}
	return spec
}

// some are n names of loose Proxies that are there and suit.
func (l *workload) some(n int, suits func(*loose) bool) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(l.have)) {
		if suits(l.have[name]) {
			names = append(names, name)
		}
	}
	l.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:min(n, len(names))]
}

// removeLoose deletes n loose Proxies; with back, namesakes are made as soon as the names are free.
func (l *workload) removeLoose(n int, back bool) {
	l.t.Helper()
	for _, name := range l.some(n, func(*loose) bool { return true }) {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}}
		l.must("delete Proxy "+name, func(ctx context.Context) error { return client.IgnoreNotFound(l.env.Client.Delete(ctx, px)) })
		delete(l.have, name)
		if again := *l.want[name]; back {
			l.want[name] = &again
		} else {
			delete(l.want, name)
		}
	}
}

// movePorts changes the port of n open loose Proxies, which replaces their instances.
func (l *workload) movePorts(n int) {
	l.t.Helper()
	for _, name := range l.some(n, func(px *loose) bool { return !px.closed }) {
		px := l.have[name]
		px.port = l.world.ports[0] + l.world.ports[1] - px.port
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"port":%d}}`, px.port))
		object := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}}
		l.must("move Proxy "+name, func(ctx context.Context) error { return l.env.Client.Patch(ctx, object, patch) })
		l.again[px.uid]++
	}
}

// deletePods takes n instances away behind the operator's back.
func (l *workload) deletePods(n int) {
	l.t.Helper()
	pods := &corev1.PodList{}
	l.list(pods)
	l.rng.Shuffle(len(pods.Items), func(i, j int) { pods.Items[i], pods.Items[j] = pods.Items[j], pods.Items[i] })
	for i := range pods.Items {
		pod := &pods.Items[i]
		if n == 0 {
			return
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		err := l.do("delete pod "+pod.Name, func(ctx context.Context) error {
			return l.env.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID})
		})
		if err == nil {
			l.again[types.UID(pod.Labels[v1alpha1.LabelProxyUID])]++
			n--
		}
	}
}

// rotate changes the password: the instances that ask for it are made anew, in the pool by way of new members.
func (l *workload) rotate(password string) {
	l.t.Helper()
	l.world.passwords.add(password)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: secretName}}
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"stringData":{"password":%q}}`, password))
	l.must("rotate the Secret", func(ctx context.Context) error { return l.env.Client.Patch(ctx, secret, patch) })
	for _, px := range l.have {
		if px.closed {
			l.again[px.uid]++
		}
	}
	l.members["closed"] += closedReplicas
}

func (l *workload) makePool(name string, replicas int, closed bool) types.UID {
	l.t.Helper()
	port := l.world.ports[0]
	if closed {
		port = l.world.closedPort
	}
	half := intstr.FromString("50%")
	pool := &v1alpha1.ProxyPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name},
		Spec: v1alpha1.ProxyPoolSpec{
			Replicas: new(int32(replicas)), Template: v1alpha1.ProxyTemplate{Spec: l.template(port, closed)},
			Strategy: &v1alpha1.PoolStrategy{MaxSurge: &half, MaxUnavailable: &half},
		},
	}
	l.must("make pool "+name, func(ctx context.Context) error { return l.env.Client.Create(ctx, pool) })
	l.replicas[name], l.members[name], l.pools[name] = replicas, replicas, pool.UID
	return pool.UID
}

func (l *workload) scale(name string, replicas int) {
	l.t.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas))
	pool := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}}
	l.must("scale pool "+name, func(ctx context.Context) error { return l.env.Client.Patch(ctx, pool, patch) })
	l.members[name] += max(0, replicas-l.replicas[name])
	l.replicas[name] = replicas
}

// doom makes a pool and deletes it while its members are being made.
func (l *workload) doom(name string) {
	l.t.Helper()
	l.makePool(name, doomedReplicas, false)
	l.observer.await(proxyMade, 1+l.rng.IntN(doomedReplicas-1), mostWait)
	pool := &v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: name}}
	l.must("delete pool "+name, func(ctx context.Context) error { return client.IgnoreNotFound(l.env.Client.Delete(ctx, pool)) })
	delete(l.replicas, name)
}
