package providersconfig

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const sample = `
providers:
- name: kubernetes
  type: kubernetes
- name: gcp-eu
  type: gcp
  gcp:
    project: my-project
    network: default
    networkTag: egress-proxy
    diskSizeGb: 20
- name: kvm-home
  type: kvm
  egressScope: Shared
  allowedNamespaces:
    from: Selector
    selector:
      matchLabels: {team: crawl}
  healthCheck:
    periodSeconds: 30
  kvm:
    sshKeyFile: /etc/proxy-operator/kvm/id_ed25519
    knownHostsFile: /etc/proxy-operator/kvm/known_hosts
    images:
    - name: debian-12
      url: https://example.com/debian-12.qcow2
    machineTypes:
    - {name: small, cpus: 1, memory: 512Mi}
    hosts:
    - {name: h1, address: 192.0.2.10, user: proxy, bridge: br0}
- name: other
  type: cloud.example.org/vm
`

func TestParse(t *testing.T) {
	classes, err := Parse([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*v1alpha1.ProviderClass{}
	for _, u := range classes {
		class := &v1alpha1.ProviderClass{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, class); err != nil {
			t.Fatal(err)
		}
		byName[class.Name] = class
	}
	if len(byName) != 4 {
		t.Fatalf("%d classes", len(byName))
	}
	if c := byName["gcp-eu"]; c.Spec.Type != v1alpha1.ProviderGCP || c.Spec.GCP.Project != "my-project" || *c.Spec.GCP.DiskSizeGb != 20 || c.Spec.AllowedNamespaces.From != "All" {
		t.Errorf("gcp-eu is %+v", c.Spec)
	}
	if c := byName["kvm-home"]; c.Spec.AllowedNamespaces.Selector.MatchLabels["team"] != "crawl" || c.Spec.KVM.Hosts[0].Bridge != "br0" ||
		c.Spec.KVM.MachineTypes[0].Memory.Value() != 512<<20 || c.Spec.EgressScope != v1alpha1.EgressShared {
		t.Errorf("kvm-home is %+v", c.Spec)
	}
}

func TestParseRefusals(t *testing.T) {
	const kvm = "providers: [{name: k, type: kvm, kvm: {sshKeyFile: /etc/proxy-operator/kvm/id, knownHostsFile: /etc/proxy-operator/kvm/kh, "
	for _, tt := range []struct{ name, file, want string }{
		{"empty", "", "providers: required"},
		{"comment only", "# nothing\n", "providers: required"},
		{"not a mapping", "- a\n", "must be a mapping"},
		{"syntax", "providers: [", "is no valid YAML"},
		{"repeated key", "providers: []\nproviders: []\n", `key "providers" already set`},
		{"unknown top-level field", "provider: []\n", `unknown field "provider"`},
		{"providers is no list", "providers: {}\n", "providers: must be a list"},
		{"entry is no mapping", "providers: [x]\n", "providers[0]: must be a mapping"},
		{"entry is empty", "providers: [null]\n", "providers[0]: must be a mapping"},
		{"no name", "providers: [{type: kubernetes}]", "providers[0]: name: required"},
		{"name of a wrong type", "providers: [{name: 5, type: kubernetes}]", "providers[0]: name: must be a string"},
		{"name with capitals", "providers: [{name: Eu, type: kubernetes}]", "providers[0] (Eu): name: "},
		{"long name", "providers: [{name: " + strings.Repeat("a", 64) + ", type: kubernetes}]", "name: has 64 characters"},
		{"no type", "providers: [{name: a}]", "providers[0] (a): type: required"},
		{"unknown type", "providers: [{name: a, type: aws}]", `providers[0] (a): type: "aws" is none of`},
		{"repeated name", "providers: [{name: a, type: kubernetes}, {name: a, type: kubernetes}]", "providers[1] (a): name: is used by an earlier entry"},
		{"unknown field", "providers: [{name: a, type: gcp, gcp: {projct: x}}]", `providers[0] (a): unknown field "gcp.projct"`},
		{"unknown field of the entry", "providers: [{name: a, type: kubernetes, region: x}]", `providers[0] (a): unknown field "region"`},
		{"field in other case", "providers: [{name: a, type: gcp, gcp: {Project: xyz}}]", `unknown field "gcp.Project"`},
		{"wrong type of a field", "providers: [{name: a, type: gcp, gcp: {project: my-project, diskSizeGb: big}}]", "providers[0] (a): gcp.diskSizeGb: must be a number, not a string"},
		{"block missing", "providers: [{name: a, type: gcp}]", "providers[0] (a): gcp: required when type is gcp"},
		{"block of another type", "providers: [{name: a, type: kubernetes, kvm: {}}]", "providers[0] (a): kvm: is only allowed when type is kvm"},
		{"no project", "providers: [{name: a, type: gcp, gcp: {}}]", "gcp.project: required"},
		{"no key", "providers: [{name: a, type: kvm2, kvm2: {}}]", "kvm2.sshKeyFile: exactly one"},
		{"no known_hosts", "providers: [{name: a, type: kvm, kvm: {sshKeyFile: /etc/proxy-operator/kvm/id}}]", "kvm.knownHostsFile: required"},
		{"no machine types", kvm + "hosts: []}}]", "kvm.machineTypes: required"},
		{"no hosts", kvm + "machineTypes: [{name: s, cpus: 1, memory: 1Gi}]}}]", "kvm.hosts: required"},
		{"host without address", kvm + "machineTypes: [{name: s, cpus: 1, memory: 1Gi}], hosts: [{name: h}]}}]", "kvm.hosts[0].address: required"},
		{"bad quantity", kvm + "machineTypes: [{name: s, cpus: 1, memory: lots}], hosts: []}}]", "providers[0] (k): "},
		{"two documents", "providers: []\n---\nproviders: []\n", "has 2 YAML documents"},
		{"too large", strings.Repeat("#", maxFileSize+1), "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse([]byte(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want one with %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "\n") || len(err.Error()) > 500 {
				t.Errorf("the error is not one line: %q", err)
			}
		})
	}
}

func TestPrintIsWhatIsApplied(t *testing.T) {
	file := filepath.Join(t.TempDir(), "providers.yaml")
	if err := os.WriteFile(file, []byte(sample), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := Print(&out, file); err != nil {
		t.Fatal(err)
	}
	var names []string
	for document := range strings.SplitSeq(strings.TrimPrefix(out.String(), "---\n"), "---\n") {
		class := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &class.Object); err != nil {
			t.Fatal(err)
		}
		if class.GetKind() != "ProviderClass" || class.GetAPIVersion() != "crawl.example.com/v1alpha1" {
			t.Errorf("manifest of %s %s", class.GetAPIVersion(), class.GetKind())
		}
		names = append(names, class.GetName())
	}
	if strings.Join(names, " ") != "kubernetes gcp-eu kvm-home other" {
		t.Errorf("manifests of %v", names)
	}
	if err := Print(&out, file+".missing"); err == nil || !strings.Contains(err.Error(), "providers.yaml.missing") {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte("providers: [{name: a, type: gcp, gcp: {project: 5}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		classes, err := Parse(data)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error is not one line: %q", err)
			}
			return
		}
		for _, class := range classes {
			if class.GetName() == "" || class.GetKind() != "ProviderClass" {
				t.Errorf("class without a name or kind: %v", class.Object)
			}
		}
	})
}
