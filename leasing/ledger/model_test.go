package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// model is the API server as a sequential program sees it, and the ledger's duty in one line: what is on the server plus
// what is being written never exceeds a capacity.
type model struct {
	rv       int
	stored   map[string]*v1alpha1.ProxyLease // live objects
	writing  map[string]Reservation
	late     []*v1alpha1.ProxyLease // states whose events are still under way
	proxies  map[string]*v1alpha1.Proxy
	sequence int
	now      time.Time
}

// exclusives is how many exclusive leases a proxy carries.
func (m *model) exclusives(name string) (n int) {
	for _, res := range m.writing {
		if res.Binding.ProxyName == name && res.Mode == v1alpha1.LeaseExclusive {
			n++
		}
	}
	for _, lease := range m.stored {
		if lease.Status.Phase == "" && lease.Spec.Grant.ProxyName == name && lease.Spec.Mode == v1alpha1.LeaseExclusive {
			n++
		}
	}
	return n
}

// load is how many leases a proxy carries by what is stored and being written.
func (m *model) load(name string) (n int) {
	for _, res := range m.writing {
		if res.Binding.ProxyName == name {
			n++
		}
	}
	for _, lease := range m.stored {
		if lease.Status.Phase == "" && lease.Spec.Grant.ProxyName == name {
			n++
		}
	}
	return n
}

// may tells whether a request may be given a proxy, claims left aside.
func (m *model) may(px *v1alpha1.Proxy, r Request) bool {
	load, limit := m.load(px.Name), int(*px.Spec.Capacity)
	switch {
	case Closed(px) != "", limit > 0 && load >= limit, m.exclusives(px.Name) > 0, r.Mode == v1alpha1.LeaseExclusive && load > 0:
		return false
	case r.ProxyName != "" && r.ProxyName != px.Name, slices.Contains(r.Excluded, px.Name):
		return false
	}
	for _, c := range px.Status.Cooldowns {
		if slices.Contains(r.Targets, c.Target) && c.UntilTime.After(m.now) {
			return false
		}
	}
	return true
}

// judge checks an answer of the ledger: what it gives may be given, and has the least load of all that may; it refuses only
// when there is none, or others have claimed it.
func (m *model) judge(t *rapid.T, l *Ledger, r Request, res Reservation, err error) {
	if err == nil {
		if px := m.proxies[res.Binding.ProxyName]; !m.may(px, r) {
			t.Fatalf("%s was given to %+v", px.Name, r)
		}
	}
	for name, px := range m.proxies {
		if !m.may(px, r) || l.proxies[types.NamespacedName{Namespace: ns, Name: name}].claim != "" {
			continue
		}
		if err != nil {
			t.Fatalf("%s may be given to %+v, and it was refused: %v", name, r, err)
		}
		if given := res.Binding.ProxyName; name != given && m.load(name) < m.load(given) && r.Claim == "" {
			t.Fatalf("%s was given although %s carries less", given, name)
		}
	}
}

func (m *model) next() string {
	m.rv++
	return strconv.Itoa(m.rv)
}

// TestLedgerAgainstModel runs random histories of grants, lost answers, releases, expiries and late events.
func TestLedgerAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{rv: 10, now: fixture.Start, stored: map[string]*v1alpha1.ProxyLease{}, writing: map[string]Reservation{}, proxies: map[string]*v1alpha1.Proxy{}}
		l := New(nil)
		l.Open()
		for i := range 3 {
			name := fmt.Sprint("p", i)
			px := fixture.Proxy(ns, name, fixture.Capacity(int32(1+i)))
			m.proxies[name] = px
			l.ObserveProxy(px)
		}
		l.Start(1, "")
		pick := func(t *rapid.T, names []string) string {
			if len(names) == 0 {
				t.Skip("nothing to pick")
			}
			slices.Sort(names)
			return rapid.SampledFrom(names).Draw(t, "which")
		}
		t.Repeat(map[string]func(*rapid.T){
			"reserve": func(t *rapid.T) {
				m.sequence++
				r := request(fmt.Sprint("l", m.sequence))
				if rapid.IntRange(0, 3).Draw(t, "exclusive") == 0 {
					r.Mode = v1alpha1.LeaseExclusive
				}
				claimed := map[string]string{}
				for key, c := range l.claims {
					if c.proxy != nil {
						claimed[c.proxy.key.Name] = key
					}
				}
				if r.Mode == v1alpha1.LeaseExclusive && rapid.Bool().Draw(t, "waited") {
					r.Claim = rapid.SampledFrom([]string{"one", "two"}).Draw(t, "claim")
				}
				if rapid.IntRange(0, 3).Draw(t, "pin") == 0 {
					r.ProxyName, r.Selector = rapid.SampledFrom([]string{"p0", "p1", "p2", "none"}).Draw(t, "proxy"), nil
				}
				if rapid.Bool().Draw(t, "target") {
					r.Targets = []string{rapid.SampledFrom([]string{"x", "y"}).Draw(t, "name")}
				}
				if rapid.IntRange(0, 3).Draw(t, "exclude") == 0 {
					r.Excluded = []string{rapid.SampledFrom([]string{"p0", "p1", "p2"}).Draw(t, "excluded")}
				}
				res, err := l.Reserve(r, m.now)
				m.judge(t, l, r, res, err)
				if key := claimed[res.Binding.ProxyName]; err == nil && key != "" && key != r.Claim {
					t.Fatalf("%s was given to %+v, although %s claims it", res.Binding.ProxyName, r, key)
				}
				if err == nil && r.Claim != "" && l.claims[r.Claim] != nil {
					t.Fatalf("the claim of a granted lease goes on")
				}
				if _, ok := errors.AsType[*NoProxyError](err); ok {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				m.writing[r.Lease.Name] = res
			},
			"claim": func(t *rapid.T) {
				r := request("x", exclusive)
				if rapid.Bool().Draw(t, "pinned") {
					r.ProxyName, r.Selector = rapid.SampledFrom([]string{"p0", "p1", "p2", "none"}).Draw(t, "proxy"), nil
				}
				key := rapid.SampledFrom([]string{"one", "two"}).Draw(t, "key")
				if until := l.Claim(key, r, m.now); !until.IsZero() && (!until.After(m.now) || until.Sub(m.now) > MaxClaimWindow) {
					t.Fatalf("claimed until %v, now %v", until, m.now)
				}
			},
			"withdraw": func(t *rapid.T) { l.Withdraw(rapid.SampledFrom([]string{"one", "two"}).Draw(t, "key")) },
			"time": func(t *rapid.T) {
				m.now = m.now.Add(time.Duration(rapid.IntRange(1, 900).Draw(t, "seconds")) * time.Second)
			},
			"proxy changes": func(t *rapid.T) {
				name := pick(t, slices.Collect(maps.Keys(m.proxies)))
				px := m.proxies[name].DeepCopy()
				px.ResourceVersion = m.next()
				px.Spec.Capacity = new(int32(rapid.IntRange(0, 4).Draw(t, "capacity")))
				px.Spec.DrainRequests = nil
				if rapid.IntRange(0, 3).Draw(t, "drains") == 0 {
					px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "test"}}
				}
				px.Status.Cooldowns = nil
				if rapid.Bool().Draw(t, "cools") {
					px.Status.Cooldowns = []v1alpha1.Cooldown{{
						Target: rapid.SampledFrom([]string{"x", "y"}).Draw(t, "for"), InstanceID: record.InstanceID(px),
						UntilTime: &metav1.Time{Time: m.now.Add(time.Duration(rapid.IntRange(-60, 600).Draw(t, "until")) * time.Second)},
					}}
				}
				if rapid.IntRange(0, 5).Draw(t, "unready") == 0 {
					fixture.Unready(px)
				} else {
					px.Status.Conditions = fixture.ReadyStatus("i", "192.0.2.1").Conditions
				}
				old := m.proxies[name]
				px.Spec.Leasing = rapid.SampledFrom([]v1alpha1.LeasingMode{v1alpha1.LeasingEnabled, v1alpha1.LeasingDisabled}).Draw(t, "leasing")
				m.proxies[name] = px
				l.ObserveProxy(px)
				l.ObserveProxy(old) // a late event
			},
			"another's deletion": func(t *rapid.T) {
				name := pick(t, slices.Concat(slices.Collect(maps.Keys(m.stored)), slices.Collect(maps.Keys(m.writing))))
				l.DeleteLease(fixture.Lease(ns, name, func(l *v1alpha1.ProxyLease) { l.UID = "a namesake that is gone" }))
				l.Released(types.NamespacedName{Namespace: ns, Name: name}, "another one", m.now)
				l.DeleteProxy(fixture.Proxy(ns, "p0", func(px *v1alpha1.Proxy) { px.UID = "former" }))
			},
			"a former leader's creation lands": func(t *rapid.T) {
				m.sequence++
				name := fmt.Sprint("l", m.sequence)
				px := m.proxies[pick(t, slices.Collect(maps.Keys(m.proxies)))]
				mode := rapid.SampledFrom([]v1alpha1.LeaseMode{v1alpha1.LeaseShared, v1alpha1.LeaseExclusive}).Draw(t, "mode")
				lease := granted(Reservation{
					Lease: types.NamespacedName{Namespace: ns, Name: name}, Mode: mode,
					Binding: record.Binding{ProxyName: px.Name, ProxyUID: px.UID, Epoch: 0, Seq: int64(m.sequence)},
				}, m.next())
				clash := l.Load(px.UID) > 0 && (mode == v1alpha1.LeaseExclusive || m.exclusives(px.Name) > 0)
				l.ObserveLease(lease)
				if clash == l.Admits(types.NamespacedName{Namespace: ns, Name: name}, lease.UID) {
					t.Fatalf("%s lands on %s, which carries %d leases; admitted: %v", mode, px.Name, l.Load(px.UID)-1, !clash)
				}
				if out := l.TakeOutcasts(); (len(out) == 1 && out[0].UID == lease.UID) != clash {
					t.Fatalf("outcasts %+v", out)
				}
				if clash { // the leader revokes it at once
					ended := lease.DeepCopy()
					ended.ResourceVersion = m.next()
					ended.Status.Phase = v1alpha1.LeaseRevoked
					l.Finish(ended)
					lease = ended
				}
				m.stored[name] = lease
			},
			"written": func(t *rapid.T) {
				name := pick(t, slices.Collect(maps.Keys(m.writing)))
				lease := granted(m.writing[name], m.next())
				lease.UID = types.UID("uid-" + name)
				m.stored[name] = lease
				m.late = append(m.late, lease)
				if rapid.Bool().Draw(t, "answered") {
					l.Commit(lease)
				} else {
					l.ObserveLease(lease)
				}
				delete(m.writing, name)
			},
			"refused": func(t *rapid.T) {
				name := pick(t, slices.Collect(maps.Keys(m.writing)))
				l.Cancel(m.writing[name])
				delete(m.writing, name)
			},
			"released": func(t *rapid.T) {
				name := pick(t, slices.Collect(maps.Keys(m.stored)))
				lease := m.stored[name]
				delete(m.stored, name)
				m.next()
				if rapid.Bool().Draw(t, "by us") {
					l.Released(types.NamespacedName{Namespace: ns, Name: name}, lease.UID, fixture.Start)
					return
				}
				// Somebody else's deletion arrives in order: what is under way of this lease is older and comes before.
				m.late = slices.DeleteFunc(m.late, func(o *v1alpha1.ProxyLease) bool {
					if o.UID == lease.UID {
						l.ObserveLease(o)
					}
					return o.UID == lease.UID
				})
				l.DeleteLease(lease)
			},
			"expired": func(t *rapid.T) {
				name := pick(t, slices.Collect(maps.Keys(m.stored)))
				ended := m.stored[name].DeepCopy()
				ended.ResourceVersion = m.next()
				ended.Status.Phase = v1alpha1.LeaseExpired
				m.stored[name] = ended
				l.Finish(ended)
			},
			"late event": func(t *rapid.T) {
				if len(m.late) == 0 {
					t.Skip("none under way")
				}
				i := rapid.IntRange(0, len(m.late)-1).Draw(t, "event")
				l.ObserveLease(m.late[i])
				m.late = slices.Delete(m.late, i, i+1)
			},
			"": func(t *rapid.T) {
				checkClaims(t, l)
				for name, px := range m.proxies {
					want, exclusives := 0, 0
					count := func(res string, mode v1alpha1.LeaseMode) {
						if res == name {
							want++
							if mode == v1alpha1.LeaseExclusive {
								exclusives++
							}
						}
					}
					for _, res := range m.writing {
						count(res.Binding.ProxyName, res.Mode)
					}
					for _, lease := range m.stored {
						if lease.Status.Phase == "" {
							count(lease.Spec.Grant.ProxyName, lease.Spec.Mode)
						}
					}
					if got := l.Load(px.UID); got != want {
						t.Fatalf("load of %s is %d, want %d", name, got, want)
					}
					if exclusives > 0 && want > 1 {
						t.Fatalf("%s carries %d leases, %d of them exclusive", name, want, exclusives)
					}
				}
			},
		})
	})
}
