package charts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// What the walks through the providers' guides have in common.

// fence finds blocks of code: their language, and what is in them.
var fence = regexp.MustCompile("(?ms)^```(sh|yaml)\n(.*?)^```$")

// realKubectl is a real kubectl, but that what waits for managers and machines, which are not there, does nothing.
const realKubectl = `kubectl() {
	case $1 in
	wait | rollout) ;;
	*) "$KUBECTL" "$@" ;;
	esac
}
`

// likeTheRepository gives a folder what commands read of the repository.
func likeTheRepository(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"config", "charts"} {
		must(t, os.CopyFS(filepath.Join(dir, name), os.DirFS(filepath.Join(root(t), name))))
	}
}

// carryOut runs commands in one shell, in a folder, with a real kubectl.
func carryOut(t *testing.T, env *testenv.Env, dir, commands string, variables ...string) {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "-c", realKubectl+commands)
	shell.Dir = dir
	shell.Env = slices.Concat(os.Environ(), []string{"KUBECTL=" + component(t, "kubectl"), "KUBECONFIG=" + testenv.Kubeconfig(t, env.Config)}, variables)
	if text, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}

// rendered are the objects that an upgrade with helm makes.
func rendered(t *testing.T, dir string, upgrade []string) []*unstructured.Unstructured {
	t.Helper()
	args := slices.DeleteFunc(slices.Clone(upgrade), func(word string) bool { return word == "--reuse-values" })
	if args[0] != "upgrade" || args[1] != release {
		t.Fatalf("helm does %v", args)
	}
	args[0] = "template"
	helm := exec.CommandContext(t.Context(), component(t, "helm"), args...)
	helm.Dir = dir
	text, err := helm.Output()
	must(t, err)
	return objects(t, string(text))
}
