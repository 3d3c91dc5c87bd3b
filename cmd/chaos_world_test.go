package main

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
)

const (
	// className is the class of all Proxies.
	className = "kubernetes"
	// originHost is where the probe target listens.
	originHost = "127.0.0.77"
	// username of the proxies that ask for credentials.
	username = "crawler"
)

var podKind = corev1.SchemeGroupVersion.WithKind("Pod")

// world is what the operator works in: pods that start, garbage that is collected, proxies that answer. All pods are on
// loopback addresses of their own, and behind all of them is one proxy for each port.
type world struct {
	garbage *kubelettest.Garbage
	// ports of the open proxies; a Proxy moves from one to the other.
	ports [2]int32
	// closedPort is that of the proxy that asks for credentials.
	closedPort int32
	passwords  *passwords
	// coreArguments make the core manager probe them.
	coreArguments []string
}

// passwords are those that a proxy accepts. Instances with the former password are running while it is being changed.
type passwords struct {
	mu  sync.Mutex
	all []string
}

func (p *passwords) add(password string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = append(p.all, password)
}

func (p *passwords) valid(header string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, password := range p.all {
		request := http.Request{Header: http.Header{}}
		request.SetBasicAuth(username, password)
		if header == request.Header.Get("Authorization") {
			return true
		}
	}
	return false
}

func newWorld(t *testing.T, env *testenv.Env, namespace string) *world {
	t.Helper()
	ca := proxyzoo.NewCA(t, "chaos")
	origin := proxyzoo.NewOrigin(t, ca, originHost)
	w := &world{passwords: &passwords{}}
	open := proxyzoo.Closed(proxyzoo.Tunnel, strings.TrimPrefix(origin.URL, "https://"))
	for i := range w.ports {
		w.ports[i] = startProxy(t, open)
	}
	w.closedPort = startProxy(t, func(c net.Conn, br *bufio.Reader, r *http.Request) {
		if !w.passwords.valid(r.Header.Get("Proxy-Authorization")) {
			proxyzoo.Status("407 Proxy Authentication Required", `Proxy-Authenticate: Basic realm="chaos"`)(c, br, r)
			return
		}
		open(c, br, r)
	})

	kubelettest.Run(t, env.Config, namespace).AddressPods(func(n int) string { return fmt.Sprintf("127.%d.%d.%d", 1+n/40000, n/200%200, 1+n%200) })
	w.garbage = kubelettest.CollectGarbage(t, env.Config, namespace, podKind, corev1.SchemeGroupVersion.WithKind("Secret"), kindOf("Proxy"), kindOf("ProxyPool"))

	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	w.coreArguments = []string{
		"--providers-config=" + write("providers.yaml", providersFile),
		"--health-check-urls=" + origin.URL + "/ip", "--health-check-ca-file=" + write("ca.pem", ca.PEM()),
		"--allow-proxy-cidrs=127.0.0.0/8", "--allow-probe-target-cidrs=127.0.0.0/8",
	}
	return w
}

// providersFile has room for everything at once: what is tried here is not the pace.
const providersFile = `
providers:
- name: ` + className + `
  type: kubernetes
  maxConcurrentCreates: 200
  maxConcurrentReplacements: 100
  healthCheck:
    periodSeconds: 30
    exitIP: {mode: Ignore}
`

func kindOf(kind string) schema.GroupVersionKind { return v1alpha1.SchemeGroupVersion.WithKind(kind) }

// startProxy starts a proxy on all loopback addresses and returns its port. It tunnels to the origin and nowhere else.
func startProxy(t *testing.T, do proxyzoo.Behaviour) int32 {
	t.Helper()
	_, text, err := net.SplitHostPort(proxyzoo.StartOn(t, "0.0.0.0:0", do).Addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return int32(port)
}
