// Package archtest holds the rules of who may import whom, so that the architecture can be read from the tree.
package archtest

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "crawl.example.com/egress-proxies-operator"

// layer says what the packages below a path may import of this module. The longest path that fits counts.
type layer struct {
	path    string
	imports []string
}

// layers is the import direction: apis <- providers (contract) <- providers/TYPE; apis <- leasing; all <- controllers <- cmd.
var layers = []layer{
	{"apis", []string{"apis"}},
	{"internal/version", nil},
	{"internal/tracing", []string{"internal/version"}},
	{"internal/statusapply", []string{"apis"}},
	{"internal/manager", []string{"apis", "internal/tracing", "internal/version"}},
	{"internal/testenv", []string{"apis", "internal/manager"}},
	{"internal/coretest", []string{"internal/testenv", "leasing/wire"}},
	{"internal/providersconfig", []string{"apis"}},
	{"internal", []string{"apis", "internal/version"}},
	{"providers", []string{"apis", "providers", "internal/tracing"}},
	{"providers/fake", []string{"apis", "providers"}},
	{"leasing", []string{"apis", "leasing", "internal/statusapply", "internal/tracing", "internal/version"}},
	{"leasing/wire", nil},
	{"leasing/client", []string{"leasing/wire"}},
	{"leasing/client/kube", []string{"apis", "leasing/client", "leasing/record", "leasing/wire"}},
	{"controllers", []string{"apis", "providers", "leasing", "controllers", "internal/objpatch", "internal/statusapply", "internal/tracing", "internal/version"}},
	{"cmd", []string{""}},
	{"bench", []string{""}},
	{"charts", nil},
	{"e2e", []string{"apis"}},
	{"e2e/crawler", []string{"leasing/client", "leasing/client/kube"}},
	{"hack", nil},
}

// providerTypes are the packages that only cmd may import from outside of themselves.
var providerTypes = []string{"providers/kubernetes", "providers/gcp", "providers/kvm", "providers/kvm2", "providers/fake"}

type goPackage struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	Dir          string
}

func packages(t *testing.T) []goPackage {
	t.Helper()
	command := exec.Command("go", "list", "-json=ImportPath,Imports,TestImports,XTestImports,GoFiles,Dir", module+"/...")
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

func relative(importPath string) (string, bool) {
	if importPath == module {
		return "", true
	}
	rest, ok := strings.CutPrefix(importPath, module+"/")
	return rest, ok
}

func below(path, dir string) bool {
	return dir == "" || path == dir || strings.HasPrefix(path, dir+"/")
}

func layerOf(path string) (layer, bool) {
	best, found := layer{}, false
	for _, l := range layers {
		if below(path, l.path) && (!found || len(l.path) > len(best.path)) {
			best, found = l, true
		}
	}
	return best, found
}

// TestImportsPointOneWay: every package imports only what its layer may.
func TestImportsPointOneWay(t *testing.T) {
	for _, p := range packages(t) {
		path, _ := relative(p.ImportPath)
		l, ok := layerOf(path)
		if !ok {
			t.Errorf("%s belongs to no layer: add it to the table and to docs/architecture.md", path)
			continue
		}
		for _, imported := range p.Imports {
			target, ours := relative(imported)
			if !ours || below(target, path) {
				continue
			}
			if !slices.ContainsFunc(l.imports, func(dir string) bool { return below(target, dir) }) {
				t.Errorf("%s must not import %s", path, target)
			}
			for _, provider := range providerTypes {
				if below(target, provider) && !below(path, provider) && !below(path, "cmd") {
					t.Errorf("%s must not import the provider %s: only cmd knows them", path, target)
				}
			}
		}
	}
}

// TestOnlyStatusapplyWritesStatus: a status is written by server-side apply of the writer's slice, in one package.
func TestOnlyStatusapplyWritesStatus(t *testing.T) {
	write := regexp.MustCompile(`Status\(\)\.(Update|Patch|Apply|Create)\(`)
	for _, p := range packages(t) {
		path, _ := relative(p.ImportPath)
		if path == "internal/statusapply" {
			continue
		}
		for _, name := range p.GoFiles {
			data, err := os.ReadFile(filepath.Join(p.Dir, name))
			if err != nil {
				t.Fatal(err)
			}
			if match := write.Find(data); match != nil {
				t.Errorf("%s/%s calls %s: use internal/statusapply", path, name, match)
			}
		}
	}
}

// TestComputeClientStaysInItsProvider: importing it costs minutes of compile time. Only cmd has it through the provider; tests
// of other packages must not draw it in either.
func TestComputeClientStaysInItsProvider(t *testing.T) {
	for _, p := range packages(t) {
		path, _ := relative(p.ImportPath)
		for _, imported := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			target, _ := relative(imported)
			switch {
			case path == "providers/gcp":
			case strings.HasPrefix(imported, "cloud.google.com/go/compute/"),
				target == "providers/gcp" && path != "cmd",
				strings.HasPrefix(imported, "cloud.google.com/") && !below(path, "providers/gcp"):
				t.Errorf("%s imports %s", path, imported)
			}
		}
	}
}

// TestClientIsLight: a crawler that uses the Go client links the standard library and nothing else.
func TestClientIsLight(t *testing.T) {
	light := []string{"leasing/wire", "leasing/client"}
	for _, p := range packages(t) {
		path, _ := relative(p.ImportPath)
		if !slices.Contains(light, path) {
			continue
		}
		for _, imported := range p.Imports {
			target, ours := relative(imported)
			if host, _, _ := strings.Cut(imported, "/"); ours && !slices.Contains(light, target) || !ours && strings.Contains(host, ".") {
				t.Errorf("%s imports %s", path, imported)
			}
		}
	}
}
