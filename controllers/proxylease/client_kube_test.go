package proxylease

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/client/kube"
)

// requests remembers what was asked of the API server, and can cut watches off.
type requests struct {
	next http.RoundTripper

	mu    sync.Mutex
	asked []string
	cut   []context.CancelFunc
}

func (r *requests) wrap(next http.RoundTripper) http.RoundTripper {
	r.next = next
	return r
}

func (r *requests) RoundTrip(q *http.Request) (*http.Response, error) {
	what := q.Method
	_, path, namespaced := strings.Cut(q.URL.Path, "/namespaces/")
	if !namespaced {
		return r.next.RoundTrip(q) // which kinds there are
	}
	resource := strings.Split(path, "/")[1]
	if q.URL.Query().Has("watch") {
		what = "WATCH"
		ctx, cancel := context.WithCancel(q.Context())
		q = q.WithContext(ctx)
		r.mu.Lock()
		r.cut = append(r.cut, cancel)
		r.mu.Unlock()
	}
	r.mu.Lock()
	r.asked = append(r.asked, what+" "+resource)
	r.mu.Unlock()
	return r.next.RoundTrip(q)
}

func (r *requests) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := strings.Join(r.asked, ", ")
	r.asked = nil
	return asked
}

// kubeClient is a client over objects whose requests are remembered.
func (c *core) kubeClient(t *testing.T, secrets bool, o kube.Options) (*client.Client, *requests) {
	t.Helper()
	seen := &requests{}
	config := c.leaseUser(t, secrets)
	config.Wrap(seen.wrap)
	o.Namespace = c.ns
	made, err := kube.NewForConfig(config, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made, seen
}

// A lease costs one creation, one watch and one deletion, and one change for each renewal. The watch is that of its whole life,
// taken up again when it breaks.
func TestClientKubeNeedsOneWatch(t *testing.T) {
	c := newFleet(t).start()
	made, seen := c.kubeClient(t, true, kube.Options{})
	waiting := make(chan *client.Lease)
	go func() {
		lease, err := made.Acquire(t.Context(), client.Request{TTL: time.Hour})
		if err != nil {
			t.Error(err)
		}
		waiting <- lease
	}()
	// It waits long enough to be told of some changes.
	eventually(t, "the lease says why it waits", func() string {
		if l := c.leases(); len(l) != 1 || boundReason(&l[0]) == "" {
			return "it does not"
		}
		return ""
	})
	px := c.proxy("late")
	lease := <-waiting
	if lease == nil {
		t.Fatal("no lease")
	}
	if asked := seen.take(); asked != "POST proxyleases, WATCH proxyleases" {
		t.Errorf("asked: %s", asked)
	}
	// The proxy is asked to drain; it shows on the lease.
	drain := func(requester string) {
		t.Helper()
		eventually(t, "the proxy is asked to drain", func() string {
			if err := c.Client.Get(t.Context(), ctrlclient.ObjectKeyFromObject(px), px); err != nil {
				return err.Error()
			}
			px.Spec.DrainRequests = nil
			if requester != "" {
				px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: requester, Reason: "Test"}}
			}
			if err := c.Client.Update(t.Context(), px); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	drain("test")
	eventually(t, "the holder is asked to go", func() string {
		if !lease.Draining() {
			return "it is not"
		}
		return ""
	})
	seen.mu.Lock()
	for _, cut := range seen.cut {
		cut()
	}
	seen.mu.Unlock()
	drain("")
	eventually(t, "the holder may stay", func() string {
		if lease.Draining() {
			return "it may not"
		}
		return ""
	})
	if asked := seen.take(); asked != "WATCH proxyleases" {
		t.Errorf("asked: %s", asked)
	}
	c.readyAt(t, px, "i-2", "192.0.2.9:3128")
	<-lease.Done()
	var lost *client.LostError
	if !errors.As(lease.Err(), &lost) || lost.Reason != client.ReasonProxyReplaced {
		t.Error(lease.Err())
	}
	if err := lease.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if asked := seen.take(); asked != "" {
		t.Errorf("asked: %s", asked)
	}
}

// The object goes away under its holder, by the hand of another or with its Pod.
func TestClientKubeLosesADeletedLease(t *testing.T) {
	c := newFleet(t).start()
	c.proxy("a")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "crawler"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(false)},
	}
	if err := c.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	made, _ := c.kubeClient(t, true, kube.Options{Owner: kube.PodOwner(pod.Name, pod.UID)})
	lease, err := made.Acquire(t.Context(), client.Request{})
	if err != nil {
		t.Fatal(err)
	}
	stored := c.leases()[0]
	if o := stored.OwnerReferences; len(o) != 1 || o[0].UID != pod.UID || o[0].Kind != "Pod" {
		t.Errorf("owners %+v", o)
	}
	if err := c.Client.Delete(t.Context(), &stored); err != nil {
		t.Fatal(err)
	}
	// A namesake is not taken for it, and not touched.
	namesake := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: stored.Name}, Spec: v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{}}}
	if err := c.Client.Create(t.Context(), namesake); err != nil {
		t.Fatal(err)
	}
	<-lease.Done()
	var lost *client.LostError
	if !errors.As(lease.Err(), &lost) || lost.Reason != client.ReasonGone {
		t.Error(lease.Err())
	}
	if err := lease.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if c.get(stored.Name) == nil {
		t.Error("the namesake is gone")
	}
}

// Credentials that the crawler may not read are told, with nothing left behind; they may come from elsewhere.
func TestClientKubeCredentials(t *testing.T) {
	c := newFleet(t).start()
	w := c.web(t)
	made, seen := c.kubeClient(t, false, kube.Options{})
	if _, err := made.Acquire(t.Context(), client.Request{}); !errors.Is(err, client.ErrForbidden) || !strings.Contains(err.Error(), "login") {
		t.Errorf("without the right to read the Secret: %v", err)
	}
	if n := len(c.leases()); n != 0 {
		t.Errorf("%d leases are left", n)
	}
	if asked := seen.take(); asked != "POST proxyleases, WATCH proxyleases, GET secrets, DELETE proxyleases" {
		t.Errorf("asked: %s", asked)
	}
	made, _ = c.kubeClient(t, false, kube.Options{Transport: w.transport(), Credentials: func(_ context.Context, namespace, name string) (string, string, error) {
		if namespace != c.ns || name != "login" {
			t.Errorf("credentials of %s/%s", namespace, name)
		}
		return zooUser, zooPassword, nil
	}})
	lease, err := made.Acquire(t.Context(), client.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.crawl(t.Context(), lease); err != nil {
		t.Error(err)
	}
	if err := lease.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// More targets than a lease can list are reported one after the other, each counted.
func TestClientKubeReportsManyTargets(t *testing.T) {
	c := newFleet(t).start()
	c.proxy("a")
	made, _ := c.kubeClient(t, true, kube.Options{})
	lease, err := made.Acquire(t.Context(), client.Request{TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lease.Close(context.Background()) }()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 5 {
				target := "site-" + string(rune('a'+5*i+j)) + ".example"
				if err := lease.Report(t.Context(), target, client.RateLimited, 0); err != nil {
					t.Errorf("%s: %v", target, err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(c.getProxy("a").Status.Cooldowns); n != 20 {
		t.Errorf("%d targets cool", n)
	}
}
