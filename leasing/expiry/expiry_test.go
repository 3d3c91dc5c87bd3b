package expiry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
)

const ttl = 300 * time.Second

// bound is a lease whose stored end is left from the start of the test.
func bound(left time.Duration, change ...func(*v1alpha1.ProxyLease)) *v1alpha1.ProxyLease {
	return fixture.Lease("team", "l", append([]func(*v1alpha1.ProxyLease){func(l *v1alpha1.ProxyLease) {
		l.Status.Phase = v1alpha1.LeaseBound
		l.Status.ProxyRef = &v1alpha1.BoundProxy{Name: "p", UID: "p"}
		l.Status.EffectiveTTLSeconds = int32(ttl / time.Second)
		l.Status.ExpireTime = new(metav1.NewMicroTime(fixture.Start.Add(left)))
	}}, change...)...)
}

func renewTime(at time.Time) func(*v1alpha1.ProxyLease) {
	return func(l *v1alpha1.ProxyLease) { l.Spec.RenewTime = new(metav1.NewMicroTime(at)) }
}

func TestL16_OnlyTheChangeOfRenewTimeCounts(t *testing.T) {
	hour := time.Hour
	for name, value := range map[string]time.Time{"an hour behind": fixture.Start.Add(-hour), "an hour ahead": fixture.Start.Add(hour), "decreasing": time.Unix(1, 0)} {
		t.Run(name, func(t *testing.T) {
			known := Of(bound(100*time.Second, renewTime(fixture.Start), func(l *v1alpha1.ProxyLease) { l.Status.LastRenewTime = l.Spec.RenewTime }), Deadline{}, false, fixture.Start)
			now := fixture.Start.Add(50 * time.Second)
			renewed := Of(bound(100*time.Second, renewTime(value)), known, true, now)
			if !renewed.At.Equal(now.Add(ttl)) {
				t.Fatalf("deadline %v, want one TTL from now", renewed.At)
			}
			later := now.Add(20 * time.Second)
			if again := Of(bound(100*time.Second, renewTime(value)), renewed, true, later); !again.At.Equal(renewed.At) {
				t.Fatalf("the same value renewed again, until %v", again.At)
			}
		})
	}
}

func TestStoredEndThatMovesIsHonoured(t *testing.T) {
	known := Of(bound(100*time.Second), Deadline{}, false, fixture.Start)
	if !known.At.Equal(fixture.Start.Add(100 * time.Second)) {
		t.Fatalf("deadline %v", known.At)
	}
	if moved := Of(bound(250*time.Second), known, true, fixture.Start); !moved.At.Equal(fixture.Start.Add(250 * time.Second)) {
		t.Fatalf("deadline %v", moved.At)
	}
	// By a clock that is wrong: never more than a TTL from now.
	if moved := Of(bound(time.Hour), known, true, fixture.Start); !moved.At.Equal(fixture.Start.Add(ttl)) {
		t.Fatalf("deadline %v", moved.At)
	}
}

func TestR4_AtStart(t *testing.T) {
	const grace = RestartGrace
	for name, c := range map[string]struct {
		lease *v1alpha1.ProxyLease
		want  time.Duration
	}{
		"long over":                  {bound(-time.Hour), grace},
		"ends within the grace":      {bound(10 * time.Second), grace},
		"ends later":                 {bound(200 * time.Second), 200 * time.Second},
		"by a clock that is ahead":   {bound(10 * time.Hour), ttl},
		"renewed while nobody led":   {bound(-time.Hour, renewTime(time.Unix(1, 0))), ttl},
		"renewal that was taken in":  {bound(-time.Hour, renewTime(fixture.Start), func(l *v1alpha1.ProxyLease) { l.Status.LastRenewTime = l.Spec.RenewTime }), grace},
		"shorter TTL than the grace": {bound(-time.Hour, func(l *v1alpha1.ProxyLease) { l.Status.EffectiveTTLSeconds = 10 }), 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			if got := AtStart(c.lease, fixture.Start, grace).Sub(fixture.Start); got != c.want {
				t.Fatalf("ends in %v, want %v", got, c.want)
			}
		})
	}
}

func TestRenewalsAreWrittenEverySecondTime(t *testing.T) {
	stored, now, writes := fixture.Start.Add(ttl), fixture.Start, 0
	for range 60 { // every 100 s, as a careful holder does
		now = now.Add(100 * time.Second)
		if stored.Before(now) {
			t.Fatal("the lease ended between two renewals")
		}
		if Worth(stored, ttl, now) {
			writes++
			stored = now.Add(ttl)
		}
	}
	if writes > 30 {
		t.Fatalf("%d writes for 60 renewals", writes)
	}
}

// Due gives everything exactly once, in order, and never early.
func TestDeadlinesAgainstAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d, model := New(), map[types.UID]time.Time{}
		now := fixture.Start
		uid := func(t *rapid.T) types.UID { return types.UID(fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "lease"))) }
		t.Repeat(map[string]func(*rapid.T){
			"set": func(t *rapid.T) {
				u, at := uid(t), now.Add(time.Duration(rapid.IntRange(-5, 50).Draw(t, "in"))*time.Second)
				earliest := true
				for other, when := range model {
					if other != u && when.Before(at) {
						earliest = false
					}
				}
				model[u] = at
				if got := d.Set(Deadline{UID: u, At: at}); got && !earliest {
					t.Fatal("said to be the earliest, and is not")
				} else if next, _ := d.Next(); !got && next.Equal(at) && earliest && len(model) == 1 {
					t.Fatal("the only one is not the earliest")
				}
			},
			"delete": func(t *rapid.T) {
				u := uid(t)
				d.Delete(u)
				delete(model, u)
			},
			"due": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "later")) * time.Second)
				due := d.Due(now)
				if !slices.IsSortedFunc(due, func(a, b Deadline) int { return a.At.Compare(b.At) }) {
					t.Fatal("not in order")
				}
				for _, x := range due {
					if at, ok := model[x.UID]; !ok || !at.Equal(x.At) || at.After(now) {
						t.Fatalf("%s is due at %v, want %v", x.UID, x.At, at)
					}
					delete(model, x.UID)
				}
				for u, at := range model {
					if !at.After(now) {
						t.Fatalf("%s was due at %v and was not given", u, at)
					}
				}
			},
			"": func(t *rapid.T) {
				if d.Len() != len(model) {
					t.Fatalf("%d deadlines, want %d", d.Len(), len(model))
				}
				for u, at := range model {
					if got, ok := d.Get(u); !ok || !got.At.Equal(at) {
						t.Fatalf("%s is %v", u, got)
					}
				}
			},
		})
	})
}
