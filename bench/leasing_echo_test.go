//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"

	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
)

// echoVariable is set, to an echoConfig as JSON, in the process of the echo: a bare controller that sees ProxyLeases by a
// watch and answers each with one write of its status, the same for all. Nothing is decided, queued or limited in it.
const echoVariable = "EGRESS_BENCH_ECHO"

// echoConfig is what the echo is started with.
type echoConfig struct {
	Kubeconfig, Namespace string
	// Status is what is written.
	Status v1alpha1.ProxyLeaseStatus
}

// runEcho echoes until stdin ends, and returns the exit code. It prints a line when it watches.
func runEcho(text string) int {
	if err := echo(text); err != nil {
		fmt.Fprintln(os.Stderr, "echo:", err)
		return 1
	}
	return 0
}

func echo(text string) error {
	var c echoConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return fmt.Errorf("parse %s: %w", echoVariable, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	config, err := manager.RESTConfig(c.Kubeconfig)
	if err != nil {
		return err
	}
	config = rest.CopyConfig(config)
	config.QPS = -1
	writer, err := client.New(config, client.Options{Scheme: manager.Scheme()})
	if err != nil {
		return err
	}
	leases, err := cache.New(config, cache.Options{Scheme: manager.Scheme(), DefaultNamespaces: map[string]cache.Config{c.Namespace: {}}})
	if err != nil {
		return err
	}
	informer, err := leases.GetInformer(ctx, &v1alpha1.ProxyLease{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		lease := object.(*v1alpha1.ProxyLease).DeepCopy()
		go func() {
			if err := statusapply.Whole(ctx, writer, v1alpha1.ManagerLeasing, lease, &lease.Status, c.Status.DeepCopy()); err != nil {
				fmt.Fprintln(os.Stderr, "echo:", err)
			}
		}()
	}}); err != nil {
		return err
	}
	go func() {
		if leases.WaitForCacheSync(ctx) {
			fmt.Println("watching")
		}
	}()
	return leases.Start(ctx)
}
