package providertest

import (
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
)

func readDocument(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestContractSaysWhatChecksEachRule: each rule names a check that there is, or says that people look, and each check is
// named by a rule.
func TestContractSaysWhatChecksEachRule(t *testing.T) {
	rule := regexp.MustCompile(`(?m)^\| (MUST|SHOULD) \| (.*) \| ([^|]*) \|$`)
	name := regexp.MustCompile("`([A-Z]\\w*)`")
	named := map[string]bool{}
	rules := rule.FindAllStringSubmatch(readDocument(t, "provider-contract.md"), -1)
	if len(rules) < 50 {
		t.Fatalf("%d rules found: has the form of the tables changed?", len(rules))
	}
	for _, r := range rules {
		text, by := r[2], r[3]
		names := name.FindAllStringSubmatch(by, -1)
		if len(names) == 0 && !strings.Contains(by, "review") && !strings.Contains(by, "every check") {
			t.Errorf("nothing checks this rule: %s", text)
		}
		for _, n := range names {
			named[n[1]] = true
			if !slices.ContainsFunc(checks(), func(c check) bool { return c.name == n[1] }) {
				t.Errorf("there is no check %s, of the rule: %s", n[1], text)
			}
		}
	}
	for _, c := range checks() {
		if !named[c.name] {
			t.Errorf("no rule names the check %s", c.name)
		}
	}
}

// TestContractHasTheInterfaces: a provider can be written from the page.
func TestContractHasTheInterfaces(t *testing.T) {
	contract := readDocument(t, "provider-contract.md")
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	methods := 0
	for _, file := range files {
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			methodsOf, ok := spec.Type.(*ast.InterfaceType)
			// A wrapper is no part of a provider.
			if !ok || !spec.Name.IsExported() || spec.Name.Name == "Wrapper" {
				return false
			}
			for _, method := range methodsOf.Methods.List {
				var text strings.Builder
				text.WriteString(method.Names[0].Name)
				if err := printer.Fprint(&text, set, method.Type); err != nil {
					t.Fatal(err)
				}
				methods++
				if want := strings.Replace(text.String(), "func(", "(", 1); !strings.Contains(contract, "\t"+want+"\n") {
					t.Errorf("the contract lacks %s.%s", spec.Name.Name, want)
				}
			}
			return false
		})
	}
	if methods < 14 {
		t.Errorf("%d methods found", methods)
	}
	for _, value := range []any{
		providers.Runtime{}, providers.Owner{}, providers.Ref{}, providers.CreateRequest{}, providers.Receipt{}, providers.Instance{},
		providers.Timing{}, providers.Limits{}, providers.HostState{}, providers.Error{}, Harness{},
	} {
		kind := reflect.TypeOf(value)
		for field := range kind.Fields() {
			if !regexp.MustCompile(`\b` + field.Name + `\b`).MatchString(contract) {
				t.Errorf("the contract does not mention %s.%s", kind.Name(), field.Name)
			}
		}
	}
	for _, reason := range reasons {
		if !strings.Contains(contract, "| "+string(reason)+" |") {
			t.Errorf("the table of errors lacks %s", reason)
		}
	}
	for _, state := range states {
		if !strings.Contains(contract, "| `"+string(state)+"` |") {
			t.Errorf("the table of states lacks %s", state)
		}
	}
}

// TestExistingProvidersAnswerEveryQuestion: a question that is added is asked of the providers there are.
func TestExistingProvidersAnswerEveryQuestion(t *testing.T) {
	row := regexp.MustCompile(`(?m)^\| ([A-P]\d+) \|`)
	ids := func(text string) (all []string) {
		for _, match := range row.FindAllStringSubmatch(text, -1) {
			all = append(all, match[1])
		}
		return all
	}
	questions := ids(readDocument(t, "provider-spec-template.md"))
	if len(questions) < 50 {
		t.Fatalf("%d questions found: has the form of the tables changed?", len(questions))
	}
	sections := strings.Split(readDocument(t, "providers-existing.md"), "\n## ")[1:]
	if len(sections) == 0 {
		t.Fatal("no provider found")
	}
	for _, section := range sections {
		provider, text, _ := strings.Cut(section, "\n")
		if answers := ids(text); !slices.Equal(answers, questions) {
			t.Errorf("%s answers %q, asked are %q", provider, answers, questions)
		}
	}
}
