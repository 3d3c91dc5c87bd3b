package leasing

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// consumedTTL is how long the key of a released lease is remembered, so that a delayed duplicate of its request is not
	// taken for a new one.
	consumedTTL = 10 * time.Minute
	// maxConsumed bounds what is remembered.
	maxConsumed = 100_000
)

// flights lets the requests with one key take turns. One that has to wait for another counts as a call that waits.
type flights struct {
	mu   sync.Mutex
	busy map[types.NamespacedName]chan struct{}
}

func (f *flights) enter(ctx context.Context, key types.NamespacedName, wait func() (leave func(), err error)) (leave func(), err error) {
	for waits := false; ; {
		f.mu.Lock()
		other := f.busy[key]
		if other == nil {
			if f.busy == nil {
				f.busy = map[types.NamespacedName]chan struct{}{}
			}
			mine := make(chan struct{})
			f.busy[key] = mine
			f.mu.Unlock()
			return func() {
				f.mu.Lock()
				delete(f.busy, key)
				f.mu.Unlock()
				close(mine)
			}, nil
		}
		f.mu.Unlock()
		if !waits {
			leave, err := wait()
			if err != nil {
				return nil, err
			}
			defer leave()
			waits = true
		}
		select {
		case <-other:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// consumed remembers leases that were released.
type consumed struct {
	mu   sync.Mutex
	keys map[types.NamespacedName]time.Time
}

func (c *consumed) add(key types.NamespacedName, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil {
		c.keys = map[types.NamespacedName]time.Time{}
	}
	if len(c.keys) >= maxConsumed {
		maps.DeleteFunc(c.keys, func(_ types.NamespacedName, at time.Time) bool { return now.Sub(at) > consumedTTL })
		if len(c.keys) >= maxConsumed {
			clear(c.keys)
		}
	}
	c.keys[key] = now
}

func (c *consumed) has(key types.NamespacedName, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.keys[key]
	return ok && now.Sub(at) <= consumedTTL
}
