package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// happening is something that the observer counts.
type happening int

const (
	anything happening = iota
	proxyMade
	proxyBound
	finalizerStored
	intentStored
	podMade
	podRuns
	instanceRecorded
	podLeaves
	podGone
	missingStored
	proxyLeaves
	proxyGone
)

// progress is what a manager of a role does, or what makes it do something: the moments to kill it at.
var progress = map[role][]happening{
	roleProvider: {proxyBound, finalizerStored, intentStored, podMade, podMade, podMade, podRuns, instanceRecorded, podLeaves, podGone, missingStored, proxyLeaves},
	roleCore:     {proxyMade, proxyMade, proxyBound, instanceRecorded, proxyLeaves, proxyGone},
}

// observer sees every change of Proxies and pods, in order.
type observer struct {
	reader client.Reader

	mu sync.Mutex
	// changed is closed at the next happening.
	changed chan struct{}
	counts  map[happening]int
	// moved is when an object that is watched changed last.
	moved time.Time
	// owners are the pools of all Proxies that ever were, "" without.
	owners map[types.UID]types.UID
	// recorded is the instance that a Proxy's status names.
	recorded map[types.UID]types.UID
	// pods are all that ever were, and whose they are; live those that are not being deleted, by Proxy.
	pods map[types.UID]types.UID
	live map[types.UID]map[types.UID]string
	// stories are what happened to each Proxy, line by line.
	stories  map[types.UID][]string
	problems []string
}

// observe watches a namespace until the test ends.
func observe(t *testing.T, env *testenv.Env, namespace string) *observer {
	t.Helper()
	o := &observer{
		reader: env.Client, changed: make(chan struct{}), counts: map[happening]int{},
		owners: map[types.UID]types.UID{}, recorded: map[types.UID]types.UID{},
		pods: map[types.UID]types.UID{}, live: map[types.UID]map[types.UID]string{}, stories: map[types.UID][]string{},
	}
	c, err := client.NewWithWatch(env.Config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running, starting sync.WaitGroup
	starting.Add(4)
	in := client.InNamespace(namespace)
	running.Go(func() {
		follow(ctx, o, c, starting.Done, func() client.ObjectList { return &v1alpha1.ProxyList{} }, o.proxy, in)
	})
	running.Go(func() {
		follow(ctx, o, c, starting.Done, func() client.ObjectList { return &corev1.PodList{} }, o.pod, in)
	})
	running.Go(func() {
		follow(ctx, o, c, starting.Done, func() client.ObjectList { return &v1alpha1.ProxyPoolList{} }, func(_, _ *v1alpha1.ProxyPool) {}, in)
	})
	running.Go(func() {
		follow(ctx, o, c, starting.Done, func() client.ObjectList { return &v1alpha1.ProviderClassList{} }, func(_, _ *v1alpha1.ProviderClass) {})
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	starting.Wait()
	return o
}

// changes takes a change in.
func (o *observer) changes(note func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.moved = time.Now()
	note()
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *observer) proxy(before, after *v1alpha1.Proxy) {
	if after == nil {
		delete(o.recorded, before.UID)
		o.counts[proxyGone]++
		return
	}
	if before == nil {
		o.owners[after.UID] = ""
		if owner := metav1.GetControllerOf(after); owner != nil {
			o.owners[after.UID] = owner.UID
		}
		o.counts[proxyMade]++
		before = &v1alpha1.Proxy{}
	}
	was, is := instanceOf(before), instanceOf(after)
	o.tell(after.UID, "generation %d, port %d, instance %s %s, hash %s of %s, intent %s, attempt %d, missing %s", after.Generation, after.Spec.Port,
		is.ID, is.State, is.Hash, is.DesiredHash, seconds(is.IntentTime), is.Attempt, seconds(is.MissingTime))
	o.recorded[after.UID] = types.UID(is.ID)
	finalizer := v1alpha1.FinalizerInstance(v1alpha1.ProviderKubernetes)
	for what, happened := range map[happening]bool{
		proxyBound:       before.Status.Binding == nil && after.Status.Binding != nil,
		finalizerStored:  !controllerutil.ContainsFinalizer(before, finalizer) && controllerutil.ContainsFinalizer(after, finalizer),
		intentStored:     is.IntentTime != nil && !is.IntentTime.Equal(was.IntentTime),
		instanceRecorded: is.ID != "" && is.ID != was.ID,
		missingStored:    was.MissingTime == nil && is.MissingTime != nil,
		proxyLeaves:      before.DeletionTimestamp == nil && after.DeletionTimestamp != nil,
	} {
		if happened {
			o.counts[what]++
		}
	}
}

// tell adds a line to a Proxy's story.
func (o *observer) tell(px types.UID, format string, arguments ...any) {
	o.stories[px] = append(o.stories[px], time.Now().Format("05.000 ")+fmt.Sprintf(format, arguments...))
}

// story is what happened to a Proxy.
func (o *observer) story(px types.UID) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(o.stories[px], "\n")
}

func seconds(t *metav1.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format("05")
}

func instanceOf(px *v1alpha1.Proxy) v1alpha1.Instance {
	if px.Status.Instance == nil {
		return v1alpha1.Instance{}
	}
	return *px.Status.Instance
}

func (o *observer) pod(before, after *corev1.Pod) {
	if after == nil {
		o.tell(o.pods[before.UID], "pod %s is gone", before.UID)
		delete(o.live[o.pods[before.UID]], before.UID)
		o.counts[podGone]++
		return
	}
	if before == nil {
		before = &corev1.Pod{}
		o.pods[after.UID] = types.UID(after.Labels[v1alpha1.LabelProxyUID])
		o.tell(o.pods[after.UID], "pod %s is made, hash %s", after.UID, after.Annotations[v1alpha1.AnnotationInstanceHash])
		o.counts[podMade]++
	}
	if before.Status.Phase != corev1.PodRunning && after.Status.Phase == corev1.PodRunning {
		o.counts[podRuns]++
	}
	owner := o.pods[after.UID]
	switch {
	case after.DeletionTimestamp == nil:
		o.alive(after, owner)
	case before.DeletionTimestamp == nil:
		o.tell(owner, "pod %s is deleted", after.UID)
		delete(o.live[owner], after.UID)
		o.counts[podLeaves]++
	}
}

// alive takes a pod in that is not being deleted: there must be no second one.
func (o *observer) alive(pod *corev1.Pod, owner types.UID) {
	if o.live[owner] == nil {
		o.live[owner] = map[types.UID]string{}
	}
	o.live[owner][pod.UID] = pod.Name
	for uid, name := range o.live[owner] {
		if uid == pod.UID {
			continue
		}
		// A watch that was broken off tells late what is gone.
		other := &corev1.Pod{}
		err := o.reader.Get(context.Background(), client.ObjectKey{Namespace: pod.Namespace, Name: name}, other)
		if apierrors.IsNotFound(err) || err == nil && (other.UID != uid || other.DeletionTimestamp != nil) {
			continue
		}
		o.problems = append(o.problems, fmt.Sprintf("Proxy %s has two pods: %s (%s) and %s (%s); %v", owner, name, uid, pod.Name, pod.UID, err))
	}
}

// await waits until something has happened so many times more, but not longer than limit.
func (o *observer) await(what happening, times int, limit time.Duration) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	o.mu.Lock()
	goal := o.counts[what] + times
	for what == anything || o.counts[what] < goal {
		changed := o.changed
		o.mu.Unlock()
		select {
		case <-timer.C:
			return
		case <-changed:
		}
		o.mu.Lock()
	}
	o.mu.Unlock()
}

// unrecorded are the Proxies with a pod that their status does not name yet.
func (o *observer) unrecorded() map[types.UID]types.UID {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[types.UID]types.UID{}
	for owner, pods := range o.live {
		for pod := range pods {
			if o.recorded[owner] != pod {
				out[owner] = pod
			}
		}
	}
	return out
}

// still is how long nothing has moved.
func (o *observer) still() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	return time.Since(o.moved)
}

func (o *observer) proxiesMade() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.owners)
}

func (o *observer) podsMade() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.pods)
}

// membersMade is how many Proxies each pool has had.
func (o *observer) membersMade() map[types.UID]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[types.UID]int{}
	for _, pool := range o.owners {
		if pool != "" {
			out[pool]++
		}
	}
	return out
}

// podsOf is how many pods each Proxy has had.
func (o *observer) podsOf() map[types.UID]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := map[types.UID]int{}
	for _, owner := range o.pods {
		out[owner]++
	}
	return out
}

// findings are what must not have been seen.
func (o *observer) findings() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := slices.Clone(o.problems)
	for _, pod := range slices.Sorted(maps.Keys(o.pods)) {
		if _, ok := o.owners[o.pods[pod]]; !ok {
			out = append(out, fmt.Sprintf("pod %s was made for Proxy %q, which never was", pod, o.pods[pod]))
		}
	}
	return out
}
