package leasing

import (
	"errors"
	"strings"
	"sync"

	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

var (
	errQueueFull     = errors.New("too many calls wait for a proxy")
	errIdentityLimit = errors.New("too many calls of this identity wait for a proxy")
	errHolderLimit   = errors.New("too many calls of this holder wait for a proxy")
)

// caller is who calls, for the limits of calls that wait. A holder is made up by whoever calls; an identity is not.
type caller struct{ identity, holder string }

func callerOf(r httpapi.LeaseRequest) caller {
	return caller{identity: r.Identity, holder: r.Namespace + "/" + r.Holder}
}

// identityOf is whose turns a lease by object takes: what comes before the first slash of its holder. That is the caller of a
// lease that another replica has made for a call, unless its identity has a slash itself: then it shares the turns of those
// that begin alike, and has a limit of its own all the same.
func identityOf(holder string) string {
	identity, _, _ := strings.Cut(holder, "/")
	return identity
}

// calls counts the calls for a lease that wait: for a proxy, for the leader's decision, or for another call with their
// Idempotency-Key.
type calls struct {
	// max calls of all, of one identity and of one holder.
	max, perIdentity, perHolder int

	mu                  sync.Mutex
	all                 int
	identities, holders tally
}

// tally counts by name.
type tally map[string]int

func (t tally) add(name string, n int) {
	if t[name] += n; t[name] == 0 {
		delete(t, name)
	}
}

// enter counts one that begins to wait, or refuses it. leave is to be called when it waits no more.
func (c *calls) enter(who caller) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.all >= c.max:
		return nil, errQueueFull
	case c.identities[who.identity] >= c.perIdentity:
		return nil, errIdentityLimit
	case c.holders[who.holder] >= c.perHolder:
		return nil, errHolderLimit
	}
	c.add(who, 1)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.add(who, -1)
	}, nil
}

func (c *calls) add(who caller, n int) {
	if c.identities == nil {
		c.identities, c.holders = tally{}, tally{}
	}
	c.all += n
	c.identities.add(who.identity, n)
	c.holders.add(who.holder, n)
}

// len is how many wait.
func (c *calls) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all
}
