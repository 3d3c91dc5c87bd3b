package testenv

import (
	"strings"
	"syscall"
	"testing"
	"time"
)

// controllerManagerStop bounds the end of a kube-controller-manager that was asked to end.
const controllerManagerStop = 20 * time.Second

// ControllerManager runs a real kube-controller-manager until the end of the test, with the collection of garbage, the
// deletion of namespaces, and what else is named: they act with the rights of the accounts that they have in every cluster. It
// acts on all that the package's tests have made.
func (e *Env) ControllerManager(t testing.TB, more ...string) {
	t.Helper()
	root, err := RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := component(root, "kube-controller-manager")
	if err != nil {
		t.Fatal(err)
	}
	process, err := StartProcess(binary, []string{
		"--kubeconfig=" + Kubeconfig(t, e.AddUser(t, "system:kube-controller-manager")),
		"--controllers=" + strings.Join(append([]string{"garbage-collector-controller", "namespace-controller"}, more...), ","),
		"--use-service-account-credentials", "--leader-elect=false", "--secure-port=0",
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(controllerManagerStop, func() { process.Signal(syscall.SIGKILL) })
		defer timer.Stop()
		_ = process.Wait()
		if t.Failed() {
			t.Logf("kube-controller-manager: %s", process.Tail())
		}
	})
}
