package kube_test

import (
	"context"
	"log"
	"net/http"
	"os"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/client/kube"
)

// A crawler in the cluster whose leases go away with its Pod. POD_NAME and POD_UID come from the downward API.
func Example() {
	ctx := context.Background()
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	c, err := kube.NewForConfig(config, kube.Options{
		Namespace: "default",
		Owner:     kube.PodOwner(os.Getenv("POD_NAME"), types.UID(os.Getenv("POD_UID"))),
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Acquire(ctx, client.Request{Pool: "eu", Targets: []string{"shop.example"}})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = lease.Close(ctx) }()
	web := &http.Client{Transport: lease.Transport()}
	answer, err := web.Get("https://shop.example/")
	if err != nil {
		log.Fatal(err)
	}
	_ = answer.Body.Close()
}
