package charts_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// sameInBoth compares the manager of a provider that is off by default between chart and kustomization.
func sameInBoth(t *testing.T, provider string) {
	t.Helper()
	manager := release + "-provider-" + provider
	fromChart, fromKustomize := render(t, "--set", "providers."+provider+".enabled=true"), append(kustomize(t, "default"), kustomize(t, provider)...)
	for _, part := range []struct {
		kind, name string
		path       []string
	}{
		{"ClusterRole", manager, []string{"rules"}},
		{"ClusterRole", manager + "-cluster", []string{"rules"}},
		{"ClusterRoleBinding", manager + "-cluster", []string{"subjects"}},
		{"Deployment", manager, []string{"spec", "template", "spec", "serviceAccountName"}},
		{"Deployment", manager, []string{"spec", "template", "spec", "securityContext"}},
		{"ServiceAccount", manager, []string{"metadata", "name"}},
	} {
		a, _, _ := unstructured.NestedFieldNoCopy(find(t, fromChart, part.kind, part.name).Object, part.path...)
		b, _, _ := unstructured.NestedFieldNoCopy(find(t, fromKustomize, part.kind, part.name).Object, part.path...)
		if a == nil {
			t.Errorf("%s %s has no %s", part.kind, part.name, strings.Join(part.path, "."))
		}
		if diff := cmp.Diff(b, a); diff != "" {
			t.Errorf("%s %s differs between kustomization and chart:\n%s", part.kind, part.name, diff)
		}
	}
	for _, object := range render(t) {
		if object.GetKind() != "CustomResourceDefinition" && strings.HasPrefix(object.GetName(), manager) {
			t.Errorf("%s %s is there although the provider is off", object.GetKind(), object.GetName())
		}
	}
}
