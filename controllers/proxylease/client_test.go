package proxylease

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/client/kube"
)

const (
	zooUser = "crawler ä"
	// zooPassword has every printable ASCII character.
	zooPassword = ` !"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\]^_` + "`abcdefghijklmnopqrstuvwxyz{|}~"
)

// front is a way to lease from Go, with the faults that its requests meet.
type front struct {
	*client.Client
	faults *faults
	name   string
}

// overFronts runs a test over the HTTP API and over objects.
func overFronts(t *testing.T, test func(t *testing.T, c *core, from front)) {
	for _, name := range []string{"http", "kube"} {
		t.Run(name, func(t *testing.T) {
			c := newFleet(t).start()
			from := c.front(t, name, nil)
			t.Cleanup(from.Close)
			test(t, c, from)
		})
	}
}

// front makes a client of this core. A client over objects has the rights of a lease-user and may read Secrets, no more.
func (c *core) front(t *testing.T, name string, transport *http.Transport) front {
	t.Helper()
	faulty := &faults{}
	if name == "http" {
		own := http.DefaultTransport.(*http.Transport).Clone()
		t.Cleanup(own.CloseIdleConnections)
		made, err := client.New(c.url, client.Options{
			Token: client.Token(token), HTTPClient: &http.Client{Transport: faulty.wrap(own)}, Transport: transport,
		})
		if err != nil {
			t.Fatal(err)
		}
		return front{made, faulty, name}
	}
	config := c.leaseUser(t, true)
	config.Wrap(faulty.wrap)
	made, err := kube.NewForConfig(config, kube.Options{Namespace: c.ns, Transport: transport})
	if err != nil {
		t.Fatal(err)
	}
	return front{made, faulty, name}
}

// leaseUser is a user with the rights of the role that crawlers get, and to read Secrets if they may.
func (c *core) leaseUser(t *testing.T, secrets bool) *rest.Config {
	t.Helper()
	root, err := testenv.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "config", "rbac", "user_roles.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "crawler"}}
	for text := range strings.SplitSeq(string(data), "\n---\n") {
		var known rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(text), &known); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(known.Name, "-lease-user") {
			role.Rules = known.Rules
		}
	}
	if len(role.Rules) == 0 {
		t.Fatal("there is no role for crawlers")
	}
	if secrets {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}})
	}
	user := "crawler-" + c.ns
	for _, o := range []ctrlclient.Object{role, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "crawler"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "crawler"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: user}},
	}} {
		if err := c.Client.Create(t.Context(), o); err != nil && ctrlclient.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
	config := c.AddUser(t, user)
	config.QPS, config.Burst = -1, -1
	probe, err := ctrlclient.New(config, ctrlclient.Options{Scheme: c.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rights have spread", func() string {
		if err := probe.List(t.Context(), &v1alpha1.ProxyLeaseList{}, ctrlclient.InNamespace(c.ns)); err != nil {
			return err.Error()
		}
		if err := probe.Get(t.Context(), types.NamespacedName{Namespace: c.ns, Name: "none"}, &corev1.Secret{}); secrets && ctrlclient.IgnoreNotFound(err) != nil {
			return err.Error()
		}
		return ""
	})
	return config
}

// web is a site and a proxy that asks for credentials, as a Proxy that is Ready.
type web struct {
	origin *proxyzoo.Origin
	ca     *proxyzoo.CA
	zoo    *proxyzoo.Proxy
	px     *v1alpha1.Proxy
}

func (c *core) web(t *testing.T) *web {
	t.Helper()
	w := &web{ca: proxyzoo.NewCA(t, "origin"), zoo: proxyzoo.Start(t, proxyzoo.Authenticated(zooUser, zooPassword, proxyzoo.Tunnel))}
	w.origin = proxyzoo.NewOrigin(t, w.ca, "127.0.0.1")
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
		StringData: map[string]string{"username": zooUser, "password": zooPassword},
	}
	if err := c.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	w.px = &v1alpha1.Proxy{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.ns, Name: "real"},
		Spec: v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{
			Provider: "class", CredentialsSecretRef: &v1alpha1.LocalSecretRef{Name: "login"},
		}},
	}
	if err := c.Client.Create(t.Context(), w.px); err != nil {
		t.Fatal(err)
	}
	c.readyAt(t, w.px, "i-1", w.zoo.Addr)
	return w
}

// readyAt makes a proxy Ready at an address.
func (f *fleet) readyAt(t *testing.T, px *v1alpha1.Proxy, instance, address string) {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	f.setStatus(px, func(s *v1alpha1.ProxyStatus) {
		s.Phase = v1alpha1.PhaseReady
		s.Instance = &v1alpha1.Instance{ID: instance, Addresses: []string{host}, Port: int32(number)}
		s.Health = &v1alpha1.Health{InstanceID: instance}
		s.EgressIdentity = "instance:" + instance
		for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionHealthy, v1alpha1.ConditionAccessRestricted} {
			setProxyCondition(s, name, metav1.ConditionTrue)
		}
	})
}

// transport believes in the site, and connects anew for each request.
func (w *web) transport() *http.Transport {
	return &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.ca.Pool()}, DisableKeepAlives: true}
}

// crawl gets a page of the site.
func (w *web) crawl(ctx context.Context, l *client.Lease) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.origin.URL+"/ip", nil)
	if err != nil {
		return err
	}
	answer, err := (&http.Client{Transport: l.Transport()}).Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err == nil && string(body) != "127.0.0.1\n" {
		return fmt.Errorf("%d %q", answer.StatusCode, body)
	}
	return err
}

// A crawler's whole life: lease, crawl with credentials, report, give back.
func TestClientCrawls(t *testing.T) {
	for _, name := range []string{"http", "kube"} {
		t.Run(name, func(t *testing.T) {
			c := newFleet(t).start()
			w := c.web(t)
			from := c.front(t, name, w.transport())
			defer from.Close()
			acquiring, cancel := context.WithCancel(t.Context())
			request := client.Request{Targets: []string{"x.example"}, TTL: time.Hour, Holder: "worker", Mode: client.Exclusive}
			lease, err := from.Acquire(acquiring, request)
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := w.crawl(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
			stored := c.leases()
			if len(stored) != 1 || stored[0].Spec.Mode != v1alpha1.LeaseExclusive || !strings.Contains(stored[0].Spec.Holder, "worker") || stored[0].Spec.TTLSeconds != 3600 {
				t.Fatalf("%+v", stored)
			}
			if p := lease.Proxy(); p.ID() != c.ns+"/real" || p.URL != "http://"+w.zoo.Addr || lease.TTL() != time.Hour {
				t.Errorf("%+v", p)
			}
			// What was reported is stored when that is said, even when the lease goes right after.
			if err := lease.Report(t.Context(), "x.example", client.RateLimited, 0); err != nil {
				t.Fatal(err)
			}
			if err := lease.Close(acquiring); err != nil {
				t.Fatal(err)
			}
			if cooldowns := c.getProxy("real").Status.Cooldowns; len(cooldowns) != 1 || cooldowns[0].Target != "x.example" {
				t.Errorf("cooldowns %+v", cooldowns)
			}
			if n := len(c.leases()); n != 0 {
				t.Errorf("%d leases are left", n)
			}
			if err := w.crawl(t.Context(), lease); !errors.Is(err, client.ErrClosed) {
				t.Errorf("crawling goes on: %v", err)
			}
			if err := lease.Report(t.Context(), "x.example", client.OK, 0); !errors.Is(err, client.ErrClosed) {
				t.Errorf("report after Close: %v", err)
			}
			request.Wait = client.NoWait
			if _, err := from.Acquire(t.Context(), request); !errors.Is(err, client.ErrNoProxy) {
				t.Errorf("the cooling proxy: %v", err)
			}
			from.Close()
			eventually(t, "nothing of the client runs", clientRuns)
		})
	}
}

// clientRuns shows the goroutines that are in the client's packages; empty when there are none.
func clientRuns() string {
	all := make([]byte, 4<<20)
	all = all[:runtime.Stack(all, true)]
	var found []string
	for stack := range strings.SplitSeq(string(all), "\n\n") {
		if strings.Contains(stack, "/leasing/client") {
			found = append(found, stack)
		}
	}
	return strings.Join(found, "\n\n")
}

// The instance behind a lease is replaced: its holder learns of it without waiting for a renewal.
func TestClientIsToldOfALoss(t *testing.T) {
	for _, name := range []string{"http", "kube"} {
		t.Run(name, func(t *testing.T) {
			c := newFleet(t).start()
			w := c.web(t)
			from := c.front(t, name, w.transport())
			defer from.Close()
			lease, err := from.Acquire(t.Context(), client.Request{TTL: time.Hour})
			if err != nil {
				t.Fatal(err)
			}
			if err := w.crawl(t.Context(), lease); err != nil {
				t.Fatal(err)
			}
			w.zoo.Become(proxyzoo.Status("403 Forbidden"))
			c.readyAt(t, w.px, "i-2", "192.0.2.1:3128")
			eventually(t, "the holder is told", func() string {
				// Over HTTP trouble with the proxy is what makes it look.
				if name == "http" {
					_ = w.crawl(t.Context(), lease)
				}
				if lease.Err() == nil {
					return "it believes in its lease"
				}
				return ""
			})
			var lost *client.LostError
			if err := lease.Err(); !errors.As(err, &lost) || lost.Reason != client.ReasonProxyReplaced {
				t.Fatal(err)
			}
			<-lease.Done()
			if err := w.crawl(t.Context(), lease); !errors.Is(err, client.ErrLost) {
				t.Errorf("crawling goes on: %v", err)
			}
			// What was seen before is still told.
			if err := lease.Report(t.Context(), "x.example", client.OK, 0); err != nil {
				t.Error(err)
			}
			if err := lease.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Leases with the shortest TTL outlive others that are not renewed.
func TestClientRenews(t *testing.T) {
	c := newFleet(t).start()
	for _, name := range []string{"a", "b", "c", "d"} {
		c.proxy(name)
	}
	var leases []*client.Lease
	for _, name := range []string{"http", "kube"} {
		from := c.front(t, name, nil)
		defer from.Close()
		lease, err := from.Acquire(t.Context(), client.Request{TTL: v1alpha1.MinLeaseTTLSeconds * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		leases = append(leases, lease)
	}
	for _, name := range []string{"silent-1", "silent-2"} {
		c.lease(name, func(l *v1alpha1.ProxyLease) { l.Spec.TTLSeconds = v1alpha1.MinLeaseTTLSeconds })
		c.awaitPhase(name, v1alpha1.LeaseExpired)
	}
	for _, lease := range leases {
		if err := lease.Err(); err != nil {
			t.Errorf("%v: %v", lease, err)
		}
		if err := lease.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := len(c.leases()); n != 2 {
		t.Errorf("%d leases are left", n)
	}
}

// Acquire waits until there is a proxy; when it is broken off nothing is left.
func TestClientWaitsAndBreaksOff(t *testing.T) {
	overFronts(t, func(t *testing.T, c *core, from front) {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := from.Acquire(ctx, client.Request{})
			failed <- err
		}()
		eventually(t, "it waits", func() string { return one(c.allocator.Waiting()) })
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		from.Close()
		eventually(t, "nobody waits", func() string {
			if n := c.allocator.Waiting() + len(c.leases()); n != 0 {
				return strconv.Itoa(n)
			}
			return ""
		})
		begun := time.Now()
		if _, err := from.Acquire(t.Context(), client.Request{Wait: time.Second}); !errors.Is(err, client.ErrNoProxy) || time.Since(begun) < time.Second {
			t.Fatalf("%v after %v", err, time.Since(begun))
		}
		got := make(chan *client.Lease)
		go func() {
			lease, err := from.Acquire(t.Context(), client.Request{Wait: time.Minute})
			if err != nil {
				t.Error(err)
			}
			got <- lease
		}()
		eventually(t, "it waits", func() string { return one(c.allocator.Waiting()) })
		c.proxy("late")
		if lease := <-got; lease == nil || lease.Proxy().Name != "late" || lease.Close(t.Context()) != nil {
			t.Fatalf("%v", lease)
		}
	})
}

func one(n int) string {
	if n == 1 {
		return ""
	}
	return strconv.Itoa(n)
}

// Whatever answer gets lost on the way to the crawler: one lease, renewed, one report, and nothing left.
func TestClientSettlesLostAnswers(t *testing.T) {
	overFronts(t, func(t *testing.T, c *core, from front) {
		c.proxy("a")
		c.proxy("b")
		from.faults.plan(http.MethodPost, "leases", replyLost, requestLost, replyLost)
		lease, err := from.Acquire(t.Context(), client.Request{TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(c.leases()); n != 1 {
			t.Fatalf("%d leases", n)
		}
		if left := time.Until(lease.ExpiresAt()); left < 29*time.Minute || left > time.Hour {
			t.Errorf("believes in %v", left)
		}
		method := map[string]string{"http": http.MethodPost, "kube": http.MethodPatch}[from.name]
		lost := from.faults.plan(method, "", replyLost, replyLost)
		if err := lease.Report(t.Context(), "x.example", client.Banned, 0); err != nil {
			t.Fatal(err)
		}
		if from.faults.met(lost) == 0 {
			t.Error("no answer was lost")
		}
		if from.name == "kube" {
			if r := c.leases()[0].Status.ObservedReports; len(r) != 1 || r[0].Count != 1 {
				t.Errorf("reports %+v", r)
			}
		}
		if cooldowns := c.getProxy(lease.Proxy().Name).Status.Cooldowns; len(cooldowns) != 1 || cooldowns[0].Hits != 1 {
			t.Errorf("cooldowns %+v", cooldowns)
		}
		from.faults.plan(http.MethodDelete, "", replyLost, requestLost)
		if err := lease.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := len(c.leases()); n != 0 {
			t.Errorf("%d leases are left", n)
		}
	})
}

// A key outlives the process that used it.
func TestClientTakesALeaseUpAgain(t *testing.T) {
	overFronts(t, func(t *testing.T, c *core, from front) {
		c.proxy("a")
		c.proxy("b")
		request := client.Request{Key: "job-4711", TTL: time.Hour, Selector: map[string]string{"geo": "eu"}, Targets: []string{"y.example", "x.example"}}
		first, err := from.Acquire(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		// As if the process had died: its successor asks for the same.
		second, err := c.front(t, from.name, nil).Acquire(t.Context(), request)
		if err != nil {
			t.Fatal(err)
		}
		if first.ID() != second.ID() || len(c.leases()) != 1 {
			t.Fatalf("%d leases", len(c.leases()))
		}
		other := request
		other.Targets = nil
		if _, err := from.Acquire(t.Context(), other); !errors.Is(err, client.ErrKeyUsed) {
			t.Errorf("the key of another request: %v", err)
		}
		for _, lease := range []*client.Lease{second, first} {
			if err := lease.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Refusals are the same from either side.
func TestClientTellsRefusalsApart(t *testing.T) {
	overFronts(t, func(t *testing.T, c *core, from front) {
		c.proxy("a")
		for name, r := range map[string]struct {
			request client.Request
			is      error
			field   string
		}{
			"no such label":   {client.Request{Selector: map[string]string{"geo": "moon"}, Wait: client.NoWait}, client.ErrNoProxy, ""},
			"no such proxy":   {client.Request{Proxy: "none", Wait: client.NoWait}, client.ErrNoProxy, ""},
			"no such pool":    {client.Request{Pool: "none", Wait: client.NoWait}, client.ErrNoProxy, ""},
			"excluded":        {client.Request{Exclude: []string{"a", c.ns + "/a"}, Wait: client.NoWait}, client.ErrNoProxy, ""},
			"TTL":             {client.Request{TTL: time.Second}, client.ErrInvalid, "ttlSeconds"},
			"target":          {client.Request{Targets: []string{"X.example:80"}}, client.ErrInvalid, "targets"},
			"proxy and pool":  {client.Request{Proxy: "a", Pool: "b"}, client.ErrInvalid, "proxy"},
			"mode":            {client.Request{Mode: "Greedy"}, client.ErrInvalid, "mode"},
			"other namespace": {client.Request{Namespace: "kube-system"}, client.ErrForbidden, ""},
		} {
			_, err := from.Acquire(t.Context(), r.request)
			var e *client.Error
			if !errors.Is(err, r.is) || !errors.As(err, &e) || !strings.Contains(e.Field, r.field) {
				t.Errorf("%s: %v", name, err)
			}
		}
		from.Close()
		if n := len(c.leases()); n != 0 {
			t.Errorf("%d leases are left", n)
		}
		lease, err := from.Acquire(t.Context(), client.Request{Proxy: c.ns + "/a"})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = lease.Close(context.Background()) }()
		if err := lease.Report(t.Context(), "X", client.Banned, 0); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("report of a bad target: %v", err)
		}
		if err := lease.Report(t.Context(), "x.example", "boring", 0); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("report of a bad result: %v", err)
		}
		// Somebody else ends it.
		for _, l := range c.leases() {
			if err := c.Client.Delete(t.Context(), &l); err != nil {
				t.Fatal(err)
			}
		}
		if err := lease.Report(t.Context(), "x.example", client.Banned, 0); !errors.Is(err, client.ErrLost) {
			t.Errorf("report of a lease that is gone: %v", err)
		}
	})
}
