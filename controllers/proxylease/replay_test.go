package proxylease

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// A full fleet is where requests are repeated. Who repeats one whose lease exists gets that lease, whoever waits meanwhile and
// whatever limit is reached, at the leader and at a follower.
func TestH3_RepeatedRequestIsAnsweredWhileOthersWait(t *testing.T) {
	for name, follows := range map[string]bool{"leader": false, "follower": true} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t)
			f.proxy("a", capacity(1))
			limit := withOptions(func(o *leasing.Options) { o.MaxWaitingPerHolder = 1 })
			leader := f.start(limit)
			c := leader
			if follows {
				c = f.start(limit, following)
			}
			lease := c.acquire(201, `{}`, keyHeader, "k")
			var waiting sync.WaitGroup
			waiting.Go(func() { c.acquire(201, `{"waitSeconds":60}`) })
			eventually(t, "a call waits", func() string {
				if leader.allocator.Waiting() == 0 {
					return "none"
				}
				return ""
			})
			for _, body := range []string{`{}`, `{"waitSeconds":30}`} {
				if again := c.acquire(200, body, keyHeader, "k"); again.LeaseID != lease.LeaseID {
					t.Errorf("%s has another lease", body)
				}
			}
			if status, _ := c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
				t.Fatalf("release: %d", status)
			}
			waiting.Wait()
		})
	}
}

// A release that comes late, when the key has leased again, says nothing about the new lease.
func TestH2_LateReleaseOfAFormerLeaseLeavesTheKeyAlone(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	c := f.start()
	former := c.acquire(201, `{}`, keyHeader, "k")
	if err := f.Client.Delete(t.Context(), f.get(former.name())); err != nil {
		t.Fatal(err)
	}
	var lease httpLease
	eventually(t, "the key leases again", func() string {
		status, body := c.call(http.MethodPost, "/v1/leases", `{}`, keyHeader, "k")
		if status != 201 {
			return fmt.Sprint(status, string(body))
		}
		lease = decode[httpLease](t, body)
		return ""
	})
	if status, _ := c.call(http.MethodDelete, "/v1/leases/"+former.LeaseID, ""); status != 204 {
		t.Fatalf("release: %d", status)
	}
	if again := c.acquire(200, `{}`, keyHeader, "k"); again.LeaseID != lease.LeaseID {
		t.Fatal("the key has another lease")
	}
}

// A proxy whose credentials cannot be read holds nobody up: the others are leased, and it alone is refused.
func TestLeaseOfAProxyWithoutUsableCredentials(t *testing.T) {
	f := newFleet(t)
	for name, data := range map[string]map[string][]byte{
		"key-only": {"username": []byte("an-api-key"), "password": {}},
		"nameless": {"username": {}, "password": []byte("p")},
		"half":     {"username": []byte("u")},
	} {
		secret := &corev1.Secret{Data: data}
		secret.ObjectMeta = metav1.ObjectMeta{Namespace: f.ns, Name: name, Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}}
		if err := f.Client.Create(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"nameless", "half", "missing", "key-only"} {
		f.proxy(name, capacity(1), func(px *v1alpha1.Proxy) { px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: name} })
	}
	c := f.start()
	lease := c.acquire(201, `{}`)
	if lease.proxyName() != "key-only" {
		t.Fatalf("leased %s", lease.proxyName())
	}
	if lease.Proxy.Username != "an-api-key" || lease.Proxy.Password != "" {
		t.Fatalf("credentials are %q %q", lease.Proxy.Username, lease.Proxy.Password)
	}
	for _, body := range []string{`{}`, `{"proxy":"half"}`, `{"proxy":"missing","waitSeconds":1}`} {
		if problem := c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", body); problem.Reason != v1alpha1.ReasonCredentialsNotFound {
			t.Errorf("%s: %+v", body, problem)
		}
	}
	for _, name := range []string{"nameless", "half", "missing"} {
		if load, known := c.allocator.CountLeases(f.getProxy(name).UID); load != 0 || !known {
			t.Errorf("%s carries %d leases", name, load)
		}
	}
}
