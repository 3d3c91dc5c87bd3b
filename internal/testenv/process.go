package testenv

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// BuildOperator builds the operator's binary, without the race detector, and returns its path.
func BuildOperator(t testing.TB) string {
	t.Helper()
	root, err := RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "egress-proxies-operator")
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "./cmd")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, out)
	}
	return binary
}

// Kubeconfig writes a kubeconfig file for a configuration and returns its path. change, if given, may alter it before.
func Kubeconfig(t testing.TB, config *rest.Config, change ...func(*clientcmdapi.AuthInfo)) string {
	t.Helper()
	user := &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	for _, f := range change {
		f(user)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"x": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"x": user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "x", AuthInfo: "x"}},
		CurrentContext: "x",
	}, file); err != nil {
		t.Fatalf("write a kubeconfig: %v", err)
	}
	return file
}

// FreeAddress is an address on loopback that nothing listened on a moment ago. Its port is not one of those that systems give
// to who asks for any: until a process that is started with it listens, others that run beside would be given it.
func FreeAddress() (string, error) {
	const first, ports, attempts = 20_000, 12_000, 100
	for range attempts {
		listener, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", first+rand.IntN(ports)))
		if err == nil {
			return listener.Addr().String(), listener.Close()
		}
	}
	return "", fmt.Errorf("none of %d ports from %d on is free", attempts, first)
}

// Process is a program that runs beside the test.
type Process struct {
	command *exec.Cmd
	output  lockedBuffer
	done    chan struct{}
	err     error
}

// StartProcess runs a program with these environment variables and no others. Nothing ends it but itself and Signal.
func StartProcess(path string, args, environment []string) (*Process, error) {
	p := &Process{command: exec.Command(path, args...), done: make(chan struct{})}
	p.command.Env = append([]string{"HOME=" + os.TempDir()}, environment...)
	p.command.Stdout, p.command.Stderr = &p.output, &p.output
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(path), err)
	}
	go func() {
		defer close(p.done)
		p.err = p.command.Wait()
	}()
	return p, nil
}

// Signal sends a signal; one that comes too late is no error.
func (p *Process) Signal(signal syscall.Signal) { _ = p.command.Process.Signal(signal) }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits for the end and says how the process ended.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Output is what the process has written so far.
func (p *Process) Output() string { return p.output.String() }

// Tail is the end of what the process has written.
func (p *Process) Tail() string {
	const size = 4000
	text := p.Output()
	return text[max(0, len(text)-size):]
}

// lockedBuffer takes a process's output while it is read.
type lockedBuffer struct {
	mu     sync.Mutex
	buffer bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buffer.String()
}
