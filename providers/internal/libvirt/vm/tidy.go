package vm

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/digitalocean/go-libvirt"
	"github.com/google/uuid"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

const (
	// suspectKept is for how long a volume may appear after the call that makes it was given up: longer than any call may take
	// on a host whose storage hangs.
	suspectKept = 10 * time.Minute
	// cleanLimit is how long a build that has failed may look for what it has made, in real time.
	cleanLimit = 5 * time.Second
)

// Lost are the incarnations on one host whose building was cut off. Whether a call of theirs is still carried out cannot be
// known. It outlives the Engine that has lost them, since a class that is changed gets another one. The zero value is ready.
type Lost struct {
	mu   sync.Mutex
	lost map[string]suspect
}

// suspect is such an incarnation.
type suspect struct {
	record record
	since  time.Time
}

// add notes an incarnation. since is when it was lost; the zero time when nothing of it can be late.
func (l *Lost) add(r record, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.lost = map[string]suspect{}
	}
	if known, twice := l.lost[r.UUID]; !twice || known.since.Before(since) {
		l.lost[r.UUID] = suspect{r, since}
	}
}

func (l *Lost) all() map[string]suspect {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.lost)
}

func (l *Lost) drop(uuid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.lost, uuid)
}

// vanished notes what the operator has recorded of a machine whose name is gone: somebody may have had libvirt forget it, and
// nothing else tells whose its volumes are. Of a machine that may be on another host, which may share the pool, it notes nothing.
func (e *Engine) vanished(ref providers.Ref) {
	if ref.Zone != e.Host.Name {
		return
	}
	for _, id := range []string{ref.Operation, strings.TrimPrefix(ref.ProviderID, e.providerID(""))} {
		parsed, err := uuid.Parse(id)
		if err != nil || e.buildOf(id) != nil {
			continue
		}
		domain := libvirt.Domain{Name: ref.Name, UUID: libvirt.UUID(parsed), ID: noID}
		e.Lost.add(record{domain, virtxml.Domain{Name: ref.Name, UUID: parsed.String(), Pool: e.Host.Pool}}, time.Time{})
	}
}

// Tidy deletes volumes that appeared after their machine was removed. It knows them by the incarnations whose building this
// process has lost, or the operator has recorded, not by what lies in the pool: a pool may be shared with hosts whose machines
// cannot be seen from here.
func (e *Engine) Tidy(ctx context.Context) error {
	suspects := e.Lost.all()
	if len(suspects) == 0 {
		return nil
	}
	return e.Control.Do(ctx, func(c *rpc.Conn) error {
		for uuid, s := range suspects {
			there, err := tidy(ctx, c, s.record)
			if rpc.CodeOf(err) != 0 {
				// The host can be used all the same.
				e.Logger.Info("Volumes that no machine has cannot be removed; it is tried again", "host", e.Host.Name, "instance", s.record.Name,
					"error", err.Error())
				continue
			}
			if err != nil {
				return err
			}
			if (!there || s.since.IsZero()) && e.Clock.Since(s.since) > suspectKept {
				e.Lost.drop(uuid)
			}
		}
		return nil
	})
}

// clean takes back what a build has made whose record was removed under it, by the next Engine of the class or by another
// process: whoever did it could not wait for the build. If the record is there, its deletion takes the volumes along.
func (e *Engine) clean(b *build) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.ctx), cleanLimit)
	defer cancel()
	// What fails now is done by Tidy.
	_ = e.Control.Do(ctx, func(c *rpc.Conn) error {
		_, err := tidy(ctx, c, b.record)
		return err
	})
}

// tidy removes the volumes of a record, unless it is there.
func tidy(ctx context.Context, c *rpc.Conn, r record) (there bool, err error) {
	switch _, err := read(ctx, c, r.domain); {
	case err == nil:
		return true, nil
	case !errors.Is(err, errNoRecord):
		return false, err
	}
	return false, removeVolumes(ctx, c, r)
}
