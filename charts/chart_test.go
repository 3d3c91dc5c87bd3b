// Package charts_test tests the chart and the kustomization with helm, kubectl and a real API server.
package charts_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/providersconfig"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestChartAndKustomizationAreTheSame(t *testing.T) {
	fromChart, fromKustomize := render(t), kustomize(t, "default")
	same := func(kind, name, kustomizeName string, path ...string) {
		t.Helper()
		a, _, _ := unstructured.NestedFieldNoCopy(find(t, fromChart, kind, name).Object, path...)
		b, _, _ := unstructured.NestedFieldNoCopy(find(t, fromKustomize, kind, kustomizeName).Object, path...)
		if a == nil {
			t.Errorf("%s %s has no %s", kind, name, strings.Join(path, "."))
		}
		if diff := cmp.Diff(b, a); diff != "" {
			t.Errorf("%s %s: %s differs between kustomization and chart:\n%s", kind, name, strings.Join(path, "."), diff)
		}
	}
	for _, name := range []string{"controller-manager", "controller-manager-cluster", "provider-kubernetes", "provider-kubernetes-cluster", "view", "edit", "lease-user"} {
		same("ClusterRole", release+"-"+name, release+"-"+name, "rules")
	}
	same("Role", release+"-controller-manager", release+"-controller-manager", "rules")
	same("Role", release+"-provider-kubernetes", release+"-provider", "rules")
	for _, name := range []string{"lease-grants", "reserved-metadata", "proxy-instances"} {
		same("ValidatingAdmissionPolicy", release+"-"+name, release+"-"+name, "spec")
		same("ValidatingAdmissionPolicyBinding", release+"-"+name, release+"-"+name, "spec")
	}
	for _, name := range []string{"proxies", "proxypools", "proxyleases", "providerclasses"} {
		name += "." + v1alpha1.GroupName
		same("CustomResourceDefinition", name, name, "spec")
	}
	same("Service", release+"-controller-manager-discovery-service", release+"-controller-manager-discovery-service", "spec", "ports")
	for _, name := range []string{"controller-manager", "provider-kubernetes"} {
		for _, path := range []string{"serviceAccountName", "securityContext", "terminationGracePeriodSeconds", "volumes"} {
			if path == "volumes" && name != "controller-manager" {
				continue
			}
			same("Deployment", release+"-"+name, release+"-"+name, "spec", "template", "spec", path)
		}
	}
}

func TestNamesFollowReleaseAndNamespace(t *testing.T) {
	text, err := output(component(t, "helm"), "template", "other", chart, "--namespace", "elsewhere", "--set", "fullnameOverride=second")
	must(t, err)
	all := objects(t, text)
	for _, object := range all {
		if object.GetKind() != "CustomResourceDefinition" && (strings.Contains(object.GetName(), release) || object.GetNamespace() == namespace) {
			t.Errorf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
		}
	}
	policy := find(t, all, "ValidatingAdmissionPolicy", "second-lease-grants")
	data, err := yaml.Marshal(policy.Object)
	must(t, err)
	if !strings.Contains(string(data), "system:serviceaccount:elsewhere:second-controller-manager") || strings.Contains(string(data), namespace) {
		t.Errorf("the policy names another operator:\n%s", data)
	}
	find(t, all, "ServiceAccount", "second-controller-manager")
	data, err = yaml.Marshal(find(t, all, "ClusterRole", "second-controller-manager-cluster").Object)
	must(t, err)
	if !strings.Contains(string(data), "- second-lease-grants\n") {
		t.Errorf("core may not read its policy:\n%s", data)
	}
}

func TestWatchedNamespacesLimitRights(t *testing.T) {
	all := render(t, "--set", "watchNamespaces={one,two}")
	for _, object := range all {
		if object.GetKind() == "ClusterRoleBinding" && !strings.HasSuffix(object.GetName(), "-cluster") {
			t.Errorf("%s gives rights in all namespaces", object.GetName())
		}
	}
	var bound []string
	for _, object := range all {
		if object.GetKind() == "RoleBinding" && object.GetNamespace() != namespace {
			bound = append(bound, object.GetNamespace()+"/"+object.GetName())
		}
	}
	slices.Sort(bound)
	want := []string{
		"one/" + release + "-controller-manager-watched", "one/" + release + "-provider-kubernetes-watched",
		"two/" + release + "-controller-manager-watched", "two/" + release + "-provider-kubernetes-watched",
	}
	if !slices.Equal(bound, want) {
		t.Errorf("got %v, want %v", bound, want)
	}
	if args := arguments(t, all, "controller-manager"); !slices.Contains(args, "--watch-namespaces=one,two") {
		t.Errorf("arguments %v", args)
	}
}

func arguments(t *testing.T, all []*unstructured.Unstructured, name string) []string {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(find(t, all, "Deployment", release+"-"+name).Object, "spec", "template", "spec", "containers")
	must(t, err)
	args, _, err := unstructured.NestedStringSlice(containers[0].(map[string]any), "args")
	must(t, err)
	return args
}

func TestValuesBecomeArguments(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca.crt")
	must(t, os.WriteFile(ca, []byte("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"), 0o600))
	all := render(t, "--set", "api.auth=token\\,kubernetes,api.tlsSecret=tls,api.defaultNamespace=crawl,clusterID=c1,logLevel=debug,healthChecks.trace=true",
		"--set", "healthChecks.urls={https://a.example/x,https://b.example/y},healthChecks.allowProxyCIDRs={127.0.0.0/8}",
		"--set-file", "healthChecks.caBundle="+ca, "--set", "core.extraArgs={--more=1}")
	args := arguments(t, all, "controller-manager")
	for _, want := range []string{
		"core", "--api-auth=token,kubernetes", "--api-token-file=/etc/proxy-operator/api-token/token", "--api-tls-cert-file=/etc/proxy-operator/api-tls/tls.crt",
		"--api-tls-key-file=/etc/proxy-operator/api-tls/tls.key", "--default-namespace=crawl", "--cluster-id=c1", "--log-level=debug", "--trace-health-probes",
		"--health-check-urls=https://a.example/x,https://b.example/y", "--health-check-ca-file=/etc/proxy-operator/health-ca/ca.crt", "--allow-proxy-cidrs=127.0.0.0/8",
		"--providers-config=/etc/proxy-operator/providers/providers.yaml", "--more=1",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("no %s in %v", want, args)
		}
	}
	config, _, _ := unstructured.NestedString(find(t, all, "ConfigMap", release+"-health-ca").Object, "data", "ca.crt")
	if !strings.Contains(config, "BEGIN CERTIFICATE") {
		t.Errorf("CA bundle %q", config)
	}
	if args := arguments(t, all, "provider-kubernetes"); args[0] != "provider" || args[1] != "kubernetes" {
		t.Errorf("arguments %v", args)
	}
}

func TestWrongValuesAreRefusedByName(t *testing.T) {
	helm := component(t, "helm")
	for values, field := range map[string]string{
		"imgae.tag=x":                    "imgae",
		"core.replica=2":                 "core",
		"core.replicas=many":             "core/replicas",
		"api.auth=tokn":                  "api/auth",
		"logLevel=loud":                  "logLevel",
		"image.digest=sha256:12":         "image/digest",
		"healthChecks.urls={http://x/}":  "healthChecks/urls/0",
		"providers.gpc.enabled=true":     "providers",
		"watchNamespaces={Upper}":        "watchNamespaces/0",
		"providerClasses[0].name=k":      "providerClasses/0",
		"fullnameOverride=Bad_Name":      "fullnameOverride",
		"api.service.port=0":             "api/service/port",
		"networkPolicy.enabled=perhaps":  "networkPolicy/enabled",
		"providerClasses[0].type=UPPER":  "providerClasses/0",
		"providerClasses[0].kuberntes=1": "providerClasses/0",
		"providerClasses[0].name=k,providerClasses[0].type=kubernetes,providerClasses[0].kubernetes.imgae=x":               "providerClasses/0/kubernetes",
		"providerClasses[0].name=k,providerClasses[0].type=kubernetes,providerClasses[0].exposure.connectPorts={0}":        "providerClasses/0/exposure/connectPorts/0",
		"providerClasses[0].name=k,providerClasses[0].type=kubernetes,providerClasses[0].egressScope=Alone":                "providerClasses/0/egressScope",
		"providerClasses[0].name=k,providerClasses[0].type=kubernetes,providerClasses[0].healthCheck.periodSeconds=always": "providerClasses/0/healthCheck/periodSeconds",
	} {
		_, err := output(helm, "template", release, chart, "--set", values)
		if err == nil {
			t.Errorf("%s was taken", values)
		} else if !strings.Contains(err.Error(), field) {
			t.Errorf("%s: the error does not name %s:\n%v", values, field, err)
		}
	}
}

// Every field that a ProviderClass has may stand in an entry of providerClasses.
func TestAllFieldsOfAClassPassThrough(t *testing.T) {
	file := filepath.Join(t.TempDir(), "values.yaml")
	text := `
providerClasses:
  - name: everything
    type: kubernetes
    controllerName: crawl.example.com/default
    allowedNamespaces: {from: Selector, selector: {matchLabels: {a: b}}}
    userCloudInit: Denied
    kubernetes:
      image: localhost/egress-squid:dev
      resources: {requests: {cpu: 1, memory: 64Mi}, limits: {memory: 256Mi}}
    exposure: {allowedSourceRanges: [10.0.0.0/8], connectPorts: [443, 8443], allowPrivateTargets: true}
    egressScope: PerInstance
    healthCheck:
      mode: Enabled
      periodSeconds: 10
      fastPeriodSeconds: 2
      timeoutSeconds: 5
      maxBodyBytes: 1048576
      targets: [{url: "https://origin.example/generate_204", caBundle: "x", owned: true, expect: {statuses: [204], strict: true}}]
      exitIP: {mode: Report}
    garbageCollection: Report
    maxConcurrentCreates: 5
    maxConcurrentReplacements: 2
    provisionTimeoutSeconds: 86400
`
	must(t, os.WriteFile(file, []byte(text), 0o600))
	config, _, _ := unstructured.NestedString(find(t, render(t, "--values", file), "ConfigMap", "providers-config").Object, "data", "providers.yaml")
	var got, want struct {
		Providers       []map[string]any `json:"providers"`
		ProviderClasses []map[string]any `json:"providerClasses"`
	}
	must(t, yaml.UnmarshalStrict([]byte(config), &got))
	must(t, yaml.UnmarshalStrict([]byte(text), &want))
	if diff := cmp.Diff(want.ProviderClasses, got.Providers); diff != "" {
		t.Error(diff)
	}
}

// What the core manager makes of the providers files that are shipped, the API server takes.
func TestProvidersFilesApplyToARealServer(t *testing.T) {
	env := testenv.New(t)
	files := map[string]string{}
	for name, all := range map[string][]*unstructured.Unstructured{
		"chart": render(t), "demo": render(t, "--values", filepath.Join(root(t), "e2e", "values.yaml")), "kustomization": kustomize(t, "default"),
	} {
		files[name], _, _ = unstructured.NestedString(find(t, all, "ConfigMap", "providers-config").Object, "data", "providers.yaml")
	}
	sample, err := os.ReadFile(filepath.Join(root(t), "config", "samples", "providers-config.yaml"))
	must(t, err)
	files["sample"] = string(sample)
	for name, text := range files {
		t.Run(name, func(t *testing.T) {
			classes, err := providersconfig.Parse([]byte(text))
			must(t, err)
			if len(classes) == 0 || classes[0].GetName() != "kubernetes" {
				t.Errorf("the first class is not kubernetes: %v", classes)
			}
			apply(t, env.Client, classes, client.DryRunAll)
		})
	}
}

func TestKustomizationAppliesToARealServer(t *testing.T) {
	env := testenv.New(t)
	apply(t, env.Client, kustomize(t, "default"))
	// Samples go where a user's kubectl would put them.
	for _, object := range kustomize(t, "samples") {
		if object.GetKind() != "ProviderClass" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		apply(t, env.Client, []*unstructured.Unstructured{object}, client.DryRunAll)
	}
}

func TestInstallUpgradeUninstall(t *testing.T) {
	env := testenv.New(t)
	helm := component(t, "helm")
	kubeconfig := testenv.Kubeconfig(t, env.Config)
	run := func(args ...string) string {
		t.Helper()
		text, err := output(helm, append(args, "--kubeconfig", kubeconfig, "--namespace", "installed")...)
		must(t, err)
		return text
	}
	token := func() string {
		t.Helper()
		secret := &corev1.Secret{}
		must(t, env.Client.Get(t.Context(), client.ObjectKey{Namespace: "installed", Name: "discovery-token"}, secret))
		return string(secret.Data["token"])
	}
	// The control plane of the tests has CRDs that helm does not own.
	notes := run("upgrade", "--install", "release", chart, "--create-namespace", "--take-ownership", "--wait=hookOnly", "--set", "networkPolicy.enabled=true,fullnameOverride=installed")
	for _, want := range []string{"ProxyPool", "port-forward", "/v1/leases"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not mention %s:\n%s", want, notes)
		}
	}
	first := token()
	if len(first) < 32 {
		t.Errorf("the token has %d characters", len(first))
	}
	run("upgrade", "release", chart, "--take-ownership", "--wait=hookOnly", "--set", "core.replicas=1,fullnameOverride=installed")
	if token() != first {
		t.Error("the upgrade changed the token")
	}
	run("uninstall", "release", "--wait=hookOnly")
	if token() != first {
		t.Error("the token did not survive")
	}
	crd := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}}
	must(t, env.Client.Get(t.Context(), client.ObjectKey{Name: "proxies.crawl.example.com"}, crd))
	if crd.GetDeletionTimestamp() != nil {
		t.Error("the CRDs are being deleted with the release")
	}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: "installed", Name: "installed-controller-manager"}, &corev1.ServiceAccount{}); !apierrors.IsNotFound(err) {
		t.Errorf("the ServiceAccount is still there: %v", err)
	}
	// A second installation takes the token it finds.
	run("upgrade", "--install", "release", chart, "--take-ownership", "--wait=hookOnly", "--set", "fullnameOverride=installed")
	if token() != first {
		t.Error("the second installation changed the token")
	}
	run("uninstall", "release", "--wait=hookOnly")
}
