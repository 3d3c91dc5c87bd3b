package proxylease

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
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
	c.refused(422, httpapi.CodeKeyReused, http.MethodPost, "/v1/leases", `{"target":"y.example"}`, keyHeader, "k")
	c.acquire(201, `{"target":"x.example","holder":"another"}`, keyHeader, "k")
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
		t.Fatalf("release: %d", status)
	}
	c.refused(409, httpapi.CodeKeyConsumed, http.MethodPost, "/v1/leases", `{"target":"x.example"}`, keyHeader, "k")
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
	c.refused(503, httpapi.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
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
	c.refused(503, httpapi.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`)
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
	gone := make(chan error, 1)
	go func() {
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		gone <- err
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
		c.refused(404, httpapi.CodeLeaseNotFound, http.MethodGet, "/v1/leases/"+id, "")
		c.refused(404, httpapi.CodeLeaseNotFound, http.MethodPost, "/v1/leases/"+id+"/renew", "")
		c.refused(404, httpapi.CodeLeaseNotFound, http.MethodPost, "/v1/leases/"+id+"/report", `{"result":"banned","target":"x.example"}`)
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
	if p := c.refused(410, httpapi.CodeLeaseEnded, http.MethodGet, "/v1/leases/"+lease.LeaseID, ""); p.Reason != "Gone" {
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
		p := c.refused(410, httpapi.CodeLeaseEnded, call[0], "/v1/leases/"+lease.LeaseID+call[1], "")
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
	if again := leader.acquire(200, `{"target":"x.example","ttlSeconds":600}`, keyHeader, "k"); again.LeaseID != lease.LeaseID {
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
	follower.refused(503, httpapi.CodeNoProxy, http.MethodPost, "/v1/leases", `{"selector":{"geo":"moon"}}`, keyHeader, "m")
	f.proxy("m", func(px *v1alpha1.Proxy) { px.Labels = map[string]string{"geo": "moon"} })
	follower.acquire(201, `{"selector":{"geo":"moon"},"waitSeconds":20}`, keyHeader, "m")
}
