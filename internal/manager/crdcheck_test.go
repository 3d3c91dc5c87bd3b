package manager_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// patience is how long a condition may take on a busy machine.
const patience = time.Minute

func TestA45_OldCRDsKeepAManagerFromBeingReady(t *testing.T) {
	env := testenv.New(t)
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"))
	crd.Name = "proxies.crawl.example.com"
	bundle := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, v1alpha1.AnnotationBundleVersion, value)
		if err := env.Client.Patch(t.Context(), crd, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
			t.Fatal(err)
		}
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(crd), crd); err != nil {
		t.Fatal(err)
	}
	current := crd.Annotations[v1alpha1.AnnotationBundleVersion]

	for name, old := range map[string]string{"an older bundle": `"0"`, "no bundle": "null", "nonsense": `"x"`} {
		t.Run(name, func(t *testing.T) {
			bundle(old)
			probes := freeAddress(t)
			mgr, err := manager.New(env.Config, manager.Core(), manager.Options{
				MetricsBindAddress: "0", HealthProbeBindAddress: probes, SkipNameValidation: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- mgr.Start(ctx) }()
			defer func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("manager: %v", err)
				}
			}()

			eventually(t, "all but the CRDs are ready", func() bool { return answer(probes, "/readyz/caches") == "ok" })
			if said := answer(probes, "/readyz"); !strings.Contains(said, "[-]crds failed") {
				t.Errorf("/readyz says %q", said)
			}
			if said := answer(probes, "/readyz/crds"); !strings.Contains(said, crd.Name) || !strings.Contains(said, "upgrade the CRDs") {
				t.Errorf("/readyz/crds says %q", said)
			}
			if said := answer(probes, "/healthz"); said != "ok" {
				t.Errorf("/healthz says %q: a restart does not help", said)
			}
			bundle(fmt.Sprintf("%q", current))
			eventually(t, "ready with the new CRD", func() bool { return answer(probes, "/readyz") == "ok" })
		})
	}
}

// answer is the body of a probe; the error where there is none.
func answer(address, path string) string {
	response, err := http.Get("http://" + address + path)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err.Error()
	}
	return string(body)
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, patience, true, func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("%s: not within %v", what, patience)
	}
}
