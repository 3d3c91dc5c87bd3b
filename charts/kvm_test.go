package charts_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// libvirtTypes are the providers on hypervisors of one's own.
var libvirtTypes = []string{"kvm", "kvm2"}

func TestKvm_ChartAndKustomizationAreTheSame(t *testing.T) {
	for _, provider := range libvirtTypes {
		t.Run(provider, func(t *testing.T) {
			sameInBoth(t, provider)
			manager := release + "-provider-" + provider
			for _, path := range [][]string{{"spec", "template", "spec", "volumes"}} {
				a, _, _ := unstructured.NestedSlice(find(t, render(t, "--set", "providers."+provider+".enabled=true"), "Deployment", manager).Object, path...)
				b, _, _ := unstructured.NestedSlice(find(t, kustomize(t, provider), "Deployment", manager).Object, path...)
				if diff := cmp.Diff(b, a); diff != "" || len(a) != 2 {
					t.Errorf("the volumes differ between kustomization and chart:\n%s", diff)
				}
			}
		})
	}
}

// TestKvm_ManagerReadsTheSecretsItIsTold: and no other of its namespace.
func TestKvm_ManagerReadsTheSecretsItIsTold(t *testing.T) {
	for _, provider := range libvirtTypes {
		manager := release + "-provider-" + provider
		for _, names := range [][]any{nil, {"lab-ssh", "rack-ssh"}} {
			flags := []string{"--set", "providers." + provider + ".enabled=true"}
			if names != nil {
				flags = append(flags, "--set", "providers."+provider+".sshSecrets={lab-ssh,rack-ssh}")
			}
			rules, _, err := unstructured.NestedSlice(find(t, render(t, flags...), "Role", manager).Object, "rules")
			must(t, err)
			var got []any
			for _, rule := range rules {
				r := rule.(map[string]any)
				if resources := r["resources"].([]any); len(resources) == 1 && resources[0] == "secrets" {
					got = append(got, r["resourceNames"].([]any)...)
				}
			}
			if diff := cmp.Diff(names, got); diff != "" {
				t.Errorf("%s: %s", provider, diff)
			}
		}
	}
}
