package grant

import (
	"context"
	"fmt"
	"hash/fnv"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// How single calls to the API server are made: bounded in time, number and frequency.

func (p *Pipeline) readLive(ctx context.Context, key types.NamespacedName, lease *v1alpha1.ProxyLease) error {
	return attempt(ctx, func(ctx context.Context) error { return p.Live.Get(ctx, key, lease) })
}

// write makes one call that writes, in one of the writers' slots. A slot is taken for the call only and never for a pause:
// writes that are not answered must not keep others from being sent.
func (p *Pipeline) write(ctx context.Context, call func(context.Context) error) error {
	p.once.Do(p.init)
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.slots }()
	return attempt(ctx, call)
}

func (p *Pipeline) changed() {
	if p.OnChange != nil {
		p.OnChange()
	}
}

func (p *Pipeline) unknown(ctx context.Context, err error, message string, lease *v1alpha1.ProxyLease) {
	if ctx.Err() != nil {
		return // given up by us, and the caller says so
	}
	p.Log.Error(err, message, "lease", client.ObjectKeyFromObject(lease))
	if p.OnUnknown != nil {
		p.OnUnknown()
	}
}

// backoff gives a function that waits, a little longer each time. It is false when ctx ended.
func (p *Pipeline) backoff(ctx context.Context) func() bool {
	pause := backoffMin
	return func() bool {
		timer := p.Clock.NewTimer(pause)
		defer timer.Stop()
		pause = min(2*pause, backoffMax)
		select {
		case <-timer.C():
			return ctx.Err() == nil
		case <-ctx.Done():
			return false
		}
	}
}

func attempt(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	return call(ctx)
}

func (p *Pipeline) init() {
	p.slots = make(chan struct{}, writers)
	for i := range p.proxies {
		p.proxies[i] = make(chan struct{}, 1)
	}
}

// lockProxy serialises the writes of one Proxy by this process, so that they do not conflict with each other.
func (p *Pipeline) lockProxy(ctx context.Context, key types.NamespacedName) (unlock func(), err error) {
	p.once.Do(p.init)
	h := fnv.New32a()
	_, _ = h.Write([]byte(key.String()))
	stripe := p.proxies[h.Sum32()%uint32(len(p.proxies))]
	select {
	case stripe <- struct{}{}:
		return func() { <-stripe }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the writes of proxy %s: %w", key, ctx.Err())
	}
}
