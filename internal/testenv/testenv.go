// Package testenv gives tests a real kube-apiserver and etcd with the operator's CRDs.
//
// A test package that uses it has
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }
//
// The control plane is started by the first New and shared by the tests of the package, each in a namespace of its own.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/go-logr/logr"

	"crawl.example.com/egress-proxies-operator/internal/manager"
)

// startTimeout bounds the start of etcd and kube-apiserver on a busy machine.
const startTimeout = 2 * time.Minute

// restartTries is how often a stopped API server is started before the test fails.
const restartTries = 3

// Env is a running control plane.
type Env struct {
	// Config is that of a cluster administrator.
	Config *rest.Config
	// Client reads and writes without a cache.
	Client client.Client

	environment *envtest.Environment
	// certificates is the API server's folder. It is ours, so that it survives a restart.
	certificates string
}

// shared is the control plane of the test process: starting one costs seconds, so the tests of a package have it in common.
var shared struct {
	sync.Mutex
	running bool // Run is under way
	env     *Env
	err     error
}

// Run runs the tests of a package and stops the control plane, if one was started.
func Run(m *testing.M) int {
	log.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	shared.Lock()
	shared.running = true
	shared.Unlock()
	code := m.Run()
	if shared.env != nil {
		if err := shared.env.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop control plane:", err)
			return max(code, 1)
		}
	}
	return code
}

// New gives the shared control plane, starting it when needed. It skips the test under -short and fails it when the
// binaries are missing.
func New(t testing.TB) *Env {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a control plane, left out by -short")
	}
	shared.Lock()
	defer shared.Unlock()
	if !shared.running {
		t.Fatal("testenv.New without testenv.Run: add func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }")
	}
	if shared.env == nil && shared.err == nil {
		shared.env, shared.err = start()
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.env
}

// Namespace makes a namespace for the test.
func (e *Env) Namespace(t testing.TB) string {
	t.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	if err := e.Client.Create(context.Background(), namespace); err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	return namespace.Name
}

// AddUser gives a configuration for another user, to test what a role may do.
func (e *Env) AddUser(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()
	user, err := e.environment.AddUser(envtest.User{Name: name, Groups: groups}, e.Config)
	if err != nil {
		t.Fatalf("add user %s: %v", name, err)
	}
	return user.Config()
}

func start() (*Env, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return nil, err
	}
	environment := &envtest.Environment{
		Scheme:                   manager.Scheme(),
		CRDDirectoryPaths:        []string{filepath.Join(root, "config", "crd", "bases")},
		ErrorIfCRDPathMissing:    true,
		ControlPlaneStartTimeout: startTimeout,
		ControlPlaneStopTimeout:  startTimeout,
	}
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		if environment.ControlPlane.GetAPIServer().Path, err = component(root, "kube-apiserver"); err != nil {
			return nil, err
		}
		etcd, err := component(root, "etcd")
		if err != nil {
			return nil, err
		}
		environment.ControlPlane.Etcd = &envtest.Etcd{Path: etcd}
	}
	env := &Env{environment: environment}
	if env.certificates, err = os.MkdirTemp("", "testenv-"); err != nil {
		return nil, fmt.Errorf("make the API server's folder: %w", err)
	}
	server := environment.ControlPlane.GetAPIServer()
	server.CertDir = env.certificates
	// Without this a server that is asked to stop waits a minute for those who watch.
	server.Configure().Set("shutdown-send-retry-after", "true")
	// What it would call itself to pods. Otherwise it takes the address of its default route, and a test may run without one.
	server.Configure().Set("advertise-address", "203.0.113.1")
	config, err := environment.Start()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), env.stop())
	}
	// The client-side limit would be what a test of throughput measures.
	config.QPS, config.Burst = -1, -1
	env.Config = config
	if env.Client, err = client.New(config, client.Options{Scheme: environment.Scheme}); err != nil {
		return nil, errors.Join(fmt.Errorf("make client: %w", err), env.stop())
	}
	return env, nil
}

// stop ends the control plane and removes what it left.
func (e *Env) stop() error {
	return errors.Join(e.environment.Stop(), os.RemoveAll(e.certificates))
}

// RestartAPIServer stops the API server, calls meanwhile, and starts it again: the same address, certificates and data,
// since etcd goes on. Everything that is connected sees the server go. No other test of the package may run at that time.
func (e *Env) RestartAPIServer(t testing.TB, meanwhile func()) {
	t.Helper()
	server := e.environment.ControlPlane.APIServer
	if err := server.Stop(); err != nil {
		t.Fatalf("stop the API server: %v", err)
	}
	meanwhile()
	// A connection that happens to leave by the server's port keeps it from listening for a moment.
	for try := 1; ; try++ {
		err := server.Start()
		if err == nil {
			return
		}
		if try == restartTries {
			t.Fatalf("start the API server again: %v", err)
		}
	}
}

// component is the path of a pinned helper program that was built before.
func component(root, name string) (string, error) {
	command := exec.Command(filepath.Join(root, "hack", "component.sh"), "--find", name)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("find %s: %w (`make test` builds it; KUBEBUILDER_ASSETS may name a folder that has it)", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// RepositoryRoot is the folder of the go.mod above the test's working directory.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find repository root: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("find repository root: no go.mod above the working directory")
		}
		dir = parent
	}
}
