package grant

import (
	"context"
	"sync"
)

// inflight is what is under way. Unlike a sync.WaitGroup it may be added to while somebody waits: whoever served a request
// just before the leadership ended begins to write just after.
type inflight struct {
	mu   sync.Mutex
	n    int
	idle chan struct{} // closed at zero; nil while nobody waits
}

// Go runs f in a goroutine of its own.
func (i *inflight) Go(f func()) {
	i.mu.Lock()
	i.n++
	i.mu.Unlock()
	go func() {
		defer i.done()
		f()
	}()
}

func (i *inflight) done() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.n--; i.n == 0 && i.idle != nil {
		close(i.idle)
		i.idle = nil
	}
}

// wait returns when nothing is under way or ctx ends.
func (i *inflight) wait(ctx context.Context) {
	i.mu.Lock()
	if i.n == 0 {
		i.mu.Unlock()
		return
	}
	if i.idle == nil {
		i.idle = make(chan struct{})
	}
	idle := i.idle
	i.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
}
