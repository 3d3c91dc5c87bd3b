package leasing

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// wantCode fails the test unless err is that refusal.
func wantCode(t *testing.T, err error, code string) {
	t.Helper()
	if refused, ok := errors.AsType[*httpapi.Error](err); !ok || refused.Code != code {
		t.Fatalf("got %v, want %s", err, code)
	}
}

// A stored lease is promised again only while its proxy agrees: a creation may land after its leader was deposed.
func TestReplayAsksTheProxy(t *testing.T) {
	for _, c := range []struct {
		name  string
		mode  v1alpha1.LeaseMode
		named types.UID
		ok    bool
	}{
		{"exclusive, named", v1alpha1.LeaseExclusive, "team-l", true},
		{"exclusive, not named", v1alpha1.LeaseExclusive, "", false},
		{"exclusive, another is named", v1alpha1.LeaseExclusive, "other", false},
		{"shared, none is named", v1alpha1.LeaseShared, "", true},
		{"shared, an exclusive one is named", v1alpha1.LeaseShared, "other", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			px := fixture.Proxy("team", "p", func(px *v1alpha1.Proxy) {
				if c.named != "" {
					px.Status.Exclusive = &v1alpha1.Exclusive{LeaseUID: c.named, Epoch: 1}
				}
			})
			r := httpapi.LeaseRequest{Namespace: "team", Mode: c.mode, Holder: "h", Key: "k", Wait: time.Second}
			lease := bound(px, "l")
			lease.Name, lease.Spec.Mode = leaseName(r), c.mode
			lease.Annotations = map[string]string{record.AnnotationRequestHash: requestHash(r)}
			b := newBackend(t, true, px, lease)
			got, replayed, err := b.Lease(t.Context(), r)
			if c.ok {
				if err != nil || !replayed || got.Ref.UID != lease.UID {
					t.Fatalf("got %+v, %v", got, err)
				}
				return
			}
			wantCode(t, err, wire.CodeOutcomeUnknown)
		})
	}
}

// A cooldown that is stored between the change of the exit and its clean-up is promised and stays.
func TestNewExitKeepsNewCooldowns(t *testing.T) {
	cooldowns := func(targets ...string) func(*v1alpha1.Proxy) {
		return func(px *v1alpha1.Proxy) {
			px.Status.Cooldowns = nil
			for _, target := range targets {
				px.Status.Cooldowns = append(px.Status.Cooldowns, cooling(target, record.InstanceID(px)))
			}
		}
	}
	before := fixture.Proxy("team", "p", cooldowns("old.example"))
	after := fixture.Proxy("team", "p", cooldowns("new.example", "old.example"), func(px *v1alpha1.Proxy) {
		px.ResourceVersion = "5"
		px.Status.Health.EgressIP, px.Status.EgressIdentity = "198.51.100.7", "ip/198.51.100.7"
	})
	b := newBackend(t, true, after)
	b.ledger.Open()
	b.ledger.ObserveProxy(before)
	b.onProxy(after)
	if n := b.chores.Len(); n != 1 {
		t.Fatalf("%d chores", n)
	}
	c, _ := b.chores.Get()
	if err := b.do(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	b.chores.Done(c)
	px := &v1alpha1.Proxy{}
	if err := b.Live.Get(t.Context(), client.ObjectKeyFromObject(after), px); err != nil {
		t.Fatal(err)
	}
	if len(px.Status.Cooldowns) != 1 || px.Status.Cooldowns[0].Target != "new.example" {
		t.Fatalf("cooldowns %+v", px.Status.Cooldowns)
	}
	// The event of a state that our own write has overtaken is no change back.
	b.onProxy(before)
	if n := b.chores.Len(); n != 0 {
		t.Fatalf("%d chores after a late event", n)
	}
}

// cooling is a cooldown of an hour.
func cooling(target, instanceID string) v1alpha1.Cooldown {
	return v1alpha1.Cooldown{Target: target, InstanceID: instanceID, Hits: 1, UntilTime: &metav1.Time{Time: fixture.Start.Add(time.Hour)}}
}
