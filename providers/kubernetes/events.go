package kubernetes

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// watch turns changes of pods into wake-ups. The queue folds those of one Proxy and never makes an informer wait for the
// controller.
type watch struct {
	start   *sync.Once
	queue   workqueue.TypedInterface[providers.Owner]
	events  chan event.TypedGenericEvent[providers.Owner]
	stopped chan struct{}
}

func newWatch() watch {
	return watch{
		start:   &sync.Once{},
		queue:   workqueue.NewTyped[providers.Owner](),
		events:  make(chan event.TypedGenericEvent[providers.Owner]),
		stopped: make(chan struct{}),
	}
}

func (w watch) stop() {
	close(w.stopped)
	w.queue.ShutDown()
}

// Events implements providers.Eventer. The first call starts the watch.
func (p *Provider) Events() <-chan event.TypedGenericEvent[providers.Owner] {
	p.watch.start.Do(func() {
		if p.rt.Informers == nil {
			return
		}
		go p.watch.forward()
		go p.subscribe()
	})
	return p.watch.events
}

// subscribe listens to the informer until the Provider is closed.
func (p *Provider) subscribe() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	informer, err := p.rt.Informers.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		p.rt.Logger.Error(err, "Pods are polled only, since they cannot be watched", "class", p.class)
		return
	}
	registration, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    p.enqueue,
		UpdateFunc: func(_, pod any) { p.enqueue(pod) },
		DeleteFunc: p.enqueue,
	})
	if err != nil {
		p.rt.Logger.Error(err, "Pods are polled only, since they cannot be watched", "class", p.class)
		return
	}
	<-p.watch.stopped
	if err := informer.RemoveEventHandler(registration); err != nil {
		p.rt.Logger.Info("A handler of pods was left behind", "class", p.class, "error", err.Error())
	}
}

func (p *Provider) enqueue(object any) {
	if tombstone, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	pod, ok := object.(*corev1.Pod)
	if !ok || pod.Labels[v1alpha1.LabelClass] != p.class || pod.Labels[v1alpha1.LabelClusterID] != p.rt.ClusterID {
		return
	}
	p.watch.queue.Add(ownerOf(pod))
}

// forward hands the queue's owners to whoever receives events.
func (w watch) forward() {
	for {
		owner, down := w.queue.Get()
		if down {
			return
		}
		select {
		case w.events <- event.TypedGenericEvent[providers.Owner]{Object: owner}:
		case <-w.stopped:
		}
		w.queue.Done(owner)
	}
}
