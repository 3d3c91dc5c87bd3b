package charts_test

import (
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const gcpManager = release + "-provider-gcp"

func TestGcp_ChartAndKustomizationAreTheSame(t *testing.T) { sameInBoth(t, "gcp") }

// managerPod is the pod of the provider manager among the objects of a chart.
func managerPod(t *testing.T, all []*unstructured.Unstructured) *corev1.PodSpec {
	t.Helper()
	return podOf(t, find(t, all, "Deployment", gcpManager))
}

func podOf(t *testing.T, deployment *unstructured.Unstructured) *corev1.PodSpec {
	t.Helper()
	spec, _, err := unstructured.NestedMap(deployment.Object, "spec", "template", "spec")
	must(t, err)
	pod := &corev1.PodSpec{}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(spec, pod))
	return pod
}

// TestGcp_FederationValues installs what the guide shows for workload identity federation: only this manager gets it.
func TestGcp_FederationValues(t *testing.T) {
	env := testenv.New(t)
	w := newWalk(t, env)
	for _, object := range render(t, "--values", filepath.Join(w.dir, "values-gcp.yaml")) {
		if object.GetKind() != "Deployment" {
			continue
		}
		pod, mine := podOf(t, object), object.GetName() == gcpManager
		has := slices.ContainsFunc(pod.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "GOOGLE_APPLICATION_CREDENTIALS" })
		if has != mine {
			t.Errorf("%s has credentials: %v", object.GetName(), has)
		}
		// The namespace is another one: that of the release is not there in a dry run.
		object.SetNamespace("default")
		apply(t, env.Client, []*unstructured.Unstructured{object}, client.DryRunAll)
	}
}
