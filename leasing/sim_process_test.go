package leasing

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

var simScheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	return scheme
}()

// Times of the simulated election, those of the managers.
const (
	simLeaseDuration = 15 * time.Second
	simRenewDeadline = 10 * time.Second
	simRetryPeriod   = 2 * time.Second
)

// simProcess is one replica: a real Allocator over a simulated connection and cache.
type simProcess struct {
	name    string
	world   *simWorld
	cache   *simCache
	backend Backend
	ctx     context.Context
	kill    context.CancelFunc
	renewed atomic.Pointer[time.Time]
	leading atomic.Bool
	strike  atomic.Int32
	struck  chan struct{} // closed when the strike has happened
	done    chan struct{} // the allocator has ended

	mu     sync.Mutex
	thawed chan struct{} // closed while the process runs
}

func newSimProcess(w *simWorld, name string) *simProcess {
	p := &simProcess{name: name, world: w, done: make(chan struct{}), thawed: make(chan struct{}), struck: make(chan struct{})}
	close(p.thawed)
	p.ctx, p.kill = context.WithCancel(context.Background())
	p.cache = &simCache{proc: p, view: map[simID]client.Object{}}
	conn := &simConn{api: w.api, proc: p, calls: map[string]int{}}
	a, err := New(Options{
		Client: conn, Live: simLive{conn}, Cache: p.cache, Clock: simClock{proc: p}, Registerer: prometheus.NewRegistry(), Leads: p.leads,
	})
	if err != nil {
		panic(err)
	}
	p.backend = Backend{Allocator: a}
	if w.asks() {
		p.backend.Leader = &simPeer{proc: p}
	}
	go p.cache.watch()
	go func() { _ = a.Follow(p.ctx) }()
	return p
}

// leads is the fence: by the clock, from the last renewal.
func (p *simProcess) leads() bool {
	if p.world.unchecked {
		return true
	}
	at := p.renewed.Load()
	return at != nil && time.Since(*at) < simRenewDeadline
}

// gate is passed by everything that a process does with the world; a frozen process stops there.
func (p *simProcess) gate() {
	p.mu.Lock()
	thawed := p.thawed
	p.mu.Unlock()
	<-thawed
}

// strike is what happens to the next write of a process.
type strike int32

const (
	none          strike = iota
	beforeSending        // it is frozen
	afterWriting         // it is frozen
	unanswered           // the write is carried out much later
)

// hit lets it happen, if the process writes a grant within some seconds.
func (p *simProcess) hit(s strike) (happened bool) {
	p.strike.Store(int32(s))
	select {
	case <-p.struck:
		return true
	case <-time.After(4 * time.Second):
	}
	if p.strike.Swap(int32(none)) == int32(none) { // just now
		<-p.struck
		return true
	}
	return false
}

func (p *simProcess) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.thawed = make(chan struct{})
}

func (p *simProcess) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.thawed)
}

func (p *simProcess) dead() bool { return p.ctx.Err() != nil }

// lead is what the election makes of a process until ctx ends.
func (p *simProcess) lead(ctx context.Context) {
	p.leading.Store(true)
	now := time.Now()
	p.renewed.Store(&now)
	go func() {
		defer close(p.done)
		_ = p.backend.Start(ctx)
	}()
}

func (p *simProcess) renew() {
	now := time.Now()
	p.renewed.Store(&now)
}

// simCache is what the watches of a process have shown it so far: late, at times twice, and after a broken watch what
// changed in between is only known from a new list, deletions as tombstones.
type simCache struct {
	cache.Cache
	proc     *simProcess
	mu       sync.Mutex
	at       int
	view     map[simID]client.Object
	handlers []*simHandler
}

type simHandler struct {
	toolscache.ResourceEventHandler
	toolscache.ResourceEventHandlerRegistration
	kind string
}

func (c *simCache) WaitForCacheSync(context.Context) bool { return true }

func (c *simCache) GetInformer(_ context.Context, o client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	return simInformer{cache: c, kind: simKind(o)}, nil
}

type simInformer struct {
	cache.Informer
	cache *simCache
	kind  string
}

func (i simInformer) AddEventHandler(h toolscache.ResourceEventHandler) (toolscache.ResourceEventHandlerRegistration, error) {
	c := i.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	handler := &simHandler{ResourceEventHandler: h, kind: i.kind}
	c.handlers = append(c.handlers, handler)
	for id, o := range c.view {
		if id.kind == i.kind {
			h.OnAdd(o, true)
		}
	}
	return handler, nil
}

func (i simInformer) RemoveEventHandler(toolscache.ResourceEventHandlerRegistration) error {
	return nil
}

func (c *simCache) get(id simID, into client.Object) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return copyInto(c.view[id], id, into)
}

// watch delivers events until the process dies.
func (c *simCache) watch() {
	r := rand.New(rand.NewPCG(c.proc.world.seed, 77))
	for c.proc.ctx.Err() == nil {
		select {
		case <-c.proc.world.api.since(c.at):
		case <-c.proc.ctx.Done():
			return
		}
		lag := time.Duration(1+r.IntN(100_000_000)) * time.Nanosecond
		bad := r.IntN(100) < c.proc.world.badness()
		if bad {
			lag = time.Duration(r.IntN(5000)) * time.Millisecond
		}
		if c.proc.leading.Load() {
			lag += c.proc.world.lag
		}
		if pause(c.proc.ctx, lag) != nil {
			return
		}
		c.proc.gate()
		c.deliver(bad && r.IntN(2) == 0, bad && r.IntN(2) == 0)
	}
}

func (c *simCache) deliver(broken, twice bool) {
	api := c.proc.world.api
	api.mu.Lock()
	events := append([]simEvent(nil), api.log[c.at:]...)
	c.at = len(api.log)
	var now map[simID]client.Object
	if broken {
		now = map[simID]client.Object{}
		maps.Copy(now, api.objects)
	}
	api.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if broken {
		for id, o := range now {
			c.see(simEvent{id: id, object: o})
		}
		for id, o := range c.view {
			if now[id] == nil {
				delete(c.view, id)
				for _, h := range c.handlers {
					if h.kind == id.kind {
						h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: id.key.String(), Obj: o})
					}
				}
			}
		}
		return
	}
	for _, e := range events {
		c.see(e)
	}
	if twice && len(events) > 0 {
		c.see(events[len(events)-1])
	}
}

func (c *simCache) see(e simEvent) {
	old := c.view[e.id]
	if e.deleted {
		delete(c.view, e.id)
	} else {
		c.view[e.id] = e.object
	}
	for _, h := range c.handlers {
		switch {
		case h.kind != e.id.kind:
		case e.deleted:
			h.OnDelete(e.object)
		case old == nil:
			h.OnAdd(e.object, false)
		default:
			h.OnUpdate(old, e.object)
		}
	}
}

var errGone = errors.New("the process is gone")

// simClock is the clock of a process: while that is frozen its timers are due, but it does not learn of it.
type simClock struct {
	clock.RealClock
	proc *simProcess
}

func (c simClock) NewTimer(d time.Duration) clock.Timer {
	t := &simTimer{due: make(chan time.Time, 1)}
	t.timer = time.AfterFunc(d, func() {
		c.proc.gate()
		if t.stopped.Load() {
			return
		}
		t.due <- time.Now()
	})
	return t
}

// simTimer is used once.
type simTimer struct {
	clock.Timer
	timer   *time.Timer
	due     chan time.Time
	stopped atomic.Bool
}

func (t *simTimer) C() <-chan time.Time { return t.due }

func (t *simTimer) Stop() bool {
	t.stopped.Store(true)
	return t.timer.Stop()
}
