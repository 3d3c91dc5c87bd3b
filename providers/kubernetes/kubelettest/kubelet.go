// Package kubelettest stands in for scheduler and kubelet where a test has a real API server but no nodes: it gives every
// pod a node and an address, and takes deleted pods away.
package kubelettest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// nodeName is where all pods are said to be. No Node object is needed.
	nodeName = "test-node"
	// rewatchPeriod is the time between two watches.
	rewatchPeriod = 100 * time.Millisecond
)

// Kubelet runs the pods of one namespace.
type Kubelet struct {
	client    client.WithWatch
	namespace string

	mu        sync.Mutex
	addresses map[types.UID]string
	// addressOf makes the address of the n-th pod, counted from 0.
	addressOf func(n int) string
	// holdDeletions, while true, leaves pods terminating, as on a node that does not answer.
	holdDeletions bool
	// holdStarts, while true, leaves new pods pending.
	holdStarts bool
	changed    chan struct{}
}

// Run starts a Kubelet that lives as long as the test.
func Run(t testing.TB, config *rest.Config, namespace string) *Kubelet {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{
		client: c, namespace: namespace, addresses: map[types.UID]string{}, changed: make(chan struct{}, 1),
		addressOf: func(n int) string { return fmt.Sprintf("10.200.%d.%d", n/250, n%250+1) },
	}
	background(t, "test kubelet", rewatchPeriod, k.run)
	return k
}

// AddressPods gives pods that have no address yet addresses of the caller's choice: address makes that of the n-th pod,
// counted from 0.
func (k *Kubelet) AddressPods(address func(n int) string) { k.set(func() { k.addressOf = address }) }

// HoldDeletions leaves deleted pods terminating until it is called with false.
func (k *Kubelet) HoldDeletions(hold bool) { k.set(func() { k.holdDeletions = hold }) }

// HoldStarts leaves new pods pending until it is called with false.
func (k *Kubelet) HoldStarts(hold bool) { k.set(func() { k.holdStarts = hold }) }

func (k *Kubelet) set(change func()) {
	k.mu.Lock()
	change()
	k.mu.Unlock()
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// run serves one watch. Watches end from time to time.
func (k *Kubelet) run(ctx context.Context) error {
	watcher, err := k.client.Watch(ctx, &corev1.PodList{}, client.InNamespace(k.namespace))
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	defer watcher.Stop()
	if err := k.syncAll(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-k.changed:
			err = k.syncAll(ctx)
		case event, open := <-watcher.ResultChan():
			if !open {
				return nil
			}
			if pod, ok := event.Object.(*corev1.Pod); ok && event.Type != watch.Deleted {
				err = k.sync(ctx, pod)
			}
		}
		if err != nil {
			return err
		}
	}
}

func (k *Kubelet) syncAll(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := k.client.List(ctx, pods, client.InNamespace(k.namespace)); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		if err := k.sync(ctx, &pods.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// sync brings one pod a step on. Whoever else changes the pod at the same time causes another event.
func (k *Kubelet) sync(ctx context.Context, pod *corev1.Pod) error {
	err := k.step(ctx, pod)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (k *Kubelet) step(ctx context.Context, pod *corev1.Pod) error {
	k.mu.Lock()
	holdDeletions, holdStarts := k.holdDeletions, k.holdStarts
	k.mu.Unlock()
	switch {
	case pod.DeletionTimestamp != nil:
		if holdDeletions {
			return nil
		}
		return k.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	case pod.Spec.NodeName == "":
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
		}
		return k.client.SubResource("binding").Create(ctx, pod, binding)
	case pod.Status.Phase == corev1.PodPending && !holdStarts:
		return k.start(ctx, pod)
	}
	return nil
}

func (k *Kubelet) start(ctx context.Context, pod *corev1.Pod) error {
	now := metav1.Now()
	pod.Status.Phase = corev1.PodRunning
	pod.Status.StartTime = &now
	pod.Status.PodIP = k.address(pod.UID)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
	pod.Status.ContainerStatuses = nil
	for _, container := range pod.Spec.Containers {
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: new(true),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return k.client.SubResource("status").Update(ctx, pod)
}

// address is a new one for every pod.
func (k *Kubelet) address(uid types.UID) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.addresses[uid]; !ok {
		k.addresses[uid] = k.addressOf(len(k.addresses))
	}
	return k.addresses[uid]
}
