package leasing

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "run this schedule of the simulation only")
	simFirst = flag.Uint64("sim.first", 1, "first schedule of the simulation")
	simRuns  = flag.Int("sim.runs", 0, "schedules of each simulation; 0: as many as each says")
)

const (
	simProxies  = 4
	simCapacity = 3
	simClients  = 8
	// simTrouble is how long leaders change and calls fail; afterwards everything must come to rest.
	simTrouble = 120 * time.Second
)

// hold is a proxy that a holder was told it may use.
type hold struct {
	lease        types.UID
	proxy        types.UID
	mode         v1alpha1.LeaseMode
	since, until time.Time
}

// simWorld is one schedule.
type simWorld struct {
	seed      uint64
	unchecked bool // the leadership is not asked for
	// ends are the ways in which leaders come to their ends; nil: all.
	ends []ending
	// lag is how much later than usual everything comes to a process that begins to lead.
	lag time.Duration
	// meet decides what becomes of a call; met is false when that is left to the seed. nil: it always is.
	meet  func(p *simProcess, verb string, id simID, commit func() error) (err error, met bool)
	api   *simAPI
	quiet bool

	mu      sync.Mutex
	holds   map[types.UID]*hold
	doubles []string
	broken  []string
	granted int
	// late are writes that are still to be carried out.
	late []func()
	// bound are the grants of leases that were asked for by objects.
	bound  []simGrant
	leader *simProcess
	procs  []*simProcess
}

func (w *simWorld) badness() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet {
		return 0
	}
	if w.storm() {
		return 40
	}
	return int(w.seed % 5 * 6)
}

// storm tells whether leaders come and go all the time, and much of what they send is carried out about when the next one comes.
func (w *simWorld) storm() bool { return w.seed%2 == 0 }

// proxies is how many there are: in a storm so many that exclusive leases find empty ones.
func (w *simWorld) proxies() int {
	if w.storm() {
		return 2 * simProxies
	}
	return simProxies
}

func (w *simWorld) fail(format string, args ...any) {
	w.broken = append(w.broken, fmt.Sprintf(format, args...))
}

// ending is how a leader comes to its end.
type ending int

const (
	killed ending = iota
	frozen
	resigned
)

// simGrant is one grant of a lease that was asked for by an object.
type simGrant struct {
	epoch, seq int64
	holder     string
	created    time.Time
	uid        types.UID
}

// take notes that a holder was told that it has a proxy.
func (w *simWorld) take(h hold) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.granted++
	now, together := time.Now(), 1
	h.since = now
	if !h.until.After(now) {
		return // told, by the answer itself, that it is over
	}
	for _, other := range w.holds {
		if other.proxy != h.proxy || other.lease == h.lease || !other.until.After(now) {
			continue
		}
		if other.mode == v1alpha1.LeaseExclusive || h.mode == v1alpha1.LeaseExclusive {
			w.doubles = append(w.doubles, fmt.Sprintf("at %s %+v although %+v", now, h, *other))
		}
		if together++; together > simCapacity+1 {
			w.fail("%d leases of proxy %s are promised at once, its capacity is %d", together, h.proxy, simCapacity)
		}
	}
	w.holds[h.lease] = &h
}

// drop notes that a holder gives its lease back, before it says so.
func (w *simWorld) drop(lease types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.holds, lease)
}

// changed sees every change of the API's objects.
func (w *simWorld) changed(before, after client.Object) {
	was, _ := before.(*v1alpha1.ProxyLease)
	is, _ := after.(*v1alpha1.ProxyLease)
	if was == nil {
		return
	}
	w.mu.Lock()
	h := w.holds[was.UID]
	ended := is == nil || record.Finished(is)
	if h != nil && ended && h.until.After(time.Now()) {
		w.fail("lease %s ended although it was promised until %s: %+v", was.UID, h.until, is)
	}
	if ended {
		delete(w.holds, was.UID)
	}
	if is != nil {
		b, bound := record.BindingOf(was)
		if c, ok := record.BindingOf(is); bound && (!ok || c.ProxyUID != b.ProxyUID) {
			w.fail("lease %s moved from %s to %s", was.UID, b.ProxyUID, c.ProxyUID)
		}
	}
	w.mu.Unlock()
	if is == nil || ended || is.Spec.Grant != nil || is.Labels["cr"] == "" {
		return
	}
	// The holder of an object is told by the object.
	if b, ok := record.BindingOf(is); ok {
		w.mu.Lock()
		_, known := w.holds[is.UID]
		w.mu.Unlock()
		if _, before := record.BindingOf(was); known || !before {
			w.mu.Lock()
			delete(w.holds, is.UID)
			if !before && is.Spec.Mode == v1alpha1.LeaseShared {
				w.bound = append(w.bound, simGrant{b.Epoch, b.Seq, is.Spec.Holder, is.CreationTimestamp.Time, is.UID})
			}
			w.mu.Unlock()
			w.take(hold{lease: is.UID, proxy: b.ProxyUID, mode: is.Spec.Mode, until: record.Expiry(is)})
		}
	}
}

func (w *simWorld) pick(r *rand.Rand) *simProcess {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.leader != nil && r.IntN(3) > 0 {
		return w.leader
	}
	return w.procs[r.IntN(len(w.procs))]
}

// caller asks for leases by HTTP until the trouble is over.
func (w *simWorld) caller(n int, until time.Time) {
	r := rand.New(rand.NewPCG(w.seed, uint64(n)+1000))
	for i := 0; time.Now().Before(until); i++ {
		request := httpapi.LeaseRequest{
			Namespace: "team", Holder: fmt.Sprint("h", n%3), Mode: v1alpha1.LeaseShared, TTLSeconds: 10 + int32(r.IntN(60)),
			Key: fmt.Sprint(n, "-", i), Wait: time.Duration(r.IntN(3)*5) * time.Second, Selector: map[string]string{},
		}
		if r.IntN(3) == 0 {
			request.Mode = v1alpha1.LeaseExclusive
		}
		if w.asks() && i%5 == 4 {
			request.Key = "" // what nobody was told of must not stay for long
		}
		lease, ok := w.lease(r, request)
		if !ok {
			_ = pause(context.Background(), time.Duration(r.IntN(2000))*time.Millisecond)
			continue
		}
		_ = pause(context.Background(), time.Duration(r.IntN(12_000))*time.Millisecond)
		if r.IntN(3) == 0 {
			w.renew(r, lease)
			_ = pause(context.Background(), time.Duration(r.IntN(12_000))*time.Millisecond)
		}
		if r.IntN(4) == 0 {
			continue // forgotten: it expires
		}
		w.drop(lease.Ref.UID)
		for range 20 {
			if w.on(w.pick(r), func(ctx context.Context, b Backend) error { return b.Release(ctx, lease.Ref) }) == nil {
				break
			}
		}
	}
}

// on makes a call of a process; what a dead or frozen process would answer is not heard.
func (w *simWorld) on(p *simProcess, call func(context.Context, Backend) error) error {
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	err := call(ctx, p.backend)
	p.gate()
	if p.dead() {
		return errGone
	}
	return err
}

func (w *simWorld) lease(r *rand.Rand, request httpapi.LeaseRequest) (lease httpapi.Lease, ok bool) {
	for range 4 {
		err := w.on(w.pick(r), func(ctx context.Context, b Backend) (err error) {
			lease, _, err = b.Lease(ctx, request)
			return err
		})
		if err == nil {
			w.take(hold{lease: lease.Ref.UID, proxy: w.uidOf(lease.Proxy.Name), mode: lease.Mode, until: lease.ExpireTime})
			return lease, true
		}
		if refused, is := errors.AsType[*httpapi.Error](err); is && refused.Code == wire.CodeKeyConsumed {
			return lease, false
		}
		_ = pause(context.Background(), time.Duration(1+r.IntN(1500))*time.Millisecond)
	}
	return lease, false
}

func (w *simWorld) renew(r *rand.Rand, lease httpapi.Lease) {
	var renewed httpapi.Lease
	if w.on(w.pick(r), func(ctx context.Context, b Backend) (err error) {
		renewed, err = b.Renew(ctx, lease.Ref)
		return err
	}) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if h := w.holds[lease.Ref.UID]; h != nil && renewed.ExpireTime.After(h.until) {
		h.until = renewed.ExpireTime
	}
}

// applicant asks for leases by objects.
func (w *simWorld) applicant(n int, until time.Time) {
	r := rand.New(rand.NewPCG(w.seed, uint64(n)+2000))
	for i := 0; time.Now().Before(until); i++ {
		lease := fixture.Lease("team", fmt.Sprint("cr-", n, "-", i), func(l *v1alpha1.ProxyLease) {
			l.Labels = map[string]string{"cr": "true"}
			l.Spec.TTLSeconds, l.Spec.Holder = 10+int32(r.IntN(60)), fmt.Sprint("h", n%3)
			if r.IntN(3) == 0 {
				l.Spec.Mode = v1alpha1.LeaseExclusive
			}
		})
		_ = w.api.create(lease)
		_ = pause(context.Background(), time.Duration(r.IntN(25_000))*time.Millisecond)
		if r.IntN(4) > 0 {
			w.drop(lease.UID)
			_ = w.api.remove(idOf(lease), nil)
		}
	}
}

func newSimWorld(seed uint64) *simWorld {
	return &simWorld{seed: seed, holds: map[types.UID]*hold{}, api: &simAPI{objects: map[simID]client.Object{}}}
}

// run carries one schedule out and returns its world.
func run(t *testing.T, seed uint64, change func(*simWorld)) *simWorld {
	w := newSimWorld(seed)
	change(w)
	synctest.Test(t, func(t *testing.T) {
		for i := range w.proxies() {
			px := fixture.Proxy("team", fmt.Sprint("p", i), fixture.Capacity(simCapacity))
			_ = w.api.create(px)
		}
		w.api.onChange = w.changed
		until := time.Now().Add(simTrouble)
		follower := newSimProcess(w, "follower")
		w.procs = append(w.procs, follower)
		var all sync.WaitGroup
		all.Go(func() { w.elect(until) })
		_ = pause(context.Background(), time.Millisecond)
		for i := range simClients {
			all.Go(func() { w.caller(i, until) })
			all.Go(func() { w.applicant(i, until) })
		}
		all.Wait()
		_ = pause(context.Background(), 2*time.Minute) // what is late has come by then
		w.rest()
		follower.lead(canceled())
		<-follower.done
		follower.kill()
		_ = pause(context.Background(), time.Minute)
		synctest.Wait()
	})
	return w
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// rest lets a last leader put everything in order, and looks for slots that are not free again.
func (w *simWorld) rest() {
	p := newSimProcess(w, "last")
	w.mu.Lock()
	w.leader, w.procs = p, append(w.procs, p)
	w.mu.Unlock()
	ctx, resign := context.WithCancel(p.ctx)
	p.lead(ctx)
	for range 90 {
		_ = pause(context.Background(), simRetryPeriod)
		p.renew()
		w.api.mu.Lock()
		var waiting []*v1alpha1.ProxyLease
		for _, o := range w.api.objects {
			if lease, ok := o.(*v1alpha1.ProxyLease); ok && record.Pending(lease) {
				waiting = append(waiting, lease)
			}
		}
		w.api.mu.Unlock()
		for _, lease := range waiting { // nobody wants them any more
			_ = w.api.remove(idOf(lease), nil)
		}
	}
	w.account(p)
	for i := range w.proxies() {
		name := fmt.Sprint("p", i)
		_, _, problem := p.backend.Lease(ctx, httpapi.LeaseRequest{
			Namespace: "team", Proxy: name, Mode: v1alpha1.LeaseExclusive, Holder: "last", Key: name, Wait: 5 * time.Second, TTLSeconds: 60,
		})
		if problem != nil {
			w.fail("proxy %s is not free at the end: %v", name, problem)
		}
	}
	_ = pause(context.Background(), 10*time.Second)
	w.account(p)
	resign()
	<-p.done
	p.kill()
}

// uidOf is the UID of the proxy that an answer names.
func (w *simWorld) uidOf(name string) types.UID {
	px := &v1alpha1.Proxy{}
	if w.api.get(simID{"Proxy", types.NamespacedName{Namespace: "team", Name: name}}, px) != nil {
		panic("no proxy " + name)
	}
	return px.UID
}
