package testenv

import (
	"context"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/manager"
)

// Watch calls see for each object of a kind in some namespaces and for each change of it, until the test ends. It costs the
// API server less than asking again and again would.
func Watch[T client.Object](t testing.TB, config *rest.Config, kind T, see func(object T, gone bool), namespaces ...string) {
	t.Helper()
	watched := map[string]cache.Config{}
	for _, namespace := range namespaces {
		watched[namespace] = cache.Config{}
	}
	objects, err := cache.New(config, cache.Options{Scheme: manager.Scheme(), DefaultNamespaces: watched})
	if err != nil {
		t.Fatalf("watch %T: %v", kind, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := objects.Start(ctx); err != nil {
			t.Errorf("watch %T: %v", kind, err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	informer, err := objects.GetInformer(ctx, kind)
	if err != nil {
		t.Fatalf("watch %T: %v", kind, err)
	}
	tell := func(object any, gone bool) {
		if unknown, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if typed, ok := object.(T); ok {
			see(typed, gone)
		}
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { tell(object, false) },
		UpdateFunc: func(_, object any) { tell(object, false) },
		DeleteFunc: func(object any) { tell(object, true) },
	}); err != nil {
		t.Fatalf("watch %T: %v", kind, err)
	}
}
