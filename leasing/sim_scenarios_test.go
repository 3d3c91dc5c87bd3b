package leasing

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// story runs a schedule without faults but those that the test makes, with one proxy, p0, of capacity 1.
func story(t *testing.T, tell func(t *testing.T, w *simWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(5)
		_ = w.api.create(fixture.Proxy("team", "p0", fixture.Capacity(1)))
		defer func() {
			for _, p := range w.procs {
				p.kill()
				if !p.leading.Load() { // only who led gives everything back
					p.lead(canceled())
				}
				<-p.done
			}
			_ = pause(context.Background(), time.Minute)
			synctest.Wait()
		}()
		tell(t, w)
	})
}

// replica starts a process that follows; it serves calls, and ends with the story.
func (w *simWorld) replica(name string) *simProcess {
	p := newSimProcess(w, name)
	w.procs = append(w.procs, p)
	return p
}

// reign starts a leader and waits until it has recovered. It renews its office until it is killed.
func (w *simWorld) reign(t *testing.T, name string) *simProcess {
	t.Helper()
	p := w.replica(name)
	p.lead(p.ctx)
	go func() {
		for pause(p.ctx, simRetryPeriod) == nil {
			if p.renewed.Load() != nil {
				p.renew()
			}
		}
		<-p.done
	}()
	for range 100 {
		if p.backend.Recovered() {
			return p
		}
		_ = pause(context.Background(), 100*time.Millisecond)
	}
	t.Fatal(name + " does not lead")
	return nil
}

// succeed lets a leader die and another one come.
func (w *simWorld) succeed(t *testing.T, old *simProcess, name string) *simProcess {
	t.Helper()
	old.kill()
	_ = pause(context.Background(), simLeaseDuration)
	return w.reign(t, name)
}

func ask(key string, mode v1alpha1.LeaseMode) httpapi.LeaseRequest {
	return httpapi.LeaseRequest{Namespace: "team", Proxy: "p0", Mode: mode, Holder: "h-" + key, Key: key, TTLSeconds: 600}
}

// stored is the lease with that name, or of that key; nil when there is none.
func (w *simWorld) stored(name string) *v1alpha1.ProxyLease {
	lease := &v1alpha1.ProxyLease{}
	if w.api.get(simID{"ProxyLease", types.NamespacedName{Namespace: "team", Name: name}}, lease) != nil {
		return nil
	}
	return lease
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 600 {
		if ok() {
			return
		}
		_ = pause(context.Background(), 100*time.Millisecond)
	}
	t.Fatal("in vain waited: " + what)
}

func TestR10_ACreationThatLandsAfterTheNextLeadersList(t *testing.T) {
	for _, late := range []v1alpha1.LeaseMode{v1alpha1.LeaseShared, v1alpha1.LeaseExclusive} {
		for _, next := range []v1alpha1.LeaseMode{v1alpha1.LeaseShared, v1alpha1.LeaseExclusive} {
			t.Run(fmt.Sprint(late, " lands on ", next), func(t *testing.T) {
				story(t, func(t *testing.T, w *simWorld) {
					var mu sync.Mutex
					var land func() error
					w.meet = func(p *simProcess, verb string, _ simID, commit func() error) (error, bool) {
						if p.name == "one" && verb == "create" {
							mu.Lock()
							defer mu.Unlock()
							land = commit
							return errReset, true
						}
						return nil, false
					}
					one, other := w.reign(t, "one"), w.replica("other")
					request := ask("late", late)
					_, _, err := one.backend.Lease(t.Context(), request)
					wantCode(t, err, wire.CodeOutcomeUnknown)
					two := w.succeed(t, one, "two")
					promised, _, err := two.backend.Lease(t.Context(), ask("next", next))
					if err != nil {
						t.Fatal(err)
					}
					mu.Lock()
					err = land()
					mu.Unlock()
					if err != nil {
						t.Fatal(err)
					}
					// Its caller asks again, everywhere, at once and later.
					again := map[*simProcess]bool{}
					for range 20 {
						for _, p := range []*simProcess{other, two} {
							if _, _, err := p.backend.Lease(t.Context(), request); err == nil {
								again[p] = true
							}
						}
						_ = pause(t.Context(), 200*time.Millisecond)
					}
					key := types.NamespacedName{Namespace: "team", Name: "p0"}
					landed, uid := w.stored(leaseName(request)), w.uidOf("p0")
					if late == v1alpha1.LeaseShared && next == v1alpha1.LeaseShared {
						if !again[other] || !again[two] || !record.Holds(landed) || !two.backend.ledger.Overcommitted(key, uid) {
							t.Fatalf("promised again: %d replicas; over: %v; %+v", len(again), two.backend.ledger.Overcommitted(key, uid), landed.Status)
						}
					} else {
						bound := meta.FindStatusCondition(landed.Status.Conditions, v1alpha1.ConditionBound)
						if len(again) > 0 || landed.Status.Phase != v1alpha1.LeaseRevoked || bound.Reason != v1alpha1.ReasonConflict {
							t.Fatalf("promised again: %d replicas; %+v", len(again), landed.Status)
						}
					}
					if _, err := two.backend.Get(t.Context(), promised.Ref); err != nil || !record.Holds(w.stored(promised.Ref.Name)) {
						t.Fatalf("the lease of the new leader is lost: %v", err)
					}
				})
			})
		}
	}
}

// A binding that a former leader has sent is a promise as soon as it lands.
func TestR10_ABindingThatLandsAfterTheNextLeadersList(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		var mu sync.Mutex
		var land func() error
		reachable := false
		w.meet = func(p *simProcess, verb string, id simID, commit func() error) (error, bool) {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case verb != "apply" || id.key.Name != "waits":
				return nil, false
			case p.name == "one":
				land = commit
				return errReset, true
			}
			// The successor cannot write it either, so it cannot tell what will become of it.
			return errReset, !reachable
		}
		sent := func() func() error {
			mu.Lock()
			defer mu.Unlock()
			return land
		}
		one := w.reign(t, "one")
		lease := fixture.Lease("team", "waits", func(l *v1alpha1.ProxyLease) { l.Labels = map[string]string{"cr": "true"} })
		_ = w.api.create(lease)
		eventually(t, "the first leader binds it", func() bool { return sent() != nil })
		two := w.succeed(t, one, "two")
		if _, _, err := two.backend.Lease(t.Context(), ask("next", v1alpha1.LeaseExclusive)); err == nil {
			t.Fatal("an exclusive lease was given while the former leader's binding may come")
		}
		if err := sent()(); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		reachable = true
		mu.Unlock()
		eventually(t, "the binding counts", func() bool { return two.backend.ledger.Load(w.uidOf("p0")) == 1 })
		if _, _, err := two.backend.Lease(t.Context(), ask("next", v1alpha1.LeaseExclusive)); err == nil {
			t.Fatal("an exclusive lease was given beside it")
		}
		_ = w.api.remove(idOf(lease), nil)
		eventually(t, "an exclusive lease is given", func() bool {
			_, _, err := two.backend.Lease(t.Context(), ask("then", v1alpha1.LeaseExclusive))
			return err == nil
		})
	})
}

func TestR11_ALeaderThatLostItsOfficeAfterTheWritePromisesNothing(t *testing.T) {
	for _, mode := range []v1alpha1.LeaseMode{v1alpha1.LeaseShared, v1alpha1.LeaseExclusive} {
		t.Run(string(mode), func(t *testing.T) {
			story(t, func(t *testing.T, w *simWorld) {
				var mu sync.Mutex
				deposed, writes := false, 0
				w.meet = func(p *simProcess, verb string, id simID, commit func() error) (error, bool) {
					mu.Lock()
					defer mu.Unlock()
					if p.name != "one" || verb == "get" || verb == "list" {
						return nil, false
					}
					if deposed {
						writes++
					}
					if verb == "create" && id.kind == "ProxyLease" {
						err := commit()
						deposed = true
						p.renewed.Store(nil)
						return err, true
					}
					return nil, false
				}
				one := w.reign(t, "one")
				request := ask("k", mode)
				_, _, err := one.backend.Lease(t.Context(), request)
				wantCode(t, err, wire.CodeNotReady)
				written := w.stored(leaseName(request))
				_ = pause(t.Context(), simLeaseDuration)
				two := w.reign(t, "two") // the former one goes on, too
				got, replayed, err := two.backend.Lease(t.Context(), request)
				if err != nil || !replayed || got.Ref.UID != written.UID {
					t.Fatalf("the retry got %+v, %v", got, err)
				}
				_ = pause(t.Context(), time.Minute)
				mu.Lock()
				defer mu.Unlock()
				if writes != 0 {
					t.Fatalf("the deposed leader wrote %d times", writes)
				}
			})
		})
	}
}

func TestR7_TwoExclusiveLeasesOnOneProxyFoundAtRecovery(t *testing.T) {
	lease := func(name string, epoch, seq int64, mode v1alpha1.LeaseMode) *v1alpha1.ProxyLease {
		return fixture.Lease("team", name, func(l *v1alpha1.ProxyLease) {
			l.Spec.Mode = mode
			l.Spec.TTLSeconds = 600
			l.Spec.Grant = &v1alpha1.LeaseGrant{
				ProxyName: "p0", ProxyUID: "u1", InstanceID: "i-p0", Epoch: epoch, Seq: seq, ExpireTime: metav1.NewMicroTime(time.Now().Add(10 * time.Minute)),
			}
		})
	}
	for name, c := range map[string]struct {
		named string
		want  string
		third v1alpha1.LeaseMode
	}{
		"none is named: the first grant":        {want: "b"},
		"the named one":                         {named: "a", want: "a"},
		"the named one, although it is earlier": {named: "b", want: "b"},
		"none is named: a shared one":           {want: "c", third: v1alpha1.LeaseShared},
		"the named one, with a shared one":      {named: "a", want: "a", third: v1alpha1.LeaseShared},
	} {
		t.Run(name, func(t *testing.T) {
			for range 5 { // whatever order they are read in
				story(t, func(t *testing.T, w *simWorld) {
					leases := []*v1alpha1.ProxyLease{lease("a", 3, 1, v1alpha1.LeaseExclusive), lease("b", 2, 9, v1alpha1.LeaseExclusive)}
					if c.third != "" {
						leases = append(leases, lease("c", 9, 9, c.third))
					}
					for _, l := range leases {
						_ = w.api.create(l)
						if l.Name == c.named {
							_, _ = w.api.change(simID{"Proxy", types.NamespacedName{Namespace: "team", Name: "p0"}}, "", func(o client.Object) error {
								o.(*v1alpha1.Proxy).Status.Exclusive = &v1alpha1.Exclusive{LeaseUID: l.UID, Epoch: l.Spec.Grant.Epoch}
								return nil
							})
						}
					}
					w.reign(t, "one")
					_ = pause(t.Context(), 5*time.Second)
					var stay []string
					for _, l := range leases {
						switch now := w.stored(l.Name); {
						case record.Holds(now):
							stay = append(stay, l.Name)
						case meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionBound).Reason != v1alpha1.ReasonConflict:
							t.Fatalf("%+v", now.Status)
						}
					}
					if strings.Join(stay, " ") != c.want {
						t.Fatalf("%v stay, want %s", stay, c.want)
					}
				})
			}
		})
	}
}

func TestR12_EpochsGrowWhateverIsStored(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		// There is no record of the election here at all, nothing is stored of the first one, and the next ones have its name.
		one := w.reign(t, "core")
		first := one.backend.ledger.Epoch()
		two := w.succeed(t, one, "core")
		second := two.backend.ledger.Epoch()
		if second <= first || first == 0 {
			t.Fatalf("epochs %d and %d", first, second)
		}
		// A leader whose clock was an hour ahead.
		ahead := time.Now().Add(time.Hour).UnixMilli()
		_ = w.api.create(fixture.Lease("team", "ahead", func(l *v1alpha1.ProxyLease) {
			l.Spec.Grant = &v1alpha1.LeaseGrant{ProxyName: "p0", ProxyUID: "u1", Epoch: ahead, Seq: 1, ExpireTime: metav1.NewMicroTime(time.Now())}
		}))
		if third := w.succeed(t, two, "core").backend.ledger.Epoch(); third != ahead+1 {
			t.Fatalf("epoch %d after %d", third, ahead)
		}
	})
}

func TestH11_TheLeaderChangesWhileAFollowerWaits(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		one, other := w.reign(t, "one"), w.replica("other")
		held, _, err := one.backend.Lease(t.Context(), ask("held", v1alpha1.LeaseShared))
		if err != nil {
			t.Fatal(err)
		}
		request := ask("waits", v1alpha1.LeaseShared)
		request.Wait = 50 * time.Second
		var got httpapi.Lease
		var waiting sync.WaitGroup
		waiting.Go(func() { got, _, err = other.backend.Lease(t.Context(), request) })
		_ = pause(t.Context(), time.Second)
		two := w.succeed(t, one, "two")
		if err := two.backend.Release(t.Context(), held.Ref); err != nil {
			t.Fatal(err)
		}
		waiting.Wait()
		if err != nil || got.Ref.Name != leaseName(request) {
			t.Fatalf("got %+v, %v", got, err)
		}
		if leases := w.leasesStored(); len(leases) != 1 || two.backend.ledger.Load(w.uidOf("p0")) != 1 {
			t.Fatalf("%d leases", len(leases))
		}
	})
}

func TestH13_ARenewalIsDurableBeforeItIsAnswered(t *testing.T) {
	for _, by := range []string{"the leader", "another replica"} {
		t.Run(by, func(t *testing.T) {
			story(t, func(t *testing.T, w *simWorld) {
				one, other := w.reign(t, "one"), w.replica("other")
				lease, _, err := one.backend.Lease(t.Context(), ask("k", v1alpha1.LeaseShared))
				if err != nil {
					t.Fatal(err)
				}
				_ = pause(t.Context(), 500*time.Second)
				p := other
				if by == "the leader" {
					p = one
				}
				renewed, err := p.backend.Renew(t.Context(), lease.Ref)
				if err != nil || time.Until(renewed.ExpireTime) < 599*time.Second {
					t.Fatalf("renewed until %s: %v", renewed.ExpireTime, err)
				}
				w.succeed(t, one, "two")
				_ = pause(t.Context(), time.Until(renewed.ExpireTime)-100*time.Millisecond)
				if !record.Holds(w.stored(lease.Ref.Name)) {
					t.Fatal("the renewal was forgotten")
				}
				eventually(t, "it ends", func() bool { l := w.stored(lease.Ref.Name); return l == nil || record.Finished(l) })
			})
		})
	}
}

func TestT23_ReleaseExpiryAndDeletionAtOnceLowerTheLoadOnce(t *testing.T) {
	for seed := range uint64(20) {
		story(t, func(t *testing.T, w *simWorld) {
			w.seed = 5 + 10*seed // other delays
			_ = w.api.create(fixture.Proxy("team", "many", fixture.Capacity(10)))
			one, other := w.reign(t, "one"), w.replica("other")
			lease := func(key string, ttl int32) httpapi.Lease {
				r := ask(key, v1alpha1.LeaseShared)
				r.Proxy, r.TTLSeconds = "many", ttl
				got, _, err := one.backend.Lease(t.Context(), r)
				if err != nil {
					t.Fatal(err)
				}
				return got
			}
			lease("stays", 3600)
			ends := lease("ends", 10)
			uid := w.uidOf("many")
			_ = pause(t.Context(), time.Until(ends.ExpireTime)-15*time.Millisecond)
			var all sync.WaitGroup
			for _, p := range []*simProcess{one, other, one} {
				all.Go(func() { _ = p.backend.Release(context.Background(), ends.Ref) })
			}
			all.Go(func() { _ = w.api.remove(simID{"Proxy", types.NamespacedName{Namespace: "team", Name: "many"}}, nil) })
			all.Wait()
			_ = pause(t.Context(), 10*time.Second)
			if n := one.backend.ledger.Load(uid); n != 1 {
				t.Fatalf("load %d, and one lease is left", n)
			}
		})
	}
}
