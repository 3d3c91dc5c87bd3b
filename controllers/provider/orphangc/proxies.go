package orphangc

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// pageSize of the list of Proxies.
	pageSize = 500
	// listTries bounds how often a list is begun anew because its snapshot has expired.
	listTries = 3
)

type uids = map[types.UID]bool

// liveProxies are the UIDs of all Proxies of the cluster, read from the API server's quorum to the last page.
func (r *Runner) liveProxies(ctx context.Context) (uids, error) {
	live := uids{}
	// A namespaced manager may not list the cluster; then each of its namespaces is listed, and owners elsewhere are no
	// candidates.
	namespaces := r.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	for _, namespace := range namespaces {
		for try := 1; ; try++ {
			err := r.addProxies(ctx, namespace, live)
			if err == nil {
				break
			}
			// What such a list has shown so far was there, and the rest of it is not known: begin anew.
			if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) || try == listTries {
				return nil, fmt.Errorf("list Proxies: %w", err)
			}
		}
	}
	return live, nil
}

// addProxies lists one namespace. No resourceVersion is asked for: that is the newest state, which all pages share.
func (r *Runner) addProxies(ctx context.Context, namespace string, live uids) error {
	token := ""
	for {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("ProxyList"))
		if err := r.Reader.List(ctx, page, client.InNamespace(namespace), client.Limit(r.pageSize), client.Continue(token)); err != nil {
			return err
		}
		for i := range page.Items {
			live[page.Items[i].UID] = true
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}
