//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// readyTimeout is how long a Squid pod may take from nothing to Ready, on a busy machine.
	readyTimeout = 3 * time.Minute
	pollInterval = 500 * time.Millisecond
)

// say prints what was seen at a step, at once, so that a person can follow.
func say(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Logf(format, args...)
}

// kubectl runs kubectl as a user would and fails the test when it fails.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryKubectl(args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func tryKubectl(args ...string) (string, error) {
	out, err := exec.Command(kubectlProgram(), args...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func kubectlProgram() string {
	if program := os.Getenv("KUBECTL"); program != "" {
		return program
	}
	return "kubectl"
}

// apply applies a manifest as `kubectl apply -f -` does.
func apply(t *testing.T, manifest string) {
	t.Helper()
	command := exec.Command(kubectlProgram(), "apply", "-f", "-")
	command.Stdin = strings.NewReader(manifest)
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// eventually polls until check returns "", and fails with what it said last.
func eventually(ctx context.Context, t *testing.T, timeout time.Duration, what string, check func(ctx context.Context) string) {
	t.Helper()
	last := "not looked at yet"
	err := wait.PollUntilContextTimeout(ctx, pollInterval, timeout, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == "", nil
	})
	if err != nil {
		state, _ := tryKubectl("get", "px,pxp,pxl,pods", "-A", "-o", "wide")
		t.Fatalf("%s: not within %s: %s\n%s", what, timeout, last, state)
	}
}

// poolProxies are the members of the demo's pool.
func poolProxies(ctx context.Context) ([]v1alpha1.Proxy, error) {
	list := &v1alpha1.ProxyList{}
	err := cluster.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelPool: poolName})
	return list.Items, err
}

// usable says what keeps a proxy from being leased; "" for nothing.
func usable(px *v1alpha1.Proxy) string {
	for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionHealthy, v1alpha1.ConditionAccessRestricted} {
		if px.Spec.Mode == v1alpha1.ModeExternal && name == v1alpha1.ConditionAccessRestricted {
			continue
		}
		condition := meta.FindStatusCondition(px.Status.Conditions, name)
		if condition == nil || condition.Status != metav1.ConditionTrue {
			return fmt.Sprintf("%s: %s is %+v", px.Name, name, condition)
		}
	}
	return ""
}

// awaitPool waits until the pool has exactly n members and all can be leased.
func awaitPool(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	eventually(ctx, t, readyTimeout, fmt.Sprintf("%d Squid pods behind Ready proxies", n), func(ctx context.Context) string {
		members, err := poolProxies(ctx)
		if err != nil {
			return err.Error()
		}
		if len(members) != n {
			return fmt.Sprintf("the pool has %d proxies", len(members))
		}
		for i := range members {
			if why := usable(&members[i]); why != "" {
				return why
			}
		}
		return ""
	})
}

// podOf is the Squid pod of a proxy of the demo's namespace.
func podOf(ctx context.Context, t *testing.T, proxyName string) *corev1.Pod {
	t.Helper()
	return podOfIn(ctx, t, namespace, proxyName)
}

func podOfIn(ctx context.Context, t *testing.T, namespace, proxyName string) *corev1.Pod {
	t.Helper()
	px := &v1alpha1.Proxy{}
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: proxyName}, px); err != nil {
		t.Fatalf("get proxy: %v", err)
	}
	pod := &corev1.Pod{}
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: px.Status.Instance.Name}, pod); err != nil {
		t.Fatalf("get the pod of %s: %v", proxyName, err)
	}
	return pod
}

// api is the HTTP API as seen from outside of the cluster, through a port-forward.
type api struct {
	base, token string
}

var forwardedPort = regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+)`)

// openAPI forwards a free local port to the discovery service and reads the token that the chart made.
func openAPI(ctx context.Context, t *testing.T) *api {
	t.Helper()
	secret := &corev1.Secret{}
	if err := cluster.Get(ctx, client.ObjectKey{Namespace: operatorNamespace, Name: "discovery-token"}, secret); err != nil {
		t.Fatalf("read the token: %v", err)
	}
	return &api{base: forward(t, discoveryService, 8090), token: string(secret.Data["token"])}
}

// forward makes a port of the operator reachable until the test ends, and gives its URL.
func forward(t *testing.T, target string, port int) string {
	t.Helper()
	command := exec.Command(kubectlProgram(), "-n", operatorNamespace, "port-forward", target, fmt.Sprint(":", port))
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	command.Stderr = &stderr
	if err := command.Start(); err != nil {
		t.Fatalf("port-forward: %v", err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	match := forwardedPort.FindStringSubmatch(line)
	if match == nil {
		t.Fatalf("port-forward said %q, %v: %s", line, err, stderr.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return "http://127.0.0.1:" + match[1]
}

// curl calls the API with curl and returns status and body.
func (a *api) curl(t *testing.T, method, path, token, body string) (int, []byte) {
	t.Helper()
	args := []string{"-sS", "--max-time", "30", "-o", "-", "-w", "\n%{http_code}", "-X", method, "-H", "Authorization: Bearer " + token}
	if body != "" {
		args = append(args, "-H", "Content-Type: application/json", "-d", body)
	}
	out, err := exec.Command("curl", append(args, a.base+path)...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl %s %s: %v\n%s", method, path, err, out)
	}
	text := string(out)
	cut := strings.LastIndexByte(text, '\n')
	var status int
	if _, err := fmt.Sscan(text[cut+1:], &status); err != nil {
		t.Fatalf("curl %s %s printed %q", method, path, text)
	}
	return status, []byte(text[:cut])
}

// lease is the answer to POST /v1/leases.
type lease struct {
	LeaseID   string    `json:"leaseID"`
	ExpiresAt time.Time `json:"expiresAt"`
	Proxy     struct {
		ID   string `json:"id"`
		IP   string `json:"ip"`
		Port int    `json:"port"`
		URL  string `json:"url"`
	} `json:"proxy"`
}

// proxyName is the name within "namespace/name".
func (l lease) proxyName() string {
	_, name, _ := strings.Cut(l.Proxy.ID, "/")
	return name
}

// acquire leases by HTTP and fails unless the answer is 201.
func (a *api) acquire(t *testing.T, body string) lease {
	t.Helper()
	status, answer := a.curl(t, http.MethodPost, "/v1/leases", a.token, body)
	if status != http.StatusCreated {
		t.Fatalf("POST /v1/leases %s: %d %s", body, status, answer)
	}
	var l lease
	if err := json.Unmarshal(answer, &l); err != nil {
		t.Fatalf("POST /v1/leases answered %s: %v", answer, err)
	}
	return l
}

// crawl fetches a page of the origin through a proxy, as a crawler would, trusting only the demo's CA.
func crawl(ctx context.Context, t *testing.T, proxyURL, path string) (int, string) {
	t.Helper()
	pem, err := os.ReadFile(os.Getenv("DEMO_CA_FILE"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatalf("%s holds no certificate", os.Getenv("DEMO_CA_FILE"))
	}
	through, err := url.Parse(proxyURL)
	if err != nil {
		t.Fatalf("the lease's proxy URL: %v", err)
	}
	transport := &http.Transport{Proxy: http.ProxyURL(through), TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+originHost+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		t.Fatalf("GET %s through %s: %v", request.URL, proxyURL, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}
