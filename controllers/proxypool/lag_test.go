package proxypool

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// waitTimeout bounds every wait for a condition.
const waitTimeout = 60 * time.Second

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(waitTimeout)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-deadline:
			t.Fatalf("waited in vain for: %s", what)
		case <-tick.C:
		}
	}
}

// laggingClient shows the Proxies of a namespace as they were some events ago, as a cache does that cannot keep up. All
// else is read from the API server.
type laggingClient struct {
	client.Client

	mu     sync.Mutex
	lag    int
	shown  int // a cache never goes back
	events []watch.Event
}

func newLaggingClient(t *testing.T, env *testenv.Env, namespace string, lag int) *laggingClient {
	t.Helper()
	watcher, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	w, err := watcher.Watch(context.Background(), &v1alpha1.ProxyList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	c := &laggingClient{Client: env.Client, lag: lag}
	var done sync.WaitGroup
	done.Go(func() {
		for event := range w.ResultChan() {
			c.mu.Lock()
			c.events = append(c.events, event)
			c.mu.Unlock()
		}
	})
	t.Cleanup(func() { w.Stop(); done.Wait() })
	return c
}

func (c *laggingClient) setLag(lag int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lag = lag
}

func (c *laggingClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	proxies, ok := list.(*v1alpha1.ProxyList)
	if !ok {
		return c.Client.List(ctx, list, opts...)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := map[types.UID]*v1alpha1.Proxy{}
	c.shown = max(c.shown, len(c.events)-c.lag)
	for _, event := range c.events[:c.shown] {
		if px, ok := event.Object.(*v1alpha1.Proxy); ok {
			if seen[px.UID] = px; event.Type == watch.Deleted {
				delete(seen, px.UID)
			}
		}
	}
	for _, px := range seen {
		proxies.Items = append(proxies.Items, *px.DeepCopy())
	}
	return nil
}

// createdProxies is how many Proxies the API server has made in its life, by its own count.
func createdProxies(t *testing.T, env *testenv.Env) int {
	t.Helper()
	httpClient, err := rest.HTTPClientFor(env.Config)
	if err != nil {
		t.Fatal(err)
	}
	response, err := httpClient.Do(mustRequest(t, strings.TrimSuffix(env.Config.Host, "/")+"/metrics"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("metrics of the API server: status %d, %v", response.StatusCode, err)
	}
	total := 0
	for line := range strings.Lines(string(body)) {
		if !createSeries.MatchString(line) || !strings.Contains(line, `code="201"`) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):]), 64)
		if err != nil {
			t.Fatal(err)
		}
		total += int(value)
	}
	return total
}

var createSeries = regexp.MustCompile(`^apiserver_request_total\{.*resource="proxies".*subresource="".*verb="POST"`)

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// directPool is a pool whose reconciler the test calls itself.
type directPool struct {
	t     *testing.T
	env   *testenv.Env
	cache client.Client
	clock *testingclock.FakePassiveClock
	r     *Reconciler
	pool  *v1alpha1.ProxyPool
}

func newDirectPool(t *testing.T, env *testenv.Env, cache client.Client, pool *v1alpha1.ProxyPool) *directPool {
	t.Helper()
	d := &directPool{t: t, env: env, cache: cache, clock: testingclock.NewFakePassiveClock(time.Now()), pool: pool}
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	d.restart()
	return d
}

// restart forgets everything that a process remembers.
func (d *directPool) restart() {
	d.r = &Reconciler{
		Options: Options{Clock: d.clock}, Client: d.cache, APIReader: d.env.Client, Recorder: events.NewFakeRecorder(10000),
	}
}

func (d *directPool) reconcile() {
	d.t.Helper()
	if _, err := d.r.Reconcile(d.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(d.pool)}); err != nil {
		d.t.Fatalf("reconcile: %v", err)
	}
}

// scale sets the replicas as `kubectl scale` does.
func (d *directPool) scale(replicas int32) {
	d.t.Helper()
	scale(d.t, d.env, d.pool, replicas)
}

func (d *directPool) alive() int {
	d.t.Helper()
	list := &v1alpha1.ProxyList{}
	if err := d.env.Client.List(d.t.Context(), list, client.InNamespace(d.pool.Namespace)); err != nil {
		d.t.Fatal(err)
	}
	n := 0
	for i := range list.Items {
		if list.Items[i].DeletionTimestamp.IsZero() {
			n++
		}
	}
	return n
}

func scale(t *testing.T, env *testenv.Env, pool *v1alpha1.ProxyPool, replicas int32) {
	t.Helper()
	body := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if err := env.Client.SubResource("scale").Patch(t.Context(), pool.DeepCopy(), client.RawPatch(types.MergePatchType, body)); err != nil {
		t.Fatalf("scale to %d: %v", replicas, err)
	}
}

func livePool(namespace string, replicas int32) *v1alpha1.ProxyPool {
	return &v1alpha1.ProxyPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "eu"},
		Spec: v1alpha1.ProxyPoolSpec{
			Replicas: &replicas,
			Template: v1alpha1.ProxyTemplate{
				Metadata: v1alpha1.TemplateMetadata{Labels: map[string]string{"geo": "eu"}},
				Spec:     v1alpha1.ProxyTemplateSpec{Provider: "kubernetes"},
			},
		},
	}
}
