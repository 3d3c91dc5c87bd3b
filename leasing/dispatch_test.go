package leasing

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
)

// line is a queue of calls before a ledger, without anything that runs by itself.
type line struct {
	Backend
	t       *testing.T
	waiters map[string]*waiter
	// sick are the proxies of a bad verdict, tries how many verdicts were asked for.
	sick  map[types.UID]bool
	tries int
	// polls: who comes does not wait.
	polls bool
}

func newLine(t *testing.T, proxies ...*v1alpha1.Proxy) *line {
	l := &line{Backend: newBackend(t, true), t: t, waiters: map[string]*waiter{}, sick: map[types.UID]bool{}}
	l.ledger = ledger.New(func(proxy types.UID, _ string) (healthy, known bool) {
		l.tries++
		return !l.sick[proxy], true
	})
	l.role.Store(int32(leads))
	l.ledger.Open()
	for _, px := range proxies {
		l.ledger.ObserveProxy(px)
	}
	l.ledger.Start(1, "")
	return l
}

// comes lets a call come that waits, and tells whether it is served at once.
func (l *line) comes(name string, change ...func(*v1alpha1.ProxyLease)) bool {
	l.t.Helper()
	lease := fixture.Lease("team", name, change...)
	request, pool, err := requestOf(lease)
	if err != nil {
		l.t.Fatal(err)
	}
	request.UID = ""
	v := &waiter{request: request, identity: lease.Spec.Holder, pool: pool, since: l.Clock.Now(), served: make(chan served, 1), polls: l.polls}
	l.waiters[name] = v
	l.waiting.add(name, v)
	l.pass()
	return l.served(name)
}

func (l *line) served(name string) bool { return len(l.waiters[name].served) > 0 }

// ends lets leases end that were served.
func (l *line) ends(names ...string) {
	for _, name := range names {
		l.ledger.Cancel((<-l.waiters[name].served).reservation)
	}
	l.wake()
}

// dispatch passes as long as the dispatcher would without waiting. It gives the moment of the next pass.
func (l *line) dispatch() (again time.Time) {
	for {
		again = l.pass()
		select {
		case <-l.wakeup:
		default:
			return again
		}
	}
}

func (l *line) later(d time.Duration) { l.Clock.(*clocktesting.FakeClock).Step(d) }

func target(host string) func(*v1alpha1.ProxyLease) {
	return func(l *v1alpha1.ProxyLease) { l.Spec.Targets = []string{host} }
}

func excludes(proxy string) func(*v1alpha1.ProxyLease) {
	return func(l *v1alpha1.ProxyLease) { l.Spec.ExcludedProxyNames = []string{proxy} }
}

func exclusive(l *v1alpha1.ProxyLease) { l.Spec.Mode = v1alpha1.LeaseExclusive }

func only(proxy string) func(*v1alpha1.ProxyLease) {
	return func(l *v1alpha1.ProxyLease) { l.Spec.Selector, l.Spec.ProxyName = nil, proxy }
}

// A call that comes does not cost a try of everybody who waits.
func TestL11_CallsThatComeAreTriedAlone(t *testing.T) {
	l := newLine(t, fixture.Proxy("team", "p"))
	l.sick["team-p"] = true
	const n = 1000
	for i := range n {
		l.comes(fmt.Sprint(i), target(fmt.Sprintf("host-%d.example", i)))
	}
	if l.tries > n {
		t.Fatalf("%d tries for %d calls", l.tries, n)
	}
	before := l.tries
	for i := range n {
		l.comes(fmt.Sprint("again-", i), target(fmt.Sprintf("host-%d.example", i)))
	}
	if l.tries != before {
		t.Fatalf("%d tries for calls whose like wait", l.tries-before)
	}
	l.wake()
	if l.pass(); l.tries != before+n {
		t.Fatalf("%d tries after a change, of %d kinds", l.tries-before, n)
	}
}

// Who waits comes before who comes, whatever has changed in between.
func TestWhoWaitsComesFirst(t *testing.T) {
	soon := 500 * time.Millisecond
	for name, c := range map[string]struct {
		proxy          func(*v1alpha1.Proxy)
		before, change func(l *line)
	}{
		"a lease ends": {
			fixture.Capacity(1), func(l *line) { l.comes("holds") }, func(l *line) { l.ends("holds") },
		},
		"a cooldown ends": {
			func(px *v1alpha1.Proxy) {
				end := metav1.NewTime(fixture.Start.Add(soon))
				px.Spec.Capacity = new(int32(1))
				px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: "x.example", InstanceID: "i-p", UntilTime: &end}}
			},
			func(*line) {}, func(l *line) { l.later(soon) },
		},
		"a verdict changes and nobody says so": {
			fixture.Capacity(1), func(l *line) { l.sick["team-p"] = true }, func(l *line) {
				clear(l.sick)
				l.later(refusalTTL)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t, fixture.Proxy("team", "p", c.proxy))
			c.before(l)
			if l.comes("waits", target("x.example")) || l.comes("waits for another", only("none")) {
				t.Fatal("served at once")
			}
			c.change(l)
			if l.comes("comes", target("x.example"), excludes("other")) || !l.served("waits") {
				t.Fatal("who came was served before who had waited for the same proxy")
			}
		})
	}
}

// A proxy that a claim lets go of is for those who were refused because of it, also when they were offered it before that.
func TestWhatAClaimLetsGoIsOffered(t *testing.T) {
	for name, change := range map[string]func(l *line){
		"it moves on":                   func(l *line) { l.later(ledger.ClaimWindow) },
		"its lease gets another proxy":  func(l *line) { l.comes("claims too", exclusive); l.ends("q1", "q2") },
		"who has claimed goes for good": func(l *line) { l.waiting.remove("claims"); l.later(ClaimReturn) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLine(t, fixture.Proxy("team", "p", fixture.Capacity(2)), fixture.Proxy("team", "q", fixture.Capacity(2)))
			for _, proxy := range []string{"p", "q"} {
				if !l.comes(proxy+"1", only(proxy)) || !l.comes(proxy+"2", only(proxy)) {
					t.Fatal("not served at once")
				}
			}
			l.comes("waits", only("p"))
			l.comes("claims", exclusive)
			l.later(l.ExclusivePatience)
			l.dispatch()
			l.ends("p1")
			if l.dispatch(); l.served("waits") || l.ledger.Claimed() != 1 {
				t.Fatal("the proxy is not claimed")
			}
			change(l)
			if l.dispatch(); !l.served("waits") {
				t.Fatal("nobody got what was let go of")
			}
		})
	}
}

// An Exclusive lease claims when its patience is over, although its like were refused before it came and did not wait.
func TestClaimIsLookedAtWhoeverCameBefore(t *testing.T) {
	l := newLine(t, fixture.Proxy("team", "p", fixture.Capacity(2)))
	l.comes("holds")
	l.polls = true
	l.comes("polls", exclusive)
	l.polls = false
	l.later(100 * time.Millisecond)
	l.comes("waits", exclusive)
	if again := l.dispatch(); !again.Equal(l.Clock.Now().Add(l.ExclusivePatience)) {
		t.Fatalf("the next pass is at %v", again)
	}
	l.waiting.remove("polls")
	l.later(l.ExclusivePatience)
	if l.dispatch(); l.ledger.Claimed() != 1 {
		t.Fatal("nothing is claimed")
	}
}
