package proxylease

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

const (
	token = "a-token-for-tests-only"
	// patience bounds every wait of these tests.
	patience = 90 * time.Second
)

// fleet is a namespace on the real API server with proxies that a test makes Ready by hand.
type fleet struct {
	t  *testing.T
	ns string
	*testenv.Env
}

func newFleet(t *testing.T) *fleet {
	env := testenv.New(t)
	return &fleet{t: t, Env: env, ns: env.Namespace(t)}
}

// core is a running core manager with leasing only.
type core struct {
	*fleet
	url       string
	allocator *leasing.Allocator
	writes    *writeCounter
	stop      func()
}

// coreOption changes how a core is started.
type coreOption func(*coreSettings)

type coreSettings struct {
	options  leasing.Options
	follower bool
	early    bool
	// kubernetesAuth accepts tokens of the API server beside the one of the file.
	kubernetesAuth bool
	transport      func(http.RoundTripper) http.RoundTripper
	// peers answers other replicas, leader says whom this one asks.
	peers  net.Listener
	leader func() string
}

// following starts the replica without its allocator: as one that does not lead.
func following(s *coreSettings) { s.follower = true }

// answering answers other replicas as the leader.
func answering(listener net.Listener) coreOption {
	return func(s *coreSettings) { s.peers = listener }
}

// asking asks the leader at an address, as one that does not lead.
func asking(address string) coreOption {
	return func(s *coreSettings) { s.follower, s.leader = true, func() string { return address } }
}

// early does not wait until the core has recovered.
func early(s *coreSettings) { s.early = true }

func withOptions(change func(*leasing.Options)) coreOption {
	return func(s *coreSettings) { change(&s.options) }
}

func withTransport(wrap func(http.RoundTripper) http.RoundTripper) coreOption {
	return func(s *coreSettings) { s.transport = wrap }
}

// start starts a core and waits until it has recovered. It is stopped at the end of the test, if not before.
func (f *fleet) start(options ...coreOption) *core {
	f.t.Helper()
	c := &core{fleet: f, writes: &writeCounter{}}
	settings := &coreSettings{options: leasing.Options{Namespaces: []string{f.ns}, RestartGrace: 2 * time.Second}}
	for _, o := range options {
		o(settings)
	}
	config := rest.CopyConfig(f.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { c.writes.next = next; return c.writes })
	if settings.transport != nil {
		config.Wrap(settings.transport)
	}
	mgr, err := manager.New(config, manager.Core(), manager.Options{
		MetricsBindAddress: "0", HealthProbeBindAddress: "0", WatchNamespaces: []string{f.ns}, SkipNameValidation: true,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	o := settings.options
	o.Client, o.Live, o.Cache, o.Registerer = mgr.GetClient(), mgr.GetAPIReader(), mgr.GetCache(), prometheus.NewRegistry()
	o.Log = testr.New(f.t)
	if c.allocator, err = leasing.New(o); err != nil {
		f.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	tokenFile := filepath.Join(f.t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
	authConfig := httpapi.AuthConfig{Modes: []string{httpapi.AuthToken}, TokenFile: tokenFile, Clock: clock.RealClock{}}
	if settings.kubernetesAuth {
		authConfig.Modes = append(authConfig.Modes, httpapi.AuthKubernetes)
		authConfig.Kubernetes = &httpapi.Kubernetes{Client: mgr.GetClient(), Clock: clock.RealClock{}}
	}
	auth, err := httpapi.NewAuth(authConfig)
	if err != nil {
		f.t.Fatal(err)
	}
	server, err := leasing.NewHTTPServer(c.allocator, leasing.HTTPOptions{
		Listener: listener, Auth: auth, Namespace: f.ns, DefaultNamespace: f.ns, PeerListener: settings.peers, Leader: settings.leader,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	c.url = "http://" + listener.Addr().String()
	runnables := []ctrlmanager.Runnable{server}
	if !settings.follower {
		runnables = append(runnables, c.allocator)
		if err := Add(mgr, Options{Allocator: c.allocator, Clock: settings.options.Clock}); err != nil {
			f.t.Fatal(err)
		}
	}
	for _, r := range runnables {
		if err := mgr.Add(r); err != nil {
			f.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	c.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("the manager ended: %v", err)
		}
	})
	f.t.Cleanup(c.stop)
	eventually(f.t, "the core is ready", func() string {
		if !settings.follower && !settings.early && !c.allocator.Recovered() {
			return "not recovered"
		}
		if status, body := c.call(http.MethodGet, "/v1/leases/x", ""); status != http.StatusNotFound {
			return fmt.Sprintf("%d %s", status, body)
		}
		return ""
	})
	return c
}

// writeCounter counts the writes that reach the API server, by method and resource.
type writeCounter struct {
	next   http.RoundTripper
	mu     sync.Mutex
	counts map[string]int
}

func (w *writeCounter) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		w.mu.Lock()
		if w.counts == nil {
			w.counts = map[string]int{}
		}
		for _, resource := range []string{"proxyleases", "proxies"} {
			if strings.Contains(r.URL.Path, "/"+resource) {
				w.counts[r.Method+" "+resource]++
			}
		}
		w.mu.Unlock()
	}
	return w.next.RoundTrip(r)
}

// take gives the counts since the last take.
func (w *writeCounter) take() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := w.counts
	w.counts = map[string]int{}
	return counts
}

// call sends a request with the token.
func (c *core) call(method, path, body string, header ...string) (int, []byte) {
	return c.callAs(token, method, path, body, header...)
}

func (c *core) callAs(bearer, method, path, body string, header ...string) (int, []byte) {
	r, err := http.NewRequest(method, c.url+path, bytes.NewBufferString(body))
	if err != nil {
		c.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+bearer)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return answer.StatusCode, data
}

// httpLease is the answer about a lease.
type httpLease struct {
	LeaseID   string    `json:"leaseID"`
	ExpiresAt time.Time `json:"expiresAt"`
	Proxy     struct {
		ID, IP, URL, Username, Password string
		Port                            int
	} `json:"proxy"`
}

func (l httpLease) proxyName() string {
	_, name, _ := strings.Cut(l.Proxy.ID, "/")
	return name
}

func (l httpLease) name() string { return strings.Split(l.LeaseID, ".")[1] }

// problem is an error answer.
type problem struct {
	Code, Field, Reason, Detail string
	Status                      int
}

func decode[T any](t *testing.T, data []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return v
}

// acquire leases by HTTP and fails the test unless the answer has that status.
func (c *core) acquire(want int, body string, header ...string) httpLease {
	c.t.Helper()
	status, answer := c.call(http.MethodPost, "/v1/leases", body, header...)
	if status != want {
		c.t.Fatalf("POST /v1/leases %s: %d %s, want %d", body, status, answer, want)
	}
	return decode[httpLease](c.t, answer)
}

// repeated asks again with a key. A replica that has not heard of the first outcome yet says so with 503.
func (c *core) repeated(body, key string) (lease httpLease) {
	c.t.Helper()
	eventually(c.t, "the same lease", func() string {
		status, answer := c.call(http.MethodPost, "/v1/leases", body, keyHeader, key)
		switch status {
		case 200:
			lease = decode[httpLease](c.t, answer)
			return ""
		case 503:
			return string(answer)
		}
		c.t.Fatalf("POST /v1/leases %s again: %d %s", body, status, answer)
		return ""
	})
	return lease
}

// refused sends a request and fails the test unless it is answered by that status and code.
func (c *core) refused(status int, code, method, path, body string, header ...string) problem {
	c.t.Helper()
	got, answer := c.call(method, path, body, header...)
	p := problem{}
	_ = json.Unmarshal(answer, &p)
	if got != status || p.Code != code {
		c.t.Fatalf("%s %s %s: %d %s, want %d %s", method, path, body, got, answer, status, code)
	}
	return p
}

// address gives every proxy another one.
var address atomic.Int32

// proxy creates a Ready proxy.
func (f *fleet) proxy(name string, change ...func(*v1alpha1.Proxy)) *v1alpha1.Proxy {
	f.t.Helper()
	px := &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name, Labels: map[string]string{"geo": "eu"}},
		Spec: v1alpha1.ProxySpec{
			Mode:              v1alpha1.ModeManaged,
			ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Provider: "class"},
		},
	}
	for _, c := range change {
		c(px)
	}
	if err := f.Client.Create(f.t.Context(), px); err != nil {
		f.t.Fatal(err)
	}
	f.ready(px, "i-"+name)
	return px
}

func capacity(n int32) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) { px.Spec.Capacity = &n }
}

// ready makes the status of a proxy that of a healthy instance, as core and a provider would, and leaves leasing's part.
func (f *fleet) ready(px *v1alpha1.Proxy, instance string) {
	f.t.Helper()
	f.setStatus(px, func(s *v1alpha1.ProxyStatus) {
		host := fmt.Sprintf("192.0.2.%d", 1+address.Add(1)%250)
		s.Phase = v1alpha1.PhaseReady
		s.Instance = &v1alpha1.Instance{ID: instance, Addresses: []string{host}}
		s.Health = &v1alpha1.Health{InstanceID: instance}
		s.EgressIdentity = "instance:" + instance
		for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionHealthy, v1alpha1.ConditionAccessRestricted} {
			setProxyCondition(s, name, metav1.ConditionTrue)
		}
	})
}

func (f *fleet) setHealthy(px *v1alpha1.Proxy, status metav1.ConditionStatus) {
	f.t.Helper()
	f.setStatus(px, func(s *v1alpha1.ProxyStatus) {
		setProxyCondition(s, v1alpha1.ConditionReady, status)
		setProxyCondition(s, v1alpha1.ConditionHealthy, status)
	})
}

func setProxyCondition(s *v1alpha1.ProxyStatus, name string, status metav1.ConditionStatus) {
	meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: name, Status: status, Reason: "Test", Message: "As the test wants it"})
}

// setStatus changes the status of a proxy by an ordinary update: tests may, production code may not.
func (f *fleet) setStatus(px *v1alpha1.Proxy, change func(*v1alpha1.ProxyStatus)) {
	f.t.Helper()
	eventually(f.t, "the status of the proxy is set", func() string {
		if err := f.Client.Get(context.Background(), types.NamespacedName{Namespace: f.ns, Name: px.Name}, px); err != nil {
			return err.Error()
		}
		px.Status.ObservedGeneration = px.Generation
		change(&px.Status)
		if err := f.Client.Status().Update(context.Background(), px); err != nil {
			return err.Error()
		}
		return ""
	})
}

// lease creates a ProxyLease for any proxy.
func (f *fleet) lease(name string, change ...func(*v1alpha1.ProxyLease)) {
	f.t.Helper()
	l := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name},
		Spec:       v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{}, Holder: "crawler"},
	}
	for _, c := range change {
		c(l)
	}
	if err := f.Client.Create(f.t.Context(), l); err != nil {
		f.t.Fatal(err)
	}
}

// get reads a lease; nil when it is gone.
func (f *fleet) get(name string) *v1alpha1.ProxyLease {
	l := &v1alpha1.ProxyLease{}
	if err := f.Client.Get(context.Background(), types.NamespacedName{Namespace: f.ns, Name: name}, l); err != nil {
		return nil
	}
	return l
}

// getProxy reads a proxy.
func (f *fleet) getProxy(name string) *v1alpha1.Proxy {
	f.t.Helper()
	px := &v1alpha1.Proxy{}
	if err := f.Client.Get(context.Background(), types.NamespacedName{Namespace: f.ns, Name: name}, px); err != nil {
		f.t.Fatal(err)
	}
	return px
}

// awaitPhase waits until a lease has the phase, and gives it.
func (f *fleet) awaitPhase(name string, phase v1alpha1.LeasePhase) *v1alpha1.ProxyLease {
	f.t.Helper()
	var l *v1alpha1.ProxyLease
	eventually(f.t, fmt.Sprintf("lease %s is %s", name, phase), func() string {
		if l = f.get(name); l == nil {
			return "it is gone"
		}
		if l.Status.Phase != phase {
			return fmt.Sprintf("it is %q: %+v", l.Status.Phase, l.Status.Conditions)
		}
		return ""
	})
	return l
}

// boundReason is the reason of a lease's Bound condition.
func boundReason(l *v1alpha1.ProxyLease) string {
	if c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionBound); c != nil {
		return c.Reason
	}
	return ""
}

// eventually looks until check says nothing against it.
func eventually(t *testing.T, what string, check func() string) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		problem := check()
		if problem == "" {
			return
		}
		select {
		case <-deadline.C:
			t.Fatalf("in vain waited until %s: %s", what, problem)
		case <-tick.C:
		}
	}
}
