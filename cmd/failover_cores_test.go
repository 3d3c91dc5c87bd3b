package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/coretest"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const (
	// apiToken is what callers of the HTTP API show.
	apiToken = "a-token-for-tests-only"
	// takeoverLimit bounds the time until another core leads. The election's own times are most of it.
	takeoverLimit = time.Minute
)

// replica is a running core process.
type replica struct {
	*coretest.Core
	name string
}

// ended tells whether the process has ended.
func (r *replica) ended() bool {
	select {
	case <-r.Done():
		return true
	default:
		return false
	}
}

// replicas start core processes that elect a leader among them.
type replicas struct {
	t         *testing.T
	binary    string
	arguments []string
	all       []*replica
	// proxyPort is where the proxies answer that the cores probe.
	proxyPort int32
}

func newReplicas(t *testing.T, env *testenv.Env, namespace string) *replicas {
	t.Helper()
	ca := proxyzoo.NewCA(t, "failover")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	r := &replicas{
		t: t, binary: testenv.BuildOperator(t), proxyPort: startProxy(t, proxyzoo.Closed(proxyzoo.Tunnel, strings.TrimPrefix(origin.URL, "https://"))),
		arguments: []string{
			"core", "--kubeconfig=" + testenv.Kubeconfig(t, env.Core(t)), "--leader-election-namespace=" + namespace,
			"--watch-namespaces=" + namespace, "--default-namespace=" + namespace,
			"--metrics-bind-address=0", "--health-probe-bind-address=0",
			"--api-auth=token", "--api-token-file=" + write("token", apiToken),
			"--health-check-urls=" + origin.URL + "/ip", "--health-check-ca-file=" + write("ca.pem", ca.PEM()),
			"--allow-proxy-cidrs=127.0.0.0/8", "--allow-probe-target-cidrs=127.0.0.0/8",
		},
	}
	t.Cleanup(r.close)
	return r
}

// start starts a core and waits until it answers.
func (r *replicas) start() *replica {
	r.t.Helper()
	started, err := coretest.Start(r.binary, r.arguments, apiToken, crawlers)
	if err != nil {
		r.t.Fatal(err)
	}
	core := &replica{started, fmt.Sprint("core-", len(r.all))}
	r.all = append(r.all, core)
	r.await(core.name+" answers", takeoverLimit, core.Answers)
	return core
}

// awaitLeader waits until one of the cores leads.
func (r *replicas) awaitLeader(among ...*replica) *replica {
	r.t.Helper()
	var leader *replica
	r.await("a core leads", takeoverLimit, func(context.Context) bool {
		i := slices.IndexFunc(among, (*replica).Led)
		if i >= 0 {
			leader = among[i]
		}
		return i >= 0
	})
	return leader
}

// awaitEnd waits until a core has ended by itself.
func (r *replicas) awaitEnd(core *replica) error {
	r.t.Helper()
	select {
	case <-core.Done():
	case <-time.After(takeoverLimit):
		r.t.Fatalf("%s does not end", core.name)
	}
	return core.Wait()
}

// await waits until something is true.
func (r *replicas) await(what string, limit time.Duration, is func(ctx context.Context) bool) {
	r.t.Helper()
	if err := r.poll(limit, is); err != nil {
		r.t.Fatalf("in vain waited %s until %s: %v", limit, what, err)
	}
}

func (r *replicas) poll(limit time.Duration, is func(ctx context.Context) bool) error {
	return wait.PollUntilContextTimeout(r.t.Context(), pollPeriod/4, limit, true, func(ctx context.Context) (bool, error) { return is(ctx), nil })
}

// close kills what still runs, and leaves the logs of a failed test.
func (r *replicas) close() {
	for _, core := range r.all {
		core.Kill()
		if !r.t.Failed() {
			continue
		}
		if err := os.WriteFile(filepath.Join(r.t.ArtifactDir(), core.name+".log"), []byte(core.Output()), 0o600); err != nil {
			r.t.Log(err)
		}
	}
	if r.t.Failed() {
		r.t.Logf("the cores' logs are in %s (kept with go test -artifacts)", r.t.ArtifactDir())
	}
}
