package leasing

import (
	"context"
	"errors"
	"sync"
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

// Tell implements Leader: nothing is heard.
func (f leaderFunc) Tell(context.Context, peer.Notice) error { return peer.ErrNotAsked }

// lossesOfAnswers are ways in which a replica hears nothing.
var lossesOfAnswers = map[string]func(ask func()){
	"it has acted":    func(ask func()) { ask() },
	"it acts as well": func(ask func()) { go ask() },
	"it acts soon":    func(ask func()) { time.AfterFunc(3*time.Second, ask) },
	"it never acts":   func(func()) {},
}

// losing loses the answers of a leader.
func losing(leader *simProcess, lose func(ask func())) Leader {
	return leaderFunc(func(_ context.Context, call peer.Call) (peer.Answer, error) {
		lose(func() { _, _ = leader.backend.leaseForReplica(leader.ctx, call) })
		return peer.Answer{}, peer.ErrUnknown
	})
}

// What the leader makes of a request whose answer is lost, before or after the replica goes on without it, is the one lease that
// the caller gets, with a key or without one.
func TestALostAnswerOfTheLeaderIsSettledByTheLeasesName(t *testing.T) {
	for name, lose := range lossesOfAnswers {
		for _, key := range []string{"k", ""} {
			t.Run(name+"/"+key, func(t *testing.T) {
				story(t, func(t *testing.T, w *simWorld) {
					leader, other := w.reign(t, "one"), w.replica("other")
					other.backend.Leader = losing(leader, lose)
					got, replayed, err := other.backend.Lease(t.Context(), ask(key, v1alpha1.LeaseShared))
					_ = pause(t.Context(), callTimeout+time.Second)
					left := w.leasesStored()
					// The object may come while the leader keeps the only slot for the same call, and be refused for it.
					if refused, ok := errors.AsType[*httpapi.Error](err); name == "it acts as well" && ok && refused.Code == wire.CodeNoProxy && len(left) == 0 {
						return
					}
					if err != nil || len(left) != 1 || left[0] != got.Ref.Name || replayed && key == "" {
						t.Errorf("%+v, %t, %v; there are %v", got, replayed, err, left)
					}
				})
			})
		}
	}
}

// A call without a key that is refused although the leader may act yet leaves nothing behind: nobody could ask for it.
func TestALateActOfTheLeaderIsTakenBack(t *testing.T) {
	for name, lose := range lossesOfAnswers {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T, w *simWorld) {
				leader, other := w.reign(t, "one"), w.replica("other")
				held, _, err := leader.backend.Lease(t.Context(), ask("held", v1alpha1.LeaseShared))
				if err != nil {
					t.Fatal(err)
				}
				other.backend.Leader = losing(leader, lose)
				if got, _, err := other.backend.Lease(t.Context(), ask("", v1alpha1.LeaseShared)); err == nil {
					t.Fatalf("got %+v", got)
				}
				if err := leader.backend.Release(t.Context(), held.Ref); err != nil {
					t.Fatal(err)
				}
				_ = pause(t.Context(), callTimeout+time.Second)
				if left := w.leasesStored(); len(left) > 0 {
					t.Errorf("%v is left", left)
				}
			})
		})
	}
}

// A caller without a key who is gone when the leader's answer comes leaves nothing behind.
func TestACallerWhoIsGoneWhenTheLeaderAnswersLeavesNothing(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		leader, other := w.reign(t, "one"), w.replica("other")
		ctx, hangUp := context.WithCancel(t.Context())
		other.backend.Leader = leaderFunc(func(_ context.Context, call peer.Call) (peer.Answer, error) {
			defer hangUp()
			return leader.backend.leaseForReplica(leader.ctx, call)
		})
		if got, _, err := other.backend.Lease(ctx, ask("", v1alpha1.LeaseShared)); err == nil {
			t.Errorf("got %+v", got)
		}
		_ = pause(t.Context(), callTimeout)
		if left := w.leasesStored(); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	})
}

// Nobody waits at the leader: who waits has an object, which outlives the leader and has its place in the queue.
func TestWhoWaitsDoesSoByAnObject(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		leader, other := w.reign(t, "one"), w.replica("other")
		other.backend.Leader = leaderFunc(func(ctx context.Context, call peer.Call) (peer.Answer, error) {
			if call.Request.Wait != 0 {
				t.Errorf("the leader is asked to let it wait %s", call.Request.Wait)
			}
			return leader.backend.leaseForReplica(ctx, call)
		})
		held, _, err := other.backend.Lease(t.Context(), ask("held", v1alpha1.LeaseShared))
		if err != nil {
			t.Fatal(err)
		}
		request := ask("", v1alpha1.LeaseShared)
		request.Wait = 50 * time.Second
		var got httpapi.Lease
		var waiting sync.WaitGroup
		waiting.Go(func() { got, _, err = other.backend.Lease(t.Context(), request) })
		_ = pause(t.Context(), time.Second)
		if left := w.leasesStored(); len(left) != 2 {
			t.Errorf("there are %v", left)
		}
		two := w.succeed(t, leader, "two")
		if err := two.backend.Release(t.Context(), held.Ref); err != nil {
			t.Fatal(err)
		}
		if waiting.Wait(); err != nil || got.Proxy.Name != "p0" {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// A call that waits for the leader's answer counts for the limits of its holder and identity.
func TestCallsThatWaitForTheLeadersAnswerAreCounted(t *testing.T) {
	b := newBackend(t, true)
	b.calls.perHolder = 2
	request := httpapi.LeaseRequest{Namespace: "team", Mode: v1alpha1.LeaseShared, Identity: "i", Holder: "i/a"}
	asked, answered := make(chan struct{}), make(chan struct{})
	b.Leader = leaderFunc(func(context.Context, peer.Call) (peer.Answer, error) {
		asked <- struct{}{}
		<-answered
		return peer.Answer{}, nil
	})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() { _, _, _ = b.Lease(t.Context(), request) })
		<-asked
	}
	_, _, err := b.Lease(t.Context(), request)
	wantCode(t, err, wire.CodeHolderLimit)
	close(answered)
	all.Wait()
	if n := b.calls.len(); n != 0 {
		t.Errorf("%d are left", n)
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
		// One that may have been deposed without knowing it.
		leader := w.reign(t, "one")
		leader.renewed.Store(nil)
		if _, err := leader.backend.leaseForReplica(t.Context(), peer.Call{Request: ask("k", v1alpha1.LeaseShared), Name: "n"}); !errors.Is(err, peer.ErrNotAsked) {
			t.Error(err)
		}
	})
}
