package leasing

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// near is a leader with which nothing is lost.
type near struct {
	*simProcess
	late time.Duration // until it hears of what was written
}

func (n near) Lease(ctx context.Context, call peer.Call) (peer.Answer, error) {
	return n.backend.leaseForReplica(ctx, call)
}

func (n near) Tell(ctx context.Context, notice peer.Notice) error {
	_ = pause(ctx, n.late)
	return n.backend.noticed(ctx, notice)
}

// What one call has changed the next one finds, at whichever replicas they are made, however late the leader's watch is.
func TestTheNextCallFindsWhatTheOneBeforeHasChanged(t *testing.T) {
	const target = "shop.example"
	for name, c := range map[string]struct {
		mode   v1alpha1.LeaseMode
		change func(t *testing.T, b Backend, held httpapi.Lease)
		want   string
	}{
		"release": {v1alpha1.LeaseShared, func(t *testing.T, b Backend, held httpapi.Lease) {
			if err := b.Release(t.Context(), held.Ref); err != nil {
				t.Error(err)
			}
		}, ""},
		"release of an exclusive lease": {v1alpha1.LeaseExclusive, func(t *testing.T, b Backend, held httpapi.Lease) {
			if err := b.Release(t.Context(), held.Ref); err != nil {
				t.Error(err)
			}
		}, ""},
		"report": {v1alpha1.LeaseShared, func(t *testing.T, b Backend, held httpapi.Lease) {
			if err := b.Report(t.Context(), held.Ref, httpapi.Report{Target: target, Result: v1alpha1.ReportRateLimited, RetryAfter: time.Hour}); err != nil {
				t.Error(err)
			}
			if err := b.Release(t.Context(), held.Ref); err != nil {
				t.Error(err)
			}
		}, v1alpha1.ReasonCooling},
	} {
		for _, replicas := range [][3]int{{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 1, 2}, {1, 0, 1}, {1, 1, 0}, {1, 1, 1}, {1, 1, 2}, {1, 2, 0}} {
			for _, seen := range []time.Duration{0, 10 * time.Second} { // whether the watches have shown the lease
				for _, late := range []time.Duration{0, tellingPatience / 5} { // whether the leader's watch is the first to tell it
					t.Run(fmt.Sprint(name, replicas, seen, late), func(t *testing.T) {
						story(t, func(t *testing.T, w *simWorld) {
							if late == 0 {
								w.lag = 3 * time.Second
							}
							var slow atomic.Bool
							if late > 0 { // what it does by itself then takes longer
								w.meet = func(p *simProcess, verb string, id simID, _ func() error) (error, bool) {
									if slow.Load() && p.name == "one" && verb != "get" && id.kind == "Proxy" {
										_ = pause(p.ctx, tellingPatience/2)
									}
									return nil, false
								}
							}
							leader := w.reign(t, "one")
							all := []*simProcess{leader, w.replica("two"), w.replica("three")}
							for _, p := range all[1:] {
								p.backend.Leader = near{leader, late}
							}
							_ = pause(t.Context(), 10*time.Second)
							request := ask("", c.mode)
							request.Targets = []string{target}
							held, _, err := all[replicas[0]].backend.Lease(t.Context(), request)
							if err != nil {
								t.Fatal(err)
							}
							_ = pause(t.Context(), seen)
							slow.Store(true)
							c.change(t, all[replicas[1]].backend, held)
							_, _, err = all[replicas[2]].backend.Lease(t.Context(), request)
							reason := ""
							if refused, ok := errors.AsType[*httpapi.Error](err); ok {
								reason = refused.Reason
							}
							if reason != c.want || err != nil && reason == "" {
								t.Errorf("the next lease: %v", err)
							}
						})
					})
				}
			}
		}
	}
}

// A notice may come long after what it tells of, and more than once. What has begun since stays as it is.
func TestALateNoticeChangesNothing(t *testing.T) {
	for _, mode := range []v1alpha1.LeaseMode{v1alpha1.LeaseShared, v1alpha1.LeaseExclusive} {
		t.Run(string(mode), func(t *testing.T) {
			story(t, func(t *testing.T, w *simWorld) {
				leader := w.reign(t, "one")
				first, _, err := leader.backend.Lease(t.Context(), ask("k", mode))
				if err != nil {
					t.Fatal(err)
				}
				if err := leader.backend.Release(t.Context(), first.Ref); err != nil {
					t.Fatal(err)
				}
				_ = pause(t.Context(), consumedTTL+time.Second)
				second, _, err := leader.backend.Lease(t.Context(), ask("k", mode))
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					notice := peer.Notice{Released: first.Ref, Proxy: types.NamespacedName{Namespace: "team", Name: "p0"}}
					if err := leader.backend.noticed(t.Context(), notice); err != nil {
						t.Fatal(err)
					}
				}
				again, replayed, err := leader.backend.Lease(t.Context(), ask("k", mode))
				if err != nil || !replayed || again.Ref != second.Ref {
					t.Errorf("the key gives %+v, %t, %v", again.Ref, replayed, err)
				}
				_, _, err = leader.backend.Lease(t.Context(), ask("other", mode))
				wantCode(t, err, wire.CodeNoProxy)
			})
		})
	}
}

// The leader's watch may be first to tell it of a release, and the replica that was called may not know yet that the lease is
// bound: then too an exclusive lease has let go of its proxy when the release is answered.
func TestAReleaseAtAReplicaWhoseCacheIsOldFreesTheProxy(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		var slow atomic.Bool
		w.meet = func(p *simProcess, verb string, id simID, _ func() error) (error, bool) {
			if slow.Load() && p.name == "one" && verb != "get" && id.kind == "Proxy" {
				_ = pause(p.ctx, tellingPatience/2)
			}
			return nil, false
		}
		leader, two, three := w.reign(t, "one"), w.replica("two"), w.replica("three")
		three.backend.Leader = near{leader, tellingPatience / 5}
		_ = pause(t.Context(), 10*time.Second)
		held, _, err := two.backend.Lease(t.Context(), ask("", v1alpha1.LeaseExclusive)) // by an object
		if err != nil {
			t.Fatal(err)
		}
		_ = pause(t.Context(), 10*time.Second)
		old := w.stored(held.Ref.Name)
		old.Status = v1alpha1.ProxyLeaseStatus{}
		three.cache.mu.Lock()
		three.cache.view[idOf(old)] = old
		three.cache.mu.Unlock()
		slow.Store(true)
		if err := three.backend.Release(t.Context(), held.Ref); err != nil {
			t.Fatal(err)
		}
		if _, _, err := leader.backend.Lease(t.Context(), ask("", v1alpha1.LeaseExclusive)); err != nil {
			t.Errorf("the next lease: %v", err)
		}
	})
}

// A read before a release that is not answered delays it a little, and no more.
func TestAReleaseGoesOnWithoutARead(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		leader, two := w.reign(t, "one"), w.replica("two")
		two.backend.Leader = near{leader, 0}
		two.backend.Live = hangingReader{two.backend.Live}
		_ = pause(t.Context(), 10*time.Second)
		held, _, err := leader.backend.Lease(t.Context(), ask("", v1alpha1.LeaseShared))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := two.backend.Release(t.Context(), held.Ref); err != nil || time.Since(began) > 2*releaseReadTimeout {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if left := w.leasesStored(); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	})
}

// hangingReader never answers when it is asked for one object.
type hangingReader struct{ client.Reader }

func (hangingReader) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// A key whose call found no proxy is free again, at every replica, as soon as that is answered.
func TestAKeyThatWasNotServedIsFreeAtOnce(t *testing.T) {
	for again := range 2 {
		story(t, func(t *testing.T, w *simWorld) {
			w.lag = 3 * time.Second
			leader, two := w.reign(t, "one"), w.replica("two")
			two.backend.Leader = near{leader, 0}
			held, _, err := leader.backend.Lease(t.Context(), ask("held", v1alpha1.LeaseShared))
			if err != nil {
				t.Fatal(err)
			}
			_ = pause(t.Context(), 10*time.Second)
			request := ask("k", v1alpha1.LeaseShared)
			request.Wait = 5 * time.Second
			_, _, err = two.backend.Lease(t.Context(), request)
			wantCode(t, err, wire.CodeNoProxy)
			if err := leader.backend.Release(t.Context(), held.Ref); err != nil {
				t.Fatal(err)
			}
			if _, _, err := []*simProcess{leader, two}[again].backend.Lease(t.Context(), request); err != nil {
				t.Errorf("again, at replica %d: %v", again, err)
			}
		})
	}
}

// A replica that cannot ask the leader does not take what its cache still shows for a lease that exists.
func TestALeaseThatTheCacheStillShowsKeepsNoKey(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		w.reign(t, "one")
		two := w.replica("two")
		two.backend.Leader = nil
		request := ask("k", v1alpha1.LeaseShared)
		gone := wanted(request, leaseName(request))
		gone.UID = "gone"
		two.cache.mu.Lock()
		two.cache.view[idOf(gone)] = gone
		two.cache.mu.Unlock()
		if _, replayed, err := two.backend.Lease(t.Context(), request); err != nil || replayed {
			t.Errorf("replayed %t, %v", replayed, err)
		}
	})
}

// The key of a lease that was released at a replica is used up at the leader too.
func TestAKeyThatWasReleasedElsewhereIsUsedUp(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		leader, two := w.reign(t, "one"), w.replica("two")
		two.backend.Leader = near{leader, 0}
		held, _, err := two.backend.Lease(t.Context(), ask("k", v1alpha1.LeaseShared))
		if err != nil {
			t.Fatal(err)
		}
		if err := two.backend.Release(t.Context(), held.Ref); err != nil {
			t.Fatal(err)
		}
		_, _, err = leader.backend.Lease(t.Context(), ask("k", v1alpha1.LeaseShared))
		wantCode(t, err, wire.CodeKeyConsumed)
	})
}
