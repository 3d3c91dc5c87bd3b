package retention

import "sync"

const (
	// DefaultMaxLeases is the most ProxyLease objects, live and finished ones of all namespaces, up to which leases are granted
	// by HTTP.
	DefaultMaxLeases = 20_000
	// releaseShare of the limit, in percent, is how few leases there must be until they are granted again.
	releaseShare = 90
)

// Brake refuses more leases when there are too many, until there are clearly fewer. It is safe for concurrent use.
type Brake struct {
	// Max is how many objects pull the brake.
	Max int

	mu sync.Mutex
	on bool
}

// On tells whether the brake is pulled with that many objects.
func (b *Brake) On(objects int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.on {
		b.on = objects > b.release()
	} else {
		b.on = objects >= b.Max
	}
	return b.on
}

// Excess is how many objects have to go for the brake to be released; 0 when it is not pulled.
func (b *Brake) Excess(objects int) int {
	if !b.On(objects) {
		return 0
	}
	return objects - b.release()
}

func (b *Brake) release() int { return b.Max * releaseShare / 100 }
