package ledger

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
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
				res, err := l.Reserve(r, m.now)
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
				px.Spec.Leasing = rapid.SampledFrom([]v1alpha1.LeasingMode{v1alpha1.LeasingEnabled, v1alpha1.LeasingDisabled}).Draw(t, "leasing")
				m.proxies[name] = px
				l.ObserveProxy(px)
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
					if want > int(*px.Spec.Capacity) || (exclusives > 0 && want > 1) {
						t.Fatalf("%s carries %d leases, %d of them exclusive", name, want, exclusives)
					}
				}
			},
		})
	})
}
