package leasing

import (
	"context"
	"errors"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// leaderFunc is a function as Leader.
type leaderFunc func(ctx context.Context, call peer.Call) (peer.Answer, error)

func (f leaderFunc) Lease(ctx context.Context, call peer.Call) (peer.Answer, error) {
	return f(ctx, call)
}

// What the leader makes of a request whose answer is lost, before or after the caller has gone on without it, is one lease
// with a key, which the caller gets, and none without one.
func TestALostAnswerOfTheLeaderIsSettledByTheLeasesName(t *testing.T) {
	for name, lose := range map[string]func(ask func() (peer.Answer, error)){
		"it has acted":    func(ask func() (peer.Answer, error)) { _, _ = ask() },
		"it acts as well": func(ask func() (peer.Answer, error)) { go ask() }, //nolint:errcheck // nobody hears it
		"it acts soon": func(ask func() (peer.Answer, error)) {
			time.AfterFunc(3*time.Second, func() { _, _ = ask() })
		},
		"it never acts": func(func() (peer.Answer, error)) {},
	} {
		for _, key := range []string{"k", ""} {
			t.Run(name+"/"+key, func(t *testing.T) {
				story(t, func(t *testing.T, w *simWorld) {
					leader, other := w.reign(t, "one"), w.replica("other")
					other.backend.Leader = leaderFunc(func(_ context.Context, call peer.Call) (peer.Answer, error) {
						lose(func() (peer.Answer, error) { return leader.backend.leaseForReplica(leader.ctx, call) })
						return peer.Answer{}, peer.ErrUnknown
					})
					request := ask(key, v1alpha1.LeaseShared)
					got, _, err := other.backend.Lease(t.Context(), request)
					_ = pause(t.Context(), callTimeout+time.Second)
					left := w.leasesStored()
					if key == "" {
						if refused, ok := errors.AsType[*httpapi.Error](err); !ok || refused.Code != wire.CodeOutcomeUnknown || len(left) != 0 {
							t.Errorf("%+v, %v; %v is left", got, err, left)
						}
						return
					}
					// The object may come while the leader keeps the only slot for the same call, and be refused for it.
					if refused, ok := errors.AsType[*httpapi.Error](err); name == "it acts as well" && ok && refused.Code == wire.CodeNoProxy && len(left) == 0 {
						return
					}
					if err != nil || len(left) != 1 || got.Ref.Name != leaseName(request) || left[0] != got.Ref.Name {
						t.Errorf("%+v, %v; there are %v", got, err, left)
					}
				})
			})
		}
	}
}

// A leader that can be asked makes the lease under the name that it is told, so that the key means it at every replica.
func TestTheLeaderMakesTheLeaseThatAReplicaNames(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		leader, other := w.reign(t, "one"), w.replica("other")
		other.backend.Leader = leaderFunc(leader.backend.leaseForReplica)
		request := ask("k", v1alpha1.LeaseShared)
		got, replayed, err := other.backend.Lease(t.Context(), request)
		if err != nil || replayed || got.Ref.Name != leaseName(request) {
			t.Fatalf("%+v, %t, %v", got, replayed, err)
		}
		again, replayed, err := leader.backend.Lease(t.Context(), request)
		if err != nil || !replayed || again.Ref != got.Ref {
			t.Errorf("%+v, %t, %v", again, replayed, err)
		}
	})
}

// Who does not lead acts for nobody.
func TestOnlyALeaderActsForAReplica(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		other := w.replica("other")
		if _, err := other.backend.leaseForReplica(t.Context(), peer.Call{Request: ask("k", v1alpha1.LeaseShared), Name: "n"}); !errors.Is(err, peer.ErrNotAsked) {
			t.Error(err)
		}
		if left := w.leasesStored(); len(left) > 0 {
			t.Errorf("it made %v", left)
		}
	})
}
