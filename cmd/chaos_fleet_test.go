package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// role is which manager a process is: the arguments that start it.
type role string

const (
	roleCore     role = "core"
	roleProvider role = "provider kubernetes"
)

const (
	// restartDelay is how long after its end a manager is started again that nobody killed.
	restartDelay = 500 * time.Millisecond
	// startLimit is how long before and after an outage of the API server a manager may still be starting.
	startLimit = 10 * time.Second
	// addressInUse is in the log of a manager that ended because somebody else took its port.
	addressInUse = "address already in use"
)

// managerProcess is a running process of a role.
type managerProcess struct {
	*testenv.Process
	role    role
	started time.Time
	// killed tells that its end was asked for.
	killed bool
	// metrics is host:port; "" where none are served.
	metrics string
}

// fleet runs one manager of each role. One that ends by itself is started again, as a kubelet does.
type fleet struct {
	t         *testing.T
	binary    string
	arguments map[role][]string

	mu      sync.Mutex
	closed  bool
	current map[role]*managerProcess
	all     []*managerProcess
	kills   map[string]int
	// ended are managers that ended by themselves.
	ended []end
	// from and to are the outage of the API server.
	from, to time.Time
	broken   []string
}

// end is that of a manager that nobody killed.
type end struct {
	*managerProcess
	time time.Time
}

func newFleet(t *testing.T, env *testenv.Env, namespace string, w *world) *fleet {
	t.Helper()
	common := []string{
		"--kubeconfig=" + testenv.Kubeconfig(t, env.Config), "--leader-elect=false", "--leader-election-namespace=" + namespace,
		"--watch-namespaces=" + namespace, "--health-probe-bind-address=0",
	}
	f := &fleet{
		t: t, binary: testenv.BuildOperator(t), current: map[role]*managerProcess{}, kills: map[string]int{},
		arguments: map[role][]string{
			roleCore:     slices.Concat([]string{"core", "--api-bind-address=0"}, common, w.coreArguments),
			roleProvider: slices.Concat([]string{"provider", "kubernetes"}, common),
		},
	}
	t.Cleanup(f.close)
	f.succeed(roleCore)
	f.succeed(roleProvider)
	return f
}

// close kills what still runs, and leaves the logs of a failed test.
func (f *fleet) close() {
	f.mu.Lock()
	f.closed = true
	all := f.all
	f.mu.Unlock()
	for _, m := range all {
		m.Signal(syscall.SIGKILL)
		<-m.Done()
	}
	if !f.t.Failed() {
		return
	}
	for i, m := range all {
		name := fmt.Sprintf("%02d-%s.log", i, strings.Fields(string(m.role))[0])
		if err := os.WriteFile(filepath.Join(f.t.ArtifactDir(), name), []byte(m.Output()), 0o600); err != nil {
			f.t.Log(err)
		}
	}
	f.t.Logf("the managers' logs are in %s (kept with go test -artifacts)", f.t.ArtifactDir())
}

func (f *fleet) manager(r role) *managerProcess {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.current[r]
}

// succeed starts a manager that takes the place of the role's current one; whether that still runs is its own matter.
func (f *fleet) succeed(r role) *managerProcess { return f.serve(r, "") }

// serve is succeed with metrics at an address.
func (f *fleet) serve(r role, metrics string) *managerProcess {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.start(r, metrics)
	if err != nil {
		f.t.Fatal(err)
	}
	return m
}

func (f *fleet) start(r role, metrics string) (*managerProcess, error) {
	m := &managerProcess{role: r, started: time.Now(), metrics: metrics}
	var err error
	m.Process, err = testenv.StartProcess(f.binary, append(slices.Clone(f.arguments[r]), "--metrics-bind-address="+cmp.Or(metrics, "0")), nil)
	if err != nil {
		return nil, err
	}
	f.current[r] = m
	f.all = append(f.all, m)
	go f.revive(m)
	return m, nil
}

// revive starts a manager again that has ended by itself.
func (f *fleet) revive(m *managerProcess) {
	<-m.Done()
	over := end{m, time.Now()}
	<-time.After(restartDelay)
	f.mu.Lock()
	defer f.mu.Unlock()
	if m.killed || f.closed {
		return
	}
	f.ended = append(f.ended, over)
	if f.current[m.role] != m || m.metrics != "" {
		return
	}
	if _, err := f.start(m.role, ""); err != nil {
		f.broken = append(f.broken, err.Error())
	}
}

// kill kills a manager. What it has sent by then the API server does nevertheless.
func (f *fleet) kill(m *managerProcess, how manner) {
	f.mu.Lock()
	m.killed = true
	f.kills[kindOfKill(m.role, how)]++
	f.mu.Unlock()
	m.Signal(syscall.SIGKILL)
	<-m.Done()
}

func (f *fleet) stop(m *managerProcess) { m.Signal(syscall.SIGSTOP) }

func (f *fleet) proceed(m *managerProcess) { m.Signal(syscall.SIGCONT) }

// together is how often two managers of a role were at work at once.
func (f *fleet) together(r role) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.kills[kindOfKill(r, overlap)] + f.kills[kindOfKill(r, pause)]
}

func kindOfKill(r role, how manner) string { return fmt.Sprintf("%s %s", r, how) }

// outage notes when the API server was away.
func (f *fleet) outage(restart func()) {
	f.mu.Lock()
	f.from = time.Now()
	f.mu.Unlock()
	restart()
	f.mu.Lock()
	f.to = time.Now()
	f.mu.Unlock()
}

// summary counts kills and ends.
func (f *fleet) summary() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	total, parts := 0, []string(nil)
	for _, kind := range slices.Sorted(maps.Keys(f.kills)) {
		total += f.kills[kind]
		parts = append(parts, fmt.Sprintf("%s %d", kind, f.kills[kind]))
	}
	return fmt.Sprintf("%d kills (%s), %d ended without the API server (away for %s)", total, strings.Join(parts, ", "), len(f.ended), f.to.Sub(f.from).Round(time.Second))
}

// findings are managers that ended by themselves although there was an API server. One that starts without it gives up,
// and its kubelet tries again; one that runs goes on.
func (f *fleet) findings() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := slices.Clone(f.broken)
	for _, e := range f.ended {
		if e.started.After(f.from.Add(-startLimit)) && e.started.Before(f.to.Add(startLimit)) && e.time.After(f.from) {
			continue
		}
		if strings.Contains(e.Output(), addressInUse) {
			continue
		}
		out = append(out, fmt.Sprintf("%s ended by itself after %s: %v\n%s", e.role, e.time.Sub(e.started).Round(time.Millisecond), e.Wait(), e.Tail()))
	}
	return out
}

// replaceWithMetrics kills the managers of both roles and starts such that serve metrics.
func (f *fleet) replaceWithMetrics() {
	f.t.Helper()
	for _, r := range []role{roleProvider, roleCore} {
		f.kill(f.manager(r), plain)
	}
	for _, r := range []role{roleProvider, roleCore} {
		f.startWithMetrics(r)
	}
}

// startWithMetrics tries again when somebody else took the port meanwhile.
func (f *fleet) startWithMetrics(r role) {
	f.t.Helper()
	var m *managerProcess
	err := wait.PollUntilContextTimeout(f.t.Context(), pollPeriod, settleLimit, true, func(context.Context) (bool, error) {
		if m != nil {
			select {
			case <-m.Done():
				if !strings.Contains(m.Output(), addressInUse) {
					return false, fmt.Errorf("ended: %w\n%s", m.Wait(), m.Tail())
				}
			default:
				_, err := readMetrics(f.t.Context(), m.metrics)
				return err == nil, nil
			}
		}
		address, err := testenv.FreeAddress()
		if err != nil {
			return false, err
		}
		m = f.serve(r, address)
		return false, nil
	})
	if err != nil {
		f.t.Fatalf("%s serves no metrics: %v", r, err)
	}
}

// metric is the sum of a metric of a role's manager over all series that have these labels.
func (f *fleet) metric(r role, name, labels string) (float64, error) {
	series, err := readMetrics(f.t.Context(), f.manager(r).metrics)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for _, s := range series {
		if s.name == name && strings.Contains(s.labels, labels) {
			sum += s.value
		}
	}
	return sum, nil
}

type sample struct {
	name, labels string
	value        float64
}

var sampleLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? (\S+)$`)

func readMetrics(ctx context.Context, address string) ([]sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	var out []sample
	scanner := bufio.NewScanner(response.Body)
	for scanner.Scan() {
		parts := sampleLine.FindStringSubmatch(scanner.Text())
		if parts == nil {
			continue
		}
		value, err := strconv.ParseFloat(parts[3], 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: %w", err)
		}
		out = append(out, sample{parts[1], parts[2], value})
	}
	return out, scanner.Err()
}
