package instance

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// budget bounds how many Proxies of a class do something at the same time. It lives in memory: after a restart it is
// seeded with those that are at it according to their status.
type budget struct {
	mu      sync.Mutex
	classes map[types.UID]map[types.NamespacedName]struct{}
	// waiting are those that were refused a place since.
	waiting map[types.UID]map[types.NamespacedName]struct{}
}

func newBudget() *budget {
	return &budget{classes: map[types.UID]map[types.NamespacedName]struct{}{}, waiting: map[types.UID]map[types.NamespacedName]struct{}{}}
}

// waits is how many in a class were refused a place and have not got one since.
func (b *budget) waits(class types.UID) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting[class])
}

// take gives the Proxy a place among limit, or keeps the one it has. seed is asked once for each class.
func (b *budget) take(class types.UID, proxy types.NamespacedName, limit int, seed func() ([]types.NamespacedName, error)) (bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	holders, known := b.classes[class]
	if !known {
		seeds, err := seed()
		if err != nil {
			return false, err
		}
		holders = map[types.NamespacedName]struct{}{}
		for _, name := range seeds {
			holders[name] = struct{}{}
		}
		b.classes[class] = holders
	}
	if _, ok := holders[proxy]; ok {
		return true, nil
	}
	if len(holders) >= limit {
		if b.waiting[class] == nil {
			b.waiting[class] = map[types.NamespacedName]struct{}{}
		}
		b.waiting[class][proxy] = struct{}{}
		return false, nil
	}
	holders[proxy] = struct{}{}
	delete(b.waiting[class], proxy)
	return true, nil
}

// free gives the Proxy's place back.
func (b *budget) free(proxy types.NamespacedName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, holders := range b.classes {
		delete(holders, proxy)
	}
	for _, waiting := range b.waiting {
		delete(waiting, proxy)
	}
}
