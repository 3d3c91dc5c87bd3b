package proxypool

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// firstRetry is how soon a decision on outdated data, or what the API server refuses, is tried again for the first time.
	firstRetry = 100 * time.Millisecond
	// lastRetry is how rarely it is tried in the end, doubling from firstRetry. The queue's own backoff goes up to many minutes,
	// and meanwhile drains, deadlines and counts of leases would stand still.
	lastRetry = 10 * time.Second
)

// failures counts, for each pool, how often in a row it could not be brought on.
type failures struct {
	mu     sync.Mutex
	inARow map[types.NamespacedName]int
}

// next is when to try again after one more failure.
func (f *failures) next(pool types.NamespacedName) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.inARow == nil {
		f.inARow = map[types.NamespacedName]int{}
	}
	wait := firstRetry
	for range f.inARow[pool] {
		if wait *= 2; wait >= lastRetry {
			return lastRetry
		}
	}
	f.inARow[pool]++
	return wait
}

// forget them: the pool was brought on, or is gone.
func (f *failures) forget(pool types.NamespacedName) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.inARow, pool)
}
