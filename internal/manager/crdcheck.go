package manager

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync/atomic"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/version"
)

// crdCheck is ready when the served CRDs have what this binary needs: an older schema drops fields silently, and what is
// dropped is what remembers instances and leases. Once ready it does not ask again.
func crdCheck(reader client.Reader, resources []string) healthz.Checker {
	var passed atomic.Bool
	return func(r *http.Request) error {
		if passed.Load() {
			return nil
		}
		if err := CheckCRDs(r.Context(), reader, resources); err != nil {
			return err
		}
		passed.Store(true)
		return nil
	}
}

// CheckCRDs returns an error that names each CRD of resources that is absent or too old.
func CheckCRDs(ctx context.Context, reader client.Reader, resources []string) error {
	var problems []error
	for _, resource := range resources {
		name := v1alpha1.Resource(resource).String()
		crd := &metav1.PartialObjectMetadata{}
		crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			problems = append(problems, fmt.Errorf("read CRD %s: %w", name, err))
			continue
		}
		bundle, err := strconv.Atoi(crd.Annotations[v1alpha1.AnnotationBundleVersion])
		if err != nil || bundle < version.BundleVersion {
			problems = append(problems, fmt.Errorf("CRD %s has %s=%q and this binary needs %d: upgrade the CRDs",
				name, v1alpha1.AnnotationBundleVersion, crd.Annotations[v1alpha1.AnnotationBundleVersion], version.BundleVersion))
		}
	}
	return errors.Join(problems...)
}
