// Package providersconfig reads the providers file: a short list of named providers in YAML, which becomes ProviderClasses.
//
//	providers:
//	- name: kubernetes
//	  type: kubernetes
//	- name: gcp-eu
//	  type: gcp
//	  gcp: {project: my-project}
//
// An entry has a name, a type, and every field of a ProviderClass's spec that it wants to set. allowedNamespaces may be left
// out and means all namespaces then: whoever writes this file runs the operator.
package providersconfig

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// maxNameLength is the longest name of a ProviderClass, in characters.
const maxNameLength = 63

// maxFileSize bounds the file: a ConfigMap holds no more. Unit: bytes.
const maxFileSize = 1 << 20

// entry is one provider of the file.
type entry struct {
	Name string
	v1alpha1.ProviderClassSpec
}

// Parse turns the content of a providers file into ProviderClasses, as manifests that hold nothing but what the file says.
// The error names the entry and the field. Rules that need the schema are the API server's; see Applier.Check.
func Parse(data []byte) ([]*unstructured.Unstructured, error) {
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("is larger than %d bytes", maxFileSize)
	}
	if n := documents(data); n > 1 {
		return nil, fmt.Errorf("has %d YAML documents, and only one is read", n)
	}
	asJSON, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, fmt.Errorf("is no valid YAML: %s", oneLine(err.Error()))
	}
	var file struct {
		Providers []json.RawMessage `json:"providers"`
	}
	if !bytes.Equal(asJSON, []byte("null")) {
		if !bytes.HasPrefix(asJSON, []byte("{")) {
			return nil, errors.New("must be a mapping with the key providers")
		}
		if err := strict(asJSON, &file); err != nil {
			return nil, err
		}
	}
	if file.Providers == nil {
		return nil, errors.New("providers: required")
	}
	var out []*unstructured.Unstructured
	var names []string
	for i, raw := range file.Providers {
		path := fmt.Sprintf("providers[%d]", i)
		class, err := parseEntry(raw)
		if class != nil && class.GetName() != "" {
			path += fmt.Sprintf(" (%s)", class.GetName())
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if slices.Contains(names, class.GetName()) {
			return nil, fmt.Errorf("%s: name: is used by an earlier entry", path)
		}
		names = append(names, class.GetName())
		out = append(out, class)
	}
	return out, nil
}

// parseEntry makes the manifest of one entry. With an error it still carries the name, if that much could be read.
func parseEntry(raw json.RawMessage) (*unstructured.Unstructured, error) {
	class := &unstructured.Unstructured{Object: map[string]any{}}
	if trimmed := bytes.TrimSpace(raw); len(trimmed) == 0 || trimmed[0] != '{' {
		return nil, errors.New("must be a mapping with name and type")
	}
	var spec map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &spec); err != nil {
		return nil, errors.New(oneLine(err.Error()))
	}
	name, given := spec["name"]
	delete(spec, "name")
	typed := entry{}
	var ok bool
	if typed.Name, ok = name.(string); given && !ok {
		return nil, errors.New("name: must be a string")
	}
	class.SetName(typed.Name)
	rest, err := json.Marshal(spec)
	if err != nil {
		return class, fmt.Errorf("read again: %w", err)
	}
	if err := strict(rest, &typed.ProviderClassSpec); err != nil {
		return class, err
	}
	if err := checkEntry(&typed); err != nil {
		return class, err
	}
	if _, ok := spec["allowedNamespaces"]; !ok {
		spec["allowedNamespaces"] = map[string]any{"from": v1alpha1.NamespacesFromAll}
	}
	class.SetAPIVersion(v1alpha1.SchemeGroupVersion.String())
	class.SetKind("ProviderClass")
	class.Object["spec"] = spec
	return class, nil
}

// documents counts the YAML documents that are not empty; the parser silently stops after the first.
func documents(data []byte) int {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for n := 0; ; {
		document, err := reader.Read()
		if err != nil {
			return n
		}
		if len(bytes.TrimSpace(bytes.TrimPrefix(bytes.TrimSpace(document), []byte("---")))) > 0 {
			n++
		}
	}
}

// strict decodes JSON and refuses unknown and repeated fields and wrong types, all by their path.
func strict(data []byte, into any) error {
	problems, err := kjson.UnmarshalStrict(data, into)
	if err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return fmt.Errorf("%s: must be %s, not a %s", wrong.Field, article(wrong.Type.Kind().String()), wrong.Value)
		}
		return errors.New(oneLine(strings.TrimPrefix(err.Error(), "json: ")))
	}
	if len(problems) > 0 {
		return errors.New(oneLine(problems[0].Error()))
	}
	return nil
}

func article(kind string) string {
	switch kind {
	case "struct", "map":
		return "a mapping"
	case "slice":
		return "a list"
	case "bool":
		return "true or false"
	case "string":
		return "a string"
	default:
		return "a number"
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// checkEntry checks what can be known without the schema and is most likely to be wrong.
func checkEntry(e *entry) error {
	switch {
	case e.Name == "":
		return errors.New("name: required")
	case len(e.Name) > maxNameLength:
		return fmt.Errorf("name: has %d characters, and at most %d are allowed", len(e.Name), maxNameLength)
	case e.Type == "":
		return errors.New("type: required")
	}
	if problems := validation.IsDNS1123Subdomain(e.Name); len(problems) > 0 {
		return fmt.Errorf("name: %s", problems[0])
	}
	blocks := map[v1alpha1.ProviderType]bool{
		v1alpha1.ProviderKubernetes: e.Kubernetes != nil, v1alpha1.ProviderGCP: e.GCP != nil,
		v1alpha1.ProviderKVM: e.KVM != nil, v1alpha1.ProviderKVM2: e.KVM2 != nil,
	}
	known := []v1alpha1.ProviderType{v1alpha1.ProviderKubernetes, v1alpha1.ProviderGCP, v1alpha1.ProviderKVM, v1alpha1.ProviderKVM2}
	if !slices.Contains(known, e.Type) && !strings.Contains(string(e.Type), "/") {
		return fmt.Errorf("type: %q is none of kubernetes, gcp, kvm, kvm2, nor a domain-prefixed name", e.Type)
	}
	for _, t := range known {
		if blocks[t] && t != e.Type {
			return fmt.Errorf("%s: is only allowed when type is %s", t, t)
		}
	}
	if slices.Contains(known[1:], e.Type) && !blocks[e.Type] {
		return fmt.Errorf("%s: required when type is %s", e.Type, e.Type)
	}
	switch e.Type {
	case v1alpha1.ProviderGCP:
		if e.GCP.Project == "" {
			return errors.New("gcp.project: required")
		}
	case v1alpha1.ProviderKVM:
		return checkLibvirt("kvm", e.KVM)
	case v1alpha1.ProviderKVM2:
		return checkLibvirt("kvm2", e.KVM2)
	}
	return nil
}

func checkLibvirt(block string, class *v1alpha1.LibvirtClass) error {
	insecure := class.InsecureIgnoreHostKey != nil && *class.InsecureIgnoreHostKey
	switch {
	case (class.SSHKeyFile == "") == (class.SSHSecretRef == nil):
		return fmt.Errorf("%s.sshKeyFile: exactly one of sshKeyFile and sshSecretRef is required", block)
	case class.SSHSecretRef == nil && class.KnownHostsFile == "" && !insecure:
		return fmt.Errorf("%s.knownHostsFile: required unless insecureIgnoreHostKey is true", block)
	case len(class.MachineTypes) == 0:
		return fmt.Errorf("%s.machineTypes: required", block)
	case len(class.Hosts) == 0:
		return fmt.Errorf("%s.hosts: required", block)
	}
	for i, host := range class.Hosts {
		switch {
		case host.Name == "":
			return fmt.Errorf("%s.hosts[%d].name: required", block, i)
		case host.Address == "":
			return fmt.Errorf("%s.hosts[%d].address: required", block, i)
		case host.User == "":
			return fmt.Errorf("%s.hosts[%d].user: required", block, i)
		}
	}
	return nil
}
