package charts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const gcpManager = release + "-provider-gcp"

func TestGcp_ChartAndKustomizationAreTheSame(t *testing.T) { sameInBoth(t, "gcp") }

// TestGcp_FederationValues installs what the guide shows for workload identity federation: only this manager gets it.
func TestGcp_FederationValues(t *testing.T) {
	env := testenv.New(t)
	guide, err := os.ReadFile(filepath.Join(root(t), "docs", "gcp-provider.md"))
	must(t, err)
	_, text, found := strings.Cut(string(guide), "# helm values for federation\n")
	text, _, ends := strings.Cut(text, "```")
	if !found || !ends {
		t.Fatal("the guide has no values for federation")
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	must(t, os.WriteFile(file, []byte(text), 0o600))
	all := render(t, "--values", file, "--set", `providers.gcp.serviceAccountAnnotations.iam\.gke\.io/gcp-service-account=px@demo.iam.gserviceaccount.com`)
	if got := find(t, all, "ServiceAccount", gcpManager).GetAnnotations()["iam.gke.io/gcp-service-account"]; got != "px@demo.iam.gserviceaccount.com" {
		t.Errorf("the account acts as %q", got)
	}
	for _, object := range all {
		if object.GetKind() != "Deployment" {
			continue
		}
		spec, _, err := unstructured.NestedMap(object.Object, "spec", "template", "spec")
		must(t, err)
		pod := &corev1.PodSpec{}
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, pod))
		has := false
		for _, variable := range pod.Containers[0].Env {
			has = has || variable.Name == "GOOGLE_APPLICATION_CREDENTIALS"
		}
		mine := object.GetName() == gcpManager
		if has != mine {
			t.Errorf("%s has credentials: %v", object.GetName(), has)
		}
		if mine && (len(pod.Volumes) != 2 || len(pod.Containers[0].VolumeMounts) != 2 || pod.Volumes[1].Projected.Sources[0].ServiceAccountToken == nil) {
			t.Errorf("volumes %+v, mounts %+v", pod.Volumes, pod.Containers[0].VolumeMounts)
		}
		// The namespace is another one: that of the release is not there in a dry run.
		object.SetNamespace("default")
		apply(t, env.Client, []*unstructured.Unstructured{object}, client.DryRunAll)
	}
}
