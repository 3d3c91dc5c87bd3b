//go:build bench

package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// stopTimeout bounds the orderly end of the managers.
const stopTimeout = 40 * time.Second

// process is the process of the managers as the benchmark sees it.
type process struct {
	t       *testing.T
	address string
	stop    func()
	// ended is closed when the process has ended.
	ended chan struct{}
}

// startProcess starts the process; its managers start when they are told. It ends with the test, if not before.
func startProcess(t *testing.T, config managersConfig) *process {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatalf("find the test binary: %v", err)
	}
	command := exec.Command(binary)
	command.Env = append(os.Environ(), managersVariable+"="+string(text))
	log := &bytes.Buffer{}
	command.Stderr = log
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatalf("start the managers: %v", err)
	}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	p := &process{t: t, address: strings.TrimSpace(line), ended: make(chan struct{})}
	var waitErr error
	go func() {
		defer close(p.ended)
		waitErr = command.Wait()
	}()
	p.stop = sync.OnceFunc(func() {
		_ = stdin.Close()
		kill := time.AfterFunc(stopTimeout, func() { _ = command.Process.Kill() })
		defer kill.Stop()
		<-p.ended
		if waitErr != nil {
			t.Errorf("the managers ended with %v; the end of their log:\n%s", waitErr, tail(log.String()))
		} else if t.Failed() && log.Len() > 0 {
			t.Logf("the end of the managers' log:\n%s", tail(log.String()))
		}
	})
	t.Cleanup(p.stop)
	if readErr != nil {
		t.Fatalf("read the managers' address: %v", readErr)
	}
	return p
}

// tail is the end of a text.
func tail(text string) string { return text[max(0, len(text)-8000):] }

// call sends a request to the process and decodes the answer, where one is wanted.
func (p *process) call(method, path string, body, answer any) {
	p.t.Helper()
	if err := p.try(method, path, body, answer); err != nil {
		p.t.Fatalf("%s %s of the managers: %v", method, path, err)
	}
}

func (p *process) try(method, path string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(p.t.Context(), method, "http://"+p.address+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		return errors.Join(errors.New(response.Status), errors.New(string(text)))
	}
	if answer == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(answer)
}

// begin starts the managers.
func (p *process) begin() {
	p.t.Helper()
	p.call(http.MethodPost, "/start", nil, nil)
}

// usage of the process; collect has its garbage collected before.
func (p *process) usage(collect bool) usage {
	p.t.Helper()
	path := "/usage"
	if collect {
		path += "?collect=1"
	}
	var u usage
	p.call(http.MethodGet, path, nil, &u)
	return u
}

// plant puts instances into the fake.
func (p *process) plant(all []planted) {
	p.t.Helper()
	p.call(http.MethodPost, "/plant", all, nil)
}

// profile writes a CPU profile of what happens until the returned function is called.
func (p *process) profile(file string) func() {
	p.t.Helper()
	p.call(http.MethodPost, "/profile?file="+url.QueryEscape(file), nil, nil)
	return func() { p.call(http.MethodDelete, "/profile", nil, nil) }
}

// kubeconfig writes the configuration of a client to a file, for a process that finds its API server as main does.
func kubeconfig(t *testing.T, config *rest.Config) string {
	t.Helper()
	const name = "bench"
	out := clientcmdapi.NewConfig()
	out.Clusters[name] = &clientcmdapi.Cluster{Server: serverURL(config), CertificateAuthorityData: config.CAData}
	out.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	out.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	out.CurrentContext = name
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*out, file); err != nil {
		t.Fatalf("write kubeconfig: %v", err)
	}
	return file
}

// waitFor polls until done, with a limit that only a hanging run reaches. A process that ends meanwhile ends the test.
func (p *process) waitFor(limit time.Duration, what string, done func() bool) {
	t := p.t
	t.Helper()
	deadline := time.After(limit)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for %s", what)
		case <-p.ended:
			t.Fatalf("the managers ended while this was waited for: %s", what)
		case <-tick.C:
		}
	}
}
