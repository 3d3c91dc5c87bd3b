package proxylease

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const keyHeader = "Idempotency-Key"

// leases lists the leases of the fleet.
func (f *fleet) leases() []v1alpha1.ProxyLease {
	f.t.Helper()
	list := &v1alpha1.ProxyLeaseList{}
	if err := f.Client.List(context.Background(), list, client.InNamespace(f.ns)); err != nil {
		f.t.Fatal(err)
	}
	return list.Items
}

func TestH1_OneKeyTwiceAtOnceIsOneLease(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	leader := f.start()
	follower := f.start(following)
	for round := range 5 {
		key := fmt.Sprint("key-", round)
		var wg sync.WaitGroup
		var mu sync.Mutex
		ids := map[string]int{}
		for _, replica := range []*core{leader, leader, follower, follower} {
			wg.Go(func() {
				// An answer that says "repeat with the same key" is repeated, as the API demands.
				eventually(t, "a lease is granted", func() string {
					status, body := replica.call(http.MethodPost, "/v1/leases", `{"waitSeconds":5}`, keyHeader, key)
					if status != 200 && status != 201 {
						return string(body)
					}
					mu.Lock()
					defer mu.Unlock()
					ids[decode[httpLease](t, body).LeaseID]++
					return ""
				})
			})
		}
		wg.Wait()
		if len(ids) != 1 {
			t.Fatalf("%d leases for one key: %v", len(ids), ids)
		}
	}
	if n := len(f.leases()); n != 5 {
		t.Fatalf("%d leases are stored", n)
	}
}

func TestH2_KeyOfAnotherRequestOrOfAReleasedLease(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	lease := c.acquire(201, `{"target":"x.example"}`, keyHeader, "k")
	if again := c.acquire(200, `{"target":"x.example","waitSeconds":1}`, keyHeader, "k"); again.LeaseID != lease.LeaseID || !again.ExpiresAt.Equal(lease.ExpiresAt) {
		t.Fatalf("the replay is %+v, want %+v", again, lease)
	}
	c.refused(422, wire.CodeKeyReused, http.MethodPost, "/v1/leases", `{"target":"y.example"}`, keyHeader, "k")
	c.acquire(201, `{"target":"x.example","holder":"another"}`, keyHeader, "k")
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
		t.Fatalf("release: %d", status)
	}
	c.refused(409, wire.CodeKeyConsumed, http.MethodPost, "/v1/leases", `{"target":"x.example"}`, keyHeader, "k")
	if n := len(f.leases()); n != 1 {
		t.Fatalf("%d leases are stored", n)
	}
}

func TestH3_CommittedCreationWithALostReplyIsFound(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	faulty := &faults{}
	c := f.start(withTransport(faulty.wrap))
	lost := faulty.plan(http.MethodPost, "/proxyleases", replyLost, replyLost)
	lease := c.acquire(201, `{}`, keyHeader, "k")
	if faulty.met(lost) != 2 {
		t.Fatalf("%d faults were met", faulty.met(lost))
	}
	if again := c.acquire(200, `{}`, keyHeader, "k"); again.LeaseID != lease.LeaseID {
		t.Fatal("another lease for the key")
	}
	if n := len(f.leases()); n != 1 {
		t.Fatalf("%d leases are stored", n)
	}
	if load, known := c.allocator.CountLeases(f.getProxy("a").UID); load != 1 || !known {
		t.Fatalf("load %d", load)
	}
}

func TestH4_CreationThatCommitsLateKeepsItsSlotTaken(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	faulty := &faults{}
	c := f.start(withTransport(faulty.wrap))
	commit := make(chan func() (*http.Response, error), 1)
	late := func(send func() (*http.Response, error)) (*http.Response, error) {
		commit <- send
		return nil, errLost
	}
	release := make(chan struct{})
	held := func(send func() (*http.Response, error)) (*http.Response, error) {
		<-release
		return send()
	}
	faulty.plan(http.MethodPost, "/proxyleases", late, held)
	first := make(chan httpLease, 1)
	go func() { first <- c.acquire(201, `{}`, keyHeader, "k") }()
	send := <-commit
	// While nobody knows what became of it, nobody else gets the slot.
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
	// The first request is carried out after all, and only then the repetition.
	answer, err := send()
	if err != nil || answer.StatusCode != http.StatusCreated {
		// The client has given the request up; its context may have ended with it.
		t.Logf("the late creation: %v %v", answer, err)
	} else {
		_ = answer.Body.Close()
	}
	close(release)
	lease := <-first
	if n := len(f.leases()); n != 1 || f.leases()[0].Name != lease.name() {
		t.Fatalf("%d leases are stored", n)
	}
	c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
}

func TestH5_DisconnectWhileWaitingLeavesNothingBehind(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	c := f.start()
	first := c.acquire(201, `{}`)
	ctx, disconnect := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/leases", strings.NewReader(`{"waitSeconds":60}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	gone := make(chan struct{})
	go func() {
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		close(gone)
	}()
	eventually(t, "the call waits", func() string {
		if n := c.allocator.Waiting(); n != 1 {
			return fmt.Sprintf("%d wait", n)
		}
		return ""
	})
	disconnect()
	<-gone
	eventually(t, "nobody waits", func() string {
		if n := c.allocator.Waiting(); n != 0 {
			return fmt.Sprintf("%d wait", n)
		}
		return ""
	})
	c.call(http.MethodDelete, "/v1/leases/"+first.LeaseID, "")
	c.acquire(201, `{}`)
	if n := len(f.leases()); n != 1 {
		t.Fatalf("%d leases are stored", n)
	}
}

func TestWaitingCallGetsTheFreedSlot(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	c := f.start()
	first := c.acquire(201, `{}`)
	second := make(chan httpLease, 1)
	go func() { second <- c.acquire(201, `{"waitSeconds":60}`) }()
	eventually(t, "the call waits", func() string {
		if c.allocator.Waiting() != 1 {
			return "it does not"
		}
		return ""
	})
	c.call(http.MethodDelete, "/v1/leases/"+first.LeaseID, "")
	if got := <-second; got.Proxy.ID != f.ns+"/a" {
		t.Fatalf("got %+v", got)
	}
}

func TestH7_ForeignIDsTouchNothing(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	lease := c.acquire(201, `{}`, keyHeader, "k")
	parts := strings.Split(lease.LeaseID, ".")
	forged := []string{
		strings.Join([]string{parts[0], parts[1], strings.Repeat("A", len(parts[2]))}, "."),
		strings.Join([]string{parts[0], "another", parts[2]}, "."),
		strings.Join([]string{"other", parts[1], parts[2]}, "."),
		lease.LeaseID + "A", parts[1], "x", "%00", strings.Repeat("a", 4000), parts[0] + "." + parts[1] + ".", "...",
	}
	c.writes.take()
	for _, id := range forged {
		c.refused(404, wire.CodeLeaseNotFound, http.MethodGet, "/v1/leases/"+id, "")
		c.refused(404, wire.CodeLeaseNotFound, http.MethodPost, "/v1/leases/"+id+"/renew", "")
		c.refused(404, wire.CodeLeaseNotFound, http.MethodPost, "/v1/leases/"+id+"/report", `{"result":"banned","target":"x.example"}`)
		if status, _ := c.call(http.MethodDelete, "/v1/leases/"+id, ""); status != 204 {
			t.Fatalf("DELETE %s: %d", id, status)
		}
	}
	if got := c.writes.take(); len(got) != 0 {
		t.Fatalf("forged ids wrote %v", got)
	}
	if status, _ := c.callAs("wrong", http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 401 {
		t.Fatalf("wrong token: %d", status)
	}
	if f.get(lease.name()) == nil {
		t.Fatal("the lease is gone")
	}
	// An id of before never means a later lease of the same name.
	old := f.get(lease.name())
	if err := f.Client.Delete(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	f.lease(lease.name())
	f.awaitPhase(lease.name(), v1alpha1.LeaseBound)
	if p := c.refused(410, wire.CodeLeaseEnded, http.MethodGet, "/v1/leases/"+lease.LeaseID, ""); p.Reason != "Gone" {
		t.Fatalf("reason %q", p.Reason)
	}
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 || f.get(lease.name()) == nil {
		t.Fatal("the old id released the new lease")
	}
}

func TestH8_RenewalAfterARevocationSaysWhy(t *testing.T) {
	f := newFleet(t)
	px := f.proxy("a")
	c := f.start()
	lease := c.acquire(201, `{}`)
	f.ready(px, "another-instance")
	f.awaitPhase(lease.name(), v1alpha1.LeaseRevoked)
	for _, call := range [][2]string{{http.MethodPost, "/renew"}, {http.MethodGet, ""}} {
		p := c.refused(410, wire.CodeLeaseEnded, call[0], "/v1/leases/"+lease.LeaseID+call[1], "")
		if p.Reason != v1alpha1.ReasonProxyReplaced || p.Detail == "" {
			t.Fatalf("answered %+v", p)
		}
	}
	for range 2 {
		if status, _ := c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
			t.Fatalf("release: %d", status)
		}
	}
}

// A caller who takes an empty address for a proxy crawls without one: a lease is not shown while its proxy has none.
func TestLeaseOfAProxyWithoutAnAddress(t *testing.T) {
	f := newFleet(t)
	px := f.proxy("a")
	c := f.start()
	lease := c.acquire(201, `{}`)
	f.setStatus(px, func(s *v1alpha1.ProxyStatus) { s.Instance.Addresses = nil })
	eventually(t, "the lease is not shown", func() string {
		status, body := c.call(http.MethodGet, "/v1/leases/"+lease.LeaseID, "")
		if status == 200 {
			if decode[httpLease](t, body).Proxy.IP == "" {
				t.Fatalf("an address is missing: %s", body)
			}
			return string(body)
		}
		return ""
	})
	c.refused(503, wire.CodeNotReady, http.MethodPost, "/v1/leases/"+lease.LeaseID+"/renew", "")
	f.readyAt(t, px, "i-a", "192.0.2.77:3128")
	eventually(t, "it is shown again", func() string {
		if status, body := c.call(http.MethodGet, "/v1/leases/"+lease.LeaseID, ""); status != 200 {
			return string(body)
		}
		return ""
	})
}

func TestWrongTokenIs401(t *testing.T) {
	f := newFleet(t)
	c := f.start()
	for _, bearer := range []string{"wrong", "", token + "x", token[1:]} {
		for _, call := range [][2]string{
			{http.MethodGet, "/v1/proxies"}, {http.MethodPost, "/v1/leases"}, {http.MethodGet, "/v1/leases/x"},
			{http.MethodDelete, "/v1/leases/x"}, {http.MethodPost, "/v1/leases/x/renew"}, {http.MethodPost, "/v1/leases/x/report"},
		} {
			if status, body := c.callAs(bearer, call[0], call[1], "{}"); status != 401 {
				t.Fatalf("%s %s as %q: %d %s", call[0], call[1], bearer, status, body)
			}
		}
	}
}

func TestCredentialsGoToTheHolderOnly(t *testing.T) {
	f := newFleet(t)
	const password = `p@ss:/?#[]%"\ word`
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
		StringData: map[string]string{"username": "user", "password": password},
	}
	if err := f.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	login := func(name string) func(*v1alpha1.Proxy) {
		return func(px *v1alpha1.Proxy) { px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: name} }
	}
	f.proxy("a", login("login"))
	c := f.start()
	lease := c.acquire(201, `{}`)
	if lease.Proxy.Username != "user" || lease.Proxy.Password != password || strings.Contains(lease.Proxy.URL, "user") {
		t.Fatalf("leased %+v", lease.Proxy)
	}
	if _, body := c.call(http.MethodGet, "/v1/proxies", ""); strings.Contains(string(body), "pass") || !strings.Contains(string(body), `"id":"`+f.ns+`/a"`) {
		t.Fatalf("list %s", body)
	}
	f.proxy("b", login("unlabelled"), func(px *v1alpha1.Proxy) { px.Labels = map[string]string{"geo": "us"} })
	eventually(t, "a proxy without readable credentials is refused", func() string {
		status, body := c.call(http.MethodPost, "/v1/leases", `{"selector":{"geo":"us"}}`)
		if p := decode[problem](t, body); status != 503 || p.Reason != v1alpha1.ReasonCredentialsNotFound {
			return string(body)
		}
		return ""
	})
	if n := len(f.leases()); n != 1 {
		t.Fatalf("%d leases are stored", n)
	}
}

func TestFollowerGrantsRenewsAndReports(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	leader := f.start()
	follower := f.start(following)
	lease := follower.acquire(201, `{"target":"x.example","ttlSeconds":600}`, keyHeader, "k")
	if status, body := leader.call(http.MethodGet, "/v1/leases/"+lease.LeaseID, ""); status != 200 {
		t.Fatalf("the leader knows the follower's lease not: %d %s", status, body)
	}
	if again := leader.repeated(`{"target":"x.example","ttlSeconds":600}`, "k"); again.LeaseID != lease.LeaseID {
		t.Fatal("the leader made another lease of the key")
	}
	if status, body := follower.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/report", `{"result":"rate_limited","target":"x.example"}`); status != 204 {
		t.Fatalf("report: %d %s", status, body)
	}
	eventually(t, "the leader leases another proxy", func() string {
		if got := leader.acquire(201, `{"target":"x.example"}`); got.Proxy.ID == lease.Proxy.ID {
			return "it leased the cooling one"
		}
		return ""
	})
	for range 2 {
		if status, body := follower.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
			t.Fatalf("release: %d %s", status, body)
		}
	}
	// Nothing fits: the answer comes at once, and the key is free for another try.
	follower.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{"selector":{"geo":"moon"}}`, keyHeader, "m")
	f.proxy("m", func(px *v1alpha1.Proxy) { px.Labels = map[string]string{"geo": "moon"} })
	follower.acquire(201, `{"selector":{"geo":"moon"},"waitSeconds":20}`, keyHeader, "m")
}

func TestH9_RefusalsSayWhyAndWhenToTryAgain(t *testing.T) {
	retry := func(t *testing.T, c *core, body string) (int, string, string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, c.url+"/v1/leases", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		var p problem
		if err := json.NewDecoder(answer.Body).Decode(&p); err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, p.Code, answer.Header.Get("Retry-After")
	}
	want := func(t *testing.T, c *core, body string, status int, code string) {
		t.Helper()
		gotStatus, gotCode, after := retry(t, c, body)
		if gotStatus != status || gotCode != code || after == "" {
			t.Fatalf("%d %s, Retry-After %q, want %d %s", gotStatus, gotCode, after, status, code)
		}
	}
	t.Run("recovering", func(t *testing.T) {
		f := newFleet(t)
		f.proxy("a")
		faulty := &faults{}
		// Longer than the test looks: only what was planned is met.
		lost := faulty.plan(http.MethodGet, "/proxyleases", requestLost, requestLost, requestLost)
		c := f.start(early, withTransport(faulty.wrap))
		eventually(t, "the recovery has failed once", func() string {
			if faulty.met(lost) == 0 {
				return "not yet"
			}
			return ""
		})
		want(t, c, `{}`, 503, wire.CodeNotReady)
		if status, body := c.call(http.MethodGet, "/v1/proxies", ""); status != 200 || !strings.Contains(string(body), `"name":"a"`) {
			t.Fatalf("listing needs no leader: %d %s", status, body)
		}
		eventually(t, "the recovery succeeds", func() string {
			status, body := c.call(http.MethodPost, "/v1/leases", `{}`)
			if status != 201 {
				return string(body)
			}
			return ""
		})
	})
	t.Run("no leader", func(t *testing.T) {
		f := newFleet(t)
		f.proxy("a")
		c := f.start(following)
		want(t, c, `{}`, 503, wire.CodeNotReady)
		if n := len(f.leases()); n != 0 {
			t.Fatalf("%d leases are left behind", n)
		}
	})
	t.Run("overloaded API server", func(t *testing.T) {
		f := newFleet(t)
		f.proxy("a", capacity(1))
		faulty := &faults{}
		c := f.start(withTransport(faulty.wrap))
		// client-go repeats a few times by itself, unless the server says that it shall not.
		faulty.plan(http.MethodPost, "/proxyleases", requestRefused)
		want(t, c, `{}`, 429, wire.CodeTooManyRequests)
		c.acquire(201, `{}`)
	})
	t.Run("queue full", func(t *testing.T) {
		f := newFleet(t)
		c := f.start(withOptions(func(o *leasing.Options) { o.MaxWaiting, o.MaxWaitingPerIdentity, o.MaxWaitingPerHolder = 2, 2, 1 }))
		ctx, cancel := context.WithCancel(t.Context())
		var calls sync.WaitGroup
		wait := func(holder string, n int) {
			calls.Go(func() {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/v1/leases", strings.NewReader(`{"waitSeconds":60,"holder":"`+holder+`"}`))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "Bearer "+token)
				if answer, err := http.DefaultClient.Do(r); err == nil {
					_ = answer.Body.Close()
				}
			})
			eventually(t, "the call waits", func() string {
				if got := c.allocator.Waiting(); got != n {
					return fmt.Sprint(got)
				}
				return ""
			})
		}
		wait("one", 1)
		want(t, c, `{"waitSeconds":60,"holder":"one"}`, 429, wire.CodeHolderLimit)
		wait("two", 2)
		want(t, c, `{"waitSeconds":60,"holder":"three"}`, 429, wire.CodeQueueFull)
		cancel()
		calls.Wait()
	})
}

func TestKubernetesAuthIsRBAC(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start(func(s *coreSettings) { s.kubernetesAuth = true })
	tokenOf := func(name string) string {
		t.Helper()
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}}
		if err := f.Client.Create(t.Context(), account); err != nil {
			t.Fatal(err)
		}
		request := &authenticationv1.TokenRequest{}
		if err := f.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	crawler, stranger := tokenOf("crawler"), tokenOf("stranger")
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "lease"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"proxyleases"}, Verbs: []string{"create", "get", "update", "delete"}}},
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "lease"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "lease"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: f.ns, Name: "crawler"}},
	}
	for _, o := range []client.Object{role, binding} {
		if err := f.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	var lease httpLease
	// The API server's authorizer learns of the role by a watch of its own.
	eventually(t, "the crawler may lease", func() string {
		status, body := c.callAs(crawler, http.MethodPost, "/v1/leases", `{}`)
		if status != 201 {
			return string(body)
		}
		lease = decode[httpLease](t, body)
		return ""
	})
	if holder := f.get(lease.name()).Spec.Holder; holder != "system:serviceaccount:"+f.ns+":crawler" {
		t.Fatalf("holder %q", holder)
	}
	for _, call := range []struct {
		bearer, method, path string
		status               int
	}{
		{crawler, http.MethodGet, "/v1/leases/" + lease.LeaseID, 200},
		{crawler, http.MethodGet, "/v1/proxies", 403},
		{crawler, http.MethodPost, "/v1/leases", 201},
		{stranger, http.MethodPost, "/v1/leases", 403},
		{stranger, http.MethodDelete, "/v1/leases/" + lease.LeaseID, 403},
		{"not-a-token", http.MethodPost, "/v1/leases", 401},
		{token, http.MethodPost, "/v1/leases", 201},
		{crawler, http.MethodDelete, "/v1/leases/" + lease.LeaseID, 204},
	} {
		if status, body := c.callAs(call.bearer, call.method, call.path, "{}"); status != call.status {
			t.Errorf("%s %s: %d %s, want %d", call.method, call.path, status, body, call.status)
		}
	}
}
