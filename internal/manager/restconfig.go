package manager

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// RESTConfig finds the API server: the named kubeconfig, or KUBECONFIG, or the pod's ServiceAccount, or ~/.kube/config, as
// kubectl does.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server (--kubeconfig, KUBECONFIG or a ServiceAccount): %w", err)
	}
	return cfg, nil
}
