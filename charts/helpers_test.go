package charts_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const (
	chart     = "egress-proxies-operator"
	release   = "egress-proxies-operator"
	namespace = "egress-proxies-operator-system"
	// patience is how long a condition may take on a busy machine.
	patience = 60 * time.Second
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

func root(t *testing.T) string {
	t.Helper()
	dir, err := testenv.RepositoryRoot()
	must(t, err)
	return dir
}

// component finds a helper program that was built before, or skips the test. CI sets EGRESS_REQUIRE_ALL=1, so that there
// it cannot be forgotten.
func component(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("runs " + name + ", left out by -short")
	}
	out, err := exec.Command(filepath.Join(root(t), "hack", "component.sh"), "--find", name).Output()
	if err == nil {
		return strings.TrimSpace(string(out))
	}
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
		t.Fatalf("%s is not built and EGRESS_REQUIRE_ALL=1: hack/component.sh %s", name, name)
	}
	t.Skipf("%s is not built: hack/component.sh %s", name, name)
	return ""
}

// output runs a program and returns what it prints; the error has what it prints on stderr.
func output(program string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = &stdout, &stderr
	if err := command.Run(); err != nil {
		return "", errors.New(strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// render gives the objects of the chart.
func render(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	text, err := output(component(t, "helm"), append([]string{"template", release, chart, "--namespace", namespace}, args...)...)
	must(t, err)
	return objects(t, text)
}

// kustomize gives the objects of a folder below config/.
func kustomize(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	text, err := output(component(t, "kubectl"), "kustomize", filepath.Join(root(t), "config", folder))
	must(t, err)
	return objects(t, text)
}

func objects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

func find(t *testing.T, all []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, object := range all {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return nil
}

// apply writes objects to the API server, which checks them with its schemas. After the test they are gone, but for
// namespaces, which cannot go without their controller, and CRDs, which the control plane came with.
func apply(t *testing.T, c client.Client, all []*unstructured.Unstructured, opts ...client.ApplyOption) {
	t.Helper()
	opts = append(opts, client.FieldOwner("test"), client.ForceOwnership)
	for _, object := range all {
		if err := c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(object.DeepCopy()), opts...); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
	t.Cleanup(func() {
		for _, object := range all {
			if object.GetKind() != "Namespace" && object.GetKind() != "CustomResourceDefinition" {
				_ = c.Delete(context.Background(), object)
			}
		}
	})
}

// as is a client with the rights of a user, and of nobody else.
func as(t *testing.T, config *rest.Config, user string) client.Client {
	t.Helper()
	impersonating := rest.CopyConfig(config)
	impersonating.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	c, err := client.New(impersonating, client.Options{Scheme: manager.Scheme()})
	must(t, err)
	return c
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, patience, true, func(context.Context) (bool, error) { return holds(), nil })
	if err != nil {
		t.Fatalf("%s: not within %s", what, patience)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
