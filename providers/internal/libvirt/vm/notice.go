package vm

import (
	"context"

	"github.com/digitalocean/go-libvirt"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// noID is the id of a domain that does not run.
const noID = -1

// saw remembers a machine that ran when it was looked at, and forgets one that did not.
func (e *Engine) saw(i providers.Instance) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i.State == providers.StateRunning && e.mine(i.Owner) {
		e.running[i.ID] = i.Owner
		return
	}
	delete(e.running, i.ID)
}

// Notice wakes the owners of machines that ran and do not any more, or are gone. It is one call for all machines of the host,
// and makes up for the minutes between two looks at each of them.
func (e *Engine) Notice(ctx context.Context) error {
	var domains []libvirt.Domain
	if err := e.Control.Do(ctx, func(c *rpc.Conn) (err error) {
		domains, err = c.Domains(ctx)
		return err
	}); err != nil {
		return err
	}
	runs := map[string]bool{}
	for _, d := range domains {
		runs[uuidOf(d)] = d.ID != noID
	}
	e.mu.Lock()
	var stopped []providers.Owner
	for id, owner := range e.running {
		if !runs[id] {
			stopped = append(stopped, owner)
			delete(e.running, id)
		}
	}
	e.mu.Unlock()
	for _, owner := range stopped {
		e.Wake(owner)
	}
	return nil
}
