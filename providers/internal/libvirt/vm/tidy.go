package vm

import (
	"context"
	"errors"
	"maps"
	"time"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// suspectKept is for how long a volume may appear after the call that makes it was given up: longer than any call may take
// on a host whose storage hangs.
const suspectKept = 10 * time.Minute

// suspect is an incarnation whose building was cut off. Whether a call of it is still carried out cannot be known.
type suspect struct {
	record record
	since  time.Time
}

func (e *Engine) suspect(r record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.suspects[r.UUID] = suspect{r, e.Clock.Now()}
}

// Tidy deletes volumes that appeared after their machine was removed. It knows them by the incarnations whose building this
// process has lost, not by what lies in the pool: a pool may be shared with hosts whose machines cannot be seen from here.
func (e *Engine) Tidy(ctx context.Context) error {
	e.mu.Lock()
	suspects := maps.Clone(e.suspects)
	e.mu.Unlock()
	if len(suspects) == 0 {
		return nil
	}
	return e.Control.Do(ctx, func(c *rpc.Conn) error {
		for uuid, s := range suspects {
			switch _, err := read(ctx, c, s.record.domain); {
			case err == nil:
				// It is still there, and its deletion takes its volumes along.
				continue
			case !errors.Is(err, errNoRecord):
				return err
			}
			if err := removeVolumes(ctx, c, s.record); err != nil {
				return err
			}
			if e.Clock.Since(s.since) > suspectKept {
				e.mu.Lock()
				delete(e.suspects, uuid)
				e.mu.Unlock()
			}
		}
		return nil
	})
}
