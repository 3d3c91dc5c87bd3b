package health

import (
	"context"
	"sync"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// wakeQueue hands out the names of changed proxies: each once, those that fell first, at a bounded rate. Adding never
// blocks, and nothing is lost while nobody reads.
type wakeQueue struct {
	out     chan event.TypedGenericEvent[types.NamespacedName]
	limiter *rate.Limiter
	signal  chan struct{}

	mu     sync.Mutex
	urgent []types.NamespacedName
	normal []types.NamespacedName
	queued map[types.NamespacedName]bool // value: urgent
}

func newWakeQueue() *wakeQueue {
	return &wakeQueue{
		out:     make(chan event.TypedGenericEvent[types.NamespacedName]),
		limiter: rate.NewLimiter(WakesPerSecond, WakeBurst),
		signal:  make(chan struct{}, 1),
		queued:  map[types.NamespacedName]bool{},
	}
}

func (q *wakeQueue) add(key types.NamespacedName, urgent bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wasUrgent, queued := q.queued[key]
	if queued && (wasUrgent || !urgent) {
		return
	}
	q.queued[key] = urgent
	if urgent {
		q.urgent = append(q.urgent, key) // its place among the normal ones is skipped when its turn comes
	} else {
		q.normal = append(q.normal, key)
	}
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

func (q *wakeQueue) pop() (types.NamespacedName, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, list := range []*[]types.NamespacedName{&q.urgent, &q.normal} {
		for len(*list) > 0 {
			key := (*list)[0]
			*list = (*list)[1:]
			if urgent, queued := q.queued[key]; queued && urgent == (list == &q.urgent) {
				delete(q.queued, key)
				return key, true
			}
		}
	}
	return types.NamespacedName{}, false
}

// run delivers until ctx ends.
func (q *wakeQueue) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-q.signal:
		}
		for q.deliver(ctx) {
		}
	}
}

// deliver hands one name out; it reports whether there was one. The name is chosen after the wait for the limiter, so
// that a proxy that changes meanwhile is still named once, and the worst still goes first.
func (q *wakeQueue) deliver(ctx context.Context) bool {
	if q.empty() || q.limiter.Wait(ctx) != nil {
		return false
	}
	key, ok := q.pop()
	if !ok {
		return false
	}
	select {
	case q.out <- event.TypedGenericEvent[types.NamespacedName]{Object: key}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (q *wakeQueue) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queued) == 0
}
