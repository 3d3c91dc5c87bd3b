//go:build e2e

// Package e2e runs the operator's main job on a real cluster, the way a user would: kubectl, curl, and a crawler that goes
// through the leased proxy. hack/demo.sh prepares the cluster and says where things are:
//
//	KUBECONFIG       the cluster
//	DEMO_CA_FILE     the CA of the demo's HTTPS origin
//	KUBECTL          the kubectl to use
package e2e

import (
	"context"
	"fmt"
	"os"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/env"
	"sigs.k8s.io/e2e-framework/pkg/envconf"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Names that the demo's manifests and the chart use.
const (
	operatorNamespace = "egress-proxies-operator-system"
	coreDeployment    = "deploy/egress-proxies-operator-controller-manager"
	discoveryService  = "svc/egress-proxies-operator-controller-manager-discovery-service"
	originNamespace   = "egress-demo"
	originHost        = "origin.egress-demo.svc.cluster.local"
	namespace         = "default"
	poolName          = "demo"
	externalName      = "elsewhere"
)

var (
	testenv env.Environment
	cluster client.WithWatch
)

func TestMain(m *testing.M) {
	kubeconfig := os.Getenv("KUBECONFIG")
	if kubeconfig == "" || os.Getenv("DEMO_CA_FILE") == "" {
		fmt.Fprintln(os.Stderr, "e2e: KUBECONFIG and DEMO_CA_FILE are not set; `make demo` prepares a cluster and runs this")
		os.Exit(1)
	}
	// A step builds on those before it, so the first failure ends the run.
	cfg := envconf.NewWithKubeConfig(kubeconfig).WithFailFast()
	testenv = env.NewWithConfig(cfg)
	testenv.Setup(func(ctx context.Context, cfg *envconf.Config) (context.Context, error) {
		scheme := runtime.NewScheme()
		if err := clientgoscheme.AddToScheme(scheme); err != nil {
			return ctx, err
		}
		if err := v1alpha1.AddToScheme(scheme); err != nil {
			return ctx, err
		}
		c, err := client.NewWithWatch(cfg.Client().RESTConfig(), client.Options{Scheme: scheme})
		if err != nil {
			return ctx, fmt.Errorf("make client: %w", err)
		}
		cluster = c
		return ctx, nil
	})
	os.Exit(testenv.Run(m))
}
