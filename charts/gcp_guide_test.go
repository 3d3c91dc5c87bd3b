package charts_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// walk is docs/gcp-provider.md as a person walks it: its commands in their order, and the files that it shows.
type walk struct {
	t       *testing.T
	env     *testenv.Env
	dir     string // where the commands run: like the folder of the repository
	command []string
	files   map[string]string // by the first line of each
	// gcloud and helm are the commands of those programs, with variables filled in.
	gcloud, helm [][]string
}

// projectNumber is what gcloud is made to say of the project, as in the guide's own text.
const projectNumber = "123456789012"

// before stands before the commands: gcloud and helm write down what they are asked.
const before = `set -euo pipefail
record() { printf '%s\0' "$@" >> "$OUT/$1"; printf '\n' >> "$OUT/$1"; }
gcloud() {
	record gcloud "$@"
	case "$*" in
	"projects describe"*) echo ` + projectNumber + ` ;;
	*create-cred-config*) echo '{}' > credentials.json ;;
	esac
}
helm() { record helm "$@"; }
`

// newWalk reads the guide.
func newWalk(t *testing.T, env *testenv.Env) *walk {
	t.Helper()
	guide, err := os.ReadFile(filepath.Join(root(t), "docs", "gcp-provider.md"))
	must(t, err)
	w := &walk{t: t, env: env, dir: t.TempDir(), files: map[string]string{}}
	for _, block := range fence.FindAllStringSubmatch(string(guide), -1) {
		first, _, _ := strings.Cut(block[2], "\n")
		if block[1] == "sh" {
			w.command = append(w.command, block[2])
		} else {
			w.files[strings.TrimPrefix(first, "# ")] = block[2]
		}
	}
	likeTheRepository(t, w.dir)
	w.write("values-gcp.yaml", "values-gcp.yaml with federation")
	w.write("role.yaml", "role.yaml")
	w.write("my-gcp/kustomization.yaml", "my-gcp/kustomization.yaml")
	return w
}

func (w *walk) write(path, block string) {
	w.t.Helper()
	if w.files[block] == "" {
		w.t.Fatalf("the guide has no file %q, but %v", block, slices.Sorted(maps.Keys(w.files)))
	}
	must(w.t, os.MkdirAll(filepath.Dir(filepath.Join(w.dir, path)), 0o700))
	must(w.t, os.WriteFile(filepath.Join(w.dir, path), []byte(w.files[block]), 0o600))
}

// parts are the commands up to the first one of taking it all away, those behind it, and those of the reference.
func (w *walk) parts() (way, back []string) {
	w.t.Helper()
	i := slices.IndexFunc(w.command, func(s string) bool { return strings.HasPrefix(s, "kubectl delete") })
	if i < 0 {
		w.t.Fatal("the guide takes nothing away")
	}
	return w.command[:i], append([]string{w.command[0]}, w.command[i:]...)
}

// run runs commands in one shell.
func (w *walk) run(commands []string) {
	w.t.Helper()
	out := w.t.TempDir()
	carryOut(w.t, w.env, w.dir, before+strings.Join(commands, "\n"), "OUT="+out)
	for name, into := range map[string]*[][]string{"gcloud": &w.gcloud, "helm": &w.helm} {
		text, err := os.ReadFile(filepath.Join(out, name))
		must(w.t, err)
		for line := range strings.SplitSeq(strings.TrimSuffix(string(text), "\x00\n"), "\x00\n") {
			*into = append(*into, strings.Split(line, "\x00"))
		}
	}
}

// part is a part of the test.
func (w *walk) part(name string, f func(t *testing.T)) {
	w.t.Run(name, func(t *testing.T) {
		whole := w.t
		w.t = t
		defer func() { w.t = whole }()
		f(t)
	})
}

// one is the only gcloud command with these words.
func (w *walk) one(words ...string) []string {
	w.t.Helper()
	var found [][]string
	for _, c := range w.gcloud {
		if !slices.ContainsFunc(words, func(word string) bool { return !slices.Contains(c, word) }) {
			found = append(found, c)
		}
	}
	if len(found) != 1 {
		w.t.Fatalf("%d gcloud commands with %v", len(found), words)
	}
	return found[0]
}

// flag is a flag of a command.
func (w *walk) flag(command []string, name string) string {
	w.t.Helper()
	for _, word := range command {
		if value, ok := strings.CutPrefix(word, "--"+name+"="); ok {
			return value
		}
	}
	w.t.Fatalf("no --%s in %v", name, command)
	return ""
}

// everythingGoes: for what gcloud makes there is a command that takes it away.
func (w *walk) everythingGoes() {
	w.t.Helper()
	gone := map[string]bool{}
	for _, c := range w.gcloud {
		if i := slices.Index(c, "delete"); i > 0 {
			name, _, _ := strings.Cut(c[i+1], "@")
			gone[strings.Join(append(slices.Clone(c[1:i]), name), " ")] = true
		}
	}
	// What is inside of something else goes with it, and the role is one that is made instead of another.
	within := []string{"iam workload-identity-pools providers cluster", "iam roles egressProxies"}
	for _, c := range w.gcloud {
		i := slices.IndexFunc(c, func(word string) bool { return strings.HasPrefix(word, "create") && word != "create-cred-config" })
		if i < 0 {
			continue
		}
		if made := strings.Join(append(slices.Clone(c[1:i]), c[i+1]), " "); !gone[made] && !slices.Contains(within, made) {
			w.t.Errorf("%s is left", made)
		}
	}
	added, removed := w.one("projects", "add-iam-policy-binding"), w.one("projects", "remove-iam-policy-binding")
	if !slices.Equal(added[3:], removed[3:]) {
		w.t.Errorf("%v is not what was added: %v", removed, added)
	}
}

// lint lets gcloud itself read the commands, where it is installed.
func (w *walk) lint() {
	w.t.Helper()
	type verdict struct {
		Success bool   `json:"success"`
		Message string `json:"error_message"`
		Command string `json:"command_string"`
	}
	all := make([]verdict, len(w.gcloud))
	for i, c := range w.gcloud {
		for j, word := range c {
			c[j] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
		all[i].Command = "gcloud " + strings.Join(c[1:], " ")
	}
	list, err := json.Marshal(all)
	must(w.t, err)
	file := filepath.Join(w.t.TempDir(), "commands.json")
	must(w.t, os.WriteFile(file, list, 0o600))
	var verdicts []verdict
	must(w.t, json.Unmarshal([]byte(computetest.GcloudOffline(w.t, "meta", "lint-gcloud-commands", "--commands-file="+file)), &verdicts))
	if len(verdicts) != len(all) {
		w.t.Errorf("%d of %d commands were read", len(verdicts), len(all))
	}
	for _, v := range verdicts {
		if !v.Success {
			w.t.Errorf("%s: %s", v.Command, v.Message)
		}
	}
	w.t.Logf("gcloud has read %d commands", len(verdicts))
}

// federation checks that what gcloud and kubectl make for a federation is where the manager of these values looks for it.
func (w *walk) federation(pod *corev1.PodSpec) {
	w.t.Helper()
	made := w.one("create-cred-config")
	container := pod.Containers[0]
	place := map[string]string{}
	for _, m := range container.VolumeMounts {
		place[m.Name] = m.MountPath
	}
	i := slices.IndexFunc(container.Env, func(e corev1.EnvVar) bool { return e.Name == "GOOGLE_APPLICATION_CREDENTIALS" })
	if i < 0 || len(pod.Volumes) != 2 || len(place) != 2 {
		w.t.Fatalf("environment %+v, volumes %+v, mounts %v", container.Env, pod.Volumes, place)
	}
	for _, v := range pod.Volumes {
		switch {
		case v.ConfigMap != nil:
			configs := &corev1.ConfigMapList{}
			must(w.t, w.env.Client.List(w.t.Context(), configs, client.InNamespace(namespace)))
			at := slices.IndexFunc(configs.Items, func(c corev1.ConfigMap) bool { return c.Name == v.ConfigMap.Name })
			if at < 0 || configs.Items[at].Data[filepath.Base(container.Env[i].Value)] == "" || filepath.Dir(container.Env[i].Value) != place[v.Name] {
				w.t.Errorf("%s is not in the ConfigMap %s at %s", container.Env[i].Value, v.ConfigMap.Name, place[v.Name])
			}
		case v.Projected != nil:
			token := v.Projected.Sources[0].ServiceAccountToken
			if file := filepath.Join(place[v.Name], token.Path); w.flag(made, "credential-source-file") != file {
				w.t.Errorf("the token is at %s, and not where %v says", file, made)
			}
			if want := "https://iam.googleapis.com/" + made[4]; token.Audience != want {
				w.t.Errorf("the token is for %s, want %s", token.Audience, want)
			}
		}
	}
}

// managerOf are the objects that a helm command of the guide makes.
func (w *walk) managerOf(command []string) []*unstructured.Unstructured {
	w.t.Helper()
	return rendered(w.t, w.dir, command[1:])
}
