package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// CoreUser is the user whom the admission policies of config/policy know as core.
const CoreUser = "system:serviceaccount:egress-proxies-operator-system:egress-proxies-operator-controller-manager"

// Core installs the admission policy that protects grants, without which core grants nothing over HTTP, and gives the
// configuration of the user whom it names, with all rights. From then on nobody else writes grants, in all of the package's
// tests.
func (e *Env) Core(t testing.TB) *rest.Config {
	t.Helper()
	root, err := RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "config", "policy", "lease_grants.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), len(data))
	for {
		object := &unstructured.Unstructured{}
		if err := documents.Decode(object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(fmt.Errorf("read the admission policy: %w", err))
		}
		err := e.Client.Apply(context.Background(), client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("testenv"), client.ForceOwnership)
		if err != nil {
			t.Fatal(fmt.Errorf("install the admission policy: %w", err))
		}
	}
	return e.AddUser(t, CoreUser, "system:masters")
}
