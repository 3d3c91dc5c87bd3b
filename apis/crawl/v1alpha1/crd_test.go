package v1alpha1_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

// unitAndDefault is what the description of every number says.
var unitAndDefault = regexp.MustCompile(`(?s)Unit: .+Default: .+`)

// TestSchemaWalk: every field of every CRD is described, numbers name unit and default, strings and lists are bounded, and
// no status has an enum or a required child (an older CRD must not refuse the status of a newer binary).
func TestSchemaWalk(t *testing.T) {
	for _, crd := range loadCRDs(t) {
		t.Run(crd.Spec.Names.Kind, func(t *testing.T) {
			for _, version := range crd.Spec.Versions {
				root := version.Schema.OpenAPIV3Schema
				for _, problem := range walk(crd.Spec.Names.Kind, *root, false) {
					t.Error(problem)
				}
				if version.Subresources == nil || version.Subresources.Status == nil {
					t.Error("no status subresource")
				}
			}
		})
	}
}

// TestSchemaWalkFindsProblems proves that the walk can fail.
func TestSchemaWalkFindsProblems(t *testing.T) {
	schema := apiextensionsv1.JSONSchemaProps{Type: "object", Description: "x", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"nameless": {Type: "string", MaxLength: new(int64)},
		"number":   {Type: "integer", Description: "a number of things"},
		"text":     {Type: "string", Description: "unbounded"},
		"list":     {Type: "array", Description: "unbounded", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: new(int64)}}},
	}}
	if got := len(walk("Kind", schema, false)); got != 4 {
		t.Errorf("walk found %d problems, want 4: %v", got, walk("Kind", schema, false))
	}
}

func walk(path string, schema apiextensionsv1.JSONSchemaProps, inStatus bool) []string {
	var problems []string
	complain := func(text string) { problems = append(problems, path+": "+text) }
	if schema.Description == "" {
		complain("no description")
	}
	isNumber := schema.Type == "integer" || schema.Type == "number" || schema.XIntOrString
	if isNumber && !foreign(path) && !unitAndDefault.MatchString(schema.Description) {
		complain("a number without unit and default in its description")
	}
	if schema.Type == "string" && !foreign(path) && schema.MaxLength == nil && schema.Enum == nil && schema.Format == "" {
		complain("a string without maxLength")
	}
	if schema.Type == "array" && !foreign(path) && schema.MaxItems == nil {
		complain("a list without maxItems")
	}
	if inStatus && !foreign(path) && len(schema.Enum) > 0 {
		complain("an enum within status")
	}
	for name, child := range schema.Properties {
		childPath := path + "." + name
		if strings.Count(childPath, ".") == 1 && (name == "apiVersion" || name == "kind" || name == "metadata") {
			continue
		}
		problems = append(problems, walk(childPath, child, inStatus || childPath == root(path)+".status")...)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		items := *schema.Items.Schema
		if items.Description == "" {
			items.Description = schema.Description
		}
		problems = append(problems, walk(path+"[]", items, inStatus)...)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		values := *schema.AdditionalProperties.Schema
		if values.Description == "" {
			values.Description = schema.Description
		}
		problems = append(problems, walk(path+"{}", values, inStatus)...)
	}
	return problems
}

func root(path string) string {
	kind, _, _ := strings.Cut(path, ".")
	return kind
}

// foreign paths are inside types of Kubernetes itself, whose markers are not ours to set: conditions, label selectors,
// resource requirements and quantities, and label maps, whose values the API machinery bounds.
var foreignPath = regexp.MustCompile(`\.(conditions\[\]|selector|resources)\.|\.(labels|annotations)\{\}|\.memory$`)

func foreign(path string) bool { return foreignPath.MatchString(path) }

func loadCRDs(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	dir, err := testenv.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "config", "crd", "bases", "*.yaml"))
	if err != nil || len(files) != 4 {
		t.Fatalf("found CRDs %v (%v), want 4", files, err)
	}
	crds := make([]apiextensionsv1.CustomResourceDefinition, len(files))
	for i, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.UnmarshalStrict(data, &crds[i]); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	return crds
}
