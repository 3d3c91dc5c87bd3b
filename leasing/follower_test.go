package leasing

import (
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// creations lets the creation of leases be interfered with.
func creations(t *testing.T, b Backend, create func(c client.WithWatch, lease *v1alpha1.ProxyLease) error) {
	t.Helper()
	b.Client = interceptor.NewClient(b.Client.(client.WithWatch), interceptor.Funcs{
		Create: func(_ context.Context, c client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			return create(c, o.(*v1alpha1.ProxyLease))
		},
	})
}

// A creation that was not answered may have happened: a follower says so, and without a key it takes it back.
func TestFollowerDoesNotCallAnUnansweredCreationRefused(t *testing.T) {
	for name, answer := range map[string]error{
		"no answer": errors.New("connection reset"), "internal error": apierrors.NewInternalError(errors.New("webhook")),
		"timeout": apierrors.NewTimeoutError("busy", 1),
	} {
		for _, key := range []string{"", "k"} {
			t.Run(name+"/"+key, func(t *testing.T) {
				b := newBackend(t, true, fixture.Proxy("team", "p"))
				creations(t, b, func(c client.WithWatch, lease *v1alpha1.ProxyLease) error {
					if err := c.Create(t.Context(), lease); err != nil {
						return err
					}
					return answer
				})
				_, _, err := b.Lease(t.Context(), httpapi.LeaseRequest{Namespace: "team", Mode: v1alpha1.LeaseShared, Holder: "h", Key: key})
				wantCode(t, err, wire.CodeOutcomeUnknown)
				if left := leases(t, b); key != "" && left != 1 {
					t.Fatalf("%d leases", left)
				}
				late := time.After(10 * time.Second)
				for key == "" && leases(t, b) > 0 {
					select {
					case <-late:
						t.Fatal("the lease stays")
					case <-time.After(time.Millisecond):
					}
				}
			})
		}
	}
}

func leases(t *testing.T, b Backend) int {
	t.Helper()
	list := &v1alpha1.ProxyLeaseList{}
	if err := b.Live.List(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

// A follower limits the calls that wait as the leader does.
func TestFollowerLimitsTheCallsThatWait(t *testing.T) {
	b := newBackend(t, true)
	b.calls.max, b.calls.perHolder = 3, 2
	request := func(holder string) httpapi.LeaseRequest {
		return httpapi.LeaseRequest{Namespace: "team", Mode: v1alpha1.LeaseShared, Identity: holder, Holder: holder}
	}
	var leave []func()
	for _, holder := range []string{"a", "a", "b"} {
		l, err := b.calls.enter(callerOf(request(holder)))
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, l)
	}
	ask := func(holder string) error {
		_, _, err := b.Lease(t.Context(), request(holder))
		return err
	}
	wantCode(t, ask("c"), wire.CodeQueueFull)
	leave[2]()
	wantCode(t, ask("a"), wire.CodeHolderLimit)
	if n := leases(t, b); n != 0 {
		t.Fatalf("%d leases were created", n)
	}
	leave[0]()
	leave[1]()
	if b.calls.len() != 0 || len(b.calls.holders)+len(b.calls.identities) != 0 {
		t.Fatalf("left %d of %v, %v", b.calls.len(), b.calls.holders, b.calls.identities)
	}
}
