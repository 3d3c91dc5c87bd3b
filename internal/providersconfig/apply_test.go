package providersconfig

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

const waitTimeout = 30 * time.Second

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
}

// mount is a directory as the kubelet mounts a ConfigMap: the file is a link into a directory that is swapped.
type mount struct {
	t       *testing.T
	dir     string
	version int
}

func (m *mount) file() string { return filepath.Join(m.dir, "providers.yaml") }

func (m *mount) write(content string) {
	m.t.Helper()
	m.version++
	data := filepath.Join(m.dir, "..v"+string(rune('0'+m.version)))
	link := filepath.Join(m.dir, "..data_tmp")
	for _, err := range []error{
		os.Mkdir(data, 0o755),
		os.WriteFile(filepath.Join(data, "providers.yaml"), []byte(content), 0o600),
		os.Symlink(data, link),
		os.Rename(link, filepath.Join(m.dir, "..data")),
	} {
		if err != nil {
			m.t.Fatal(err)
		}
	}
	if m.version == 1 {
		if err := os.Symlink(filepath.Join("..data", "providers.yaml"), m.file()); err != nil {
			m.t.Fatal(err)
		}
	}
}

func class(t *testing.T, env *testenv.Env, name string) *v1alpha1.ProviderClass {
	t.Helper()
	out := &v1alpha1.ProviderClass{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Name: name}, out); err != nil {
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return nil
	}
	return out
}

func TestApplierFollowsTheFile(t *testing.T) {
	env := testenv.New(t)
	m := &mount{t: t, dir: t.TempDir()}
	m.write("providers: [{name: pc-a, type: kubernetes}, {name: pc-b, type: gcp, gcp: {project: my-project}}]")
	clk := testingclock.NewFakeClock(time.Now())
	a, err := NewApplier(m.file(), env.Client, clk, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Start: %v", err)
		}
		for _, name := range []string{"pc-a", "pc-b", "pc-c"} {
			if err := env.Client.Delete(context.Background(), &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: name}}); client.IgnoreNotFound(err) != nil {
				t.Errorf("delete class: %v", err)
			}
		}
	})
	waitFor(t, "both classes", func() bool { return class(t, env, "pc-a") != nil && class(t, env, "pc-b") != nil })
	step := func(d time.Duration) {
		waitFor(t, "the applier to wait", clk.HasWaiters)
		clk.Step(d)
	}

	// Bad content keeps the last good state.
	m.write("providers: [{name: pc-a, type: kubernetes, image: x}]")
	step(PollInterval)
	waitFor(t, "the metric of a bad file", func() bool { return testutil.ToFloat64(a.valid) == 0 })

	// One entry is refused by the API server, since a type cannot change; the others are applied. One left the file and
	// its class stays.
	m.write("providers: [{name: pc-b, type: kubernetes}, {name: pc-c, type: kubernetes, egressScope: PerInstance}]")
	step(PollInterval)
	waitFor(t, "the new class", func() bool { return class(t, env, "pc-c") != nil })
	waitFor(t, "the metric of a good file", func() bool { return testutil.ToFloat64(a.valid) == 1 })
	waitFor(t, "the metric of a refusal", func() bool { return testutil.ToFloat64(a.applied.WithLabelValues("error")) >= 1 })
	if class(t, env, "pc-a") == nil || class(t, env, "pc-b").Spec.Type != v1alpha1.ProviderGCP {
		t.Error("a class was deleted or changed its type")
	}

	// What an entry no longer says is taken back; what others set stays.
	labelled := class(t, env, "pc-c")
	labelled.Labels = map[string]string{"own": "kept"}
	if err := env.Client.Update(t.Context(), labelled); err != nil {
		t.Fatal(err)
	}
	m.write("providers: [{name: pc-c, type: kubernetes}]")
	step(PollInterval)
	waitFor(t, "the field to go", func() bool { return class(t, env, "pc-c").Spec.EgressScope == "" })
	if got := class(t, env, "pc-c"); got.Labels["own"] != "kept" {
		t.Errorf("labels %v", got.Labels)
	}
}

func TestCheckNamesTheFieldAndChangesNothing(t *testing.T) {
	env := testenv.New(t)
	file := filepath.Join(t.TempDir(), "providers.yaml")
	for _, tt := range []struct{ content, want string }{
		{"providers: [{name: pc-ok, type: kubernetes}]", ""},
		{"providers: [{name: pc-ok, type: kubernetes}, {name: pc-x, type: gcp, gcp: {project: my-project, diskSizeGb: 0}}]", "providers[1] (pc-x): spec.gcp.diskSizeGb"},
		{"providers: [{name: pc-x, type: kubernetes, egressScope: Sometimes}]", "providers[0] (pc-x): spec.egressScope"},
		{"providers: [{name: pc-x, type: kubernetes, exposure: {allowedSourceRanges: [everywhere]}}]", "providers[0] (pc-x): spec.exposure.allowedSourceRanges"},
		{"providers: [{name: pc-x, type: kubernetes, allowedNamespaces: {from: Selector}}]", "providers[0] (pc-x): spec.allowedNamespaces.selector"},
	} {
		if err := os.WriteFile(file, []byte(tt.content), 0o600); err != nil {
			t.Fatal(err)
		}
		a, err := NewApplier(file, env.Client, testingclock.NewFakeClock(time.Now()), logr.Discard())
		if err != nil {
			t.Fatal(err)
		}
		err = a.Check(t.Context())
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.content, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n")):
			t.Errorf("%s: error %v, want one line with %q", tt.content, err, tt.want)
		}
	}
	if class(t, env, "pc-ok") != nil || class(t, env, "pc-x") != nil {
		t.Error("a check made a class")
	}
}
