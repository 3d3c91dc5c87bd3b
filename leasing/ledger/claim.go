package ledger

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// An exclusive lease needs a proxy that is empty, and a steady stream of shared ones never leaves one empty. So exclusive
// requests that have waited for a while claim a proxy: it takes no other lease until it is empty and theirs.
//
// A claim is a wish and not a right for ever. A proxy may hold leases that never end, so a claim moves on when its window
// is over, and after it has had every proxy in vain it rests for a window. Each round its windows are twice as long. That
// bounds both sides: leases that end within MaxClaimWindow cannot keep an exclusive one out, and an exclusive one that
// nothing can serve keeps nobody out for good.

const (
	// ClaimWindow is how long an exclusive request claims a proxy in its first round: until then ordinary leases have ended,
	// unless they were renewed.
	ClaimWindow = v1alpha1.DefaultLeaseTTLSeconds * time.Second
	// MaxClaimWindow is the longest window.
	MaxClaimWindow = time.Hour
	// claimedShare bounds the claims: of the proxies of a namespace that take leases, one in so many is claimed at once, and
	// one at least.
	claimedShare = 2
)

// claim is what exclusive requests of one kind claim.
type claim struct {
	namespace string
	proxy     *proxy // nil: none, or it rests
	// until is when the claim moves on.
	until  time.Time
	window time.Duration
	// tried in this round.
	tried map[types.UID]struct{}
}

// Claim makes an empty proxy likely for exclusive requests of one kind, which name key in Request.Claim: one that could
// serve them but for its leases takes no others from now on. It keeps what is claimed already as long as that makes sense, and
// is to be called again whenever something changed and at the moment it returns; zero: nothing can be claimed now.
func (l *Ledger) Claim(key string, r Request, now time.Time) (until time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.open || key == "" || r.Mode != v1alpha1.LeaseExclusive {
		return time.Time{}
	}
	c := l.claims[key]
	if c == nil {
		c = &claim{namespace: r.Lease.Namespace, window: ClaimWindow, tried: map[types.UID]struct{}{}}
		l.claims[key] = c
	}
	if c.proxy != nil && !l.claimable(c.proxy, key, r, now) {
		l.unclaim(c)
	}
	if now.Before(c.until) {
		return c.until
	}
	l.unclaim(c)
	best, usable := l.nominate(c, key, r, now)
	switch {
	case best != nil:
		c.proxy, best.claim = best, key
		c.tried[best.uid] = struct{}{}
		l.reindex(best.key)
	case usable:
		clear(c.tried)
	default:
		return time.Time{}
	}
	c.until = now.Add(c.window)
	if best == nil {
		c.window = min(2*c.window, MaxClaimWindow)
	}
	return c.until
}

// Withdraw ends a claim: nobody waits for it any more.
func (l *Ledger) Withdraw(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.withdraw(key)
}

// Claimed is how many proxies are claimed by exclusive requests.
func (l *Ledger) Claimed() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, c := range l.claims {
		if c.proxy != nil {
			n++
		}
	}
	return n
}

func (l *Ledger) withdraw(key string) {
	if c := l.claims[key]; c != nil {
		l.unclaim(c)
		delete(l.claims, key)
	}
}

// unclaim gives the claimed proxy back; the next Claim chooses anew.
func (l *Ledger) unclaim(c *claim) {
	p := c.proxy
	if p == nil {
		return
	}
	c.proxy, c.until, p.claim = nil, time.Time{}, ""
	l.reindex(p.key)
}

// nominate finds the proxy with the fewest leases that was not tried yet. usable tells that there is one at all.
func (l *Ledger) nominate(c *claim, key string, r Request, now time.Time) (best *proxy, usable bool) {
	s := l.spaces[r.Lease.Namespace]
	if s == nil {
		return nil, false
	}
	open := 0
	for _, class := range s.classes {
		for p := range class.members {
			if p.closed == "" {
				open++
			}
			if !l.claimable(p, key, r, now) {
				continue
			}
			usable = true
			if _, tried := c.tried[p.uid]; tried {
				continue
			}
			if best == nil || p.load() < best.load() || p.load() == best.load() && p.key.Name < best.key.Name {
				best = p
			}
		}
	}
	claimed := 0
	for _, other := range l.claims {
		if other.proxy != nil && other.namespace == r.Lease.Namespace {
			claimed++
		}
	}
	if claimed >= max(1, open/claimedShare) {
		return nil, false
	}
	return best, usable
}

// claimable tells whether the request could be given the proxy if that were empty.
func (l *Ledger) claimable(p *proxy, key string, r Request, now time.Time) bool {
	switch {
	case p.closed != "", p.claim != "" && p.claim != key, p.usage.exclusives > 0, p.object.Status.Exclusive != nil:
		return false
	case r.ProxyName != "":
		if p.key.Name != r.ProxyName {
			return false
		}
	case !r.Selector.Matches(p.class.labels):
		return false
	}
	return l.suits(p, r, now)
}

// claimedFor is the proxy that the request has claimed, once it can be given; nil when there is none.
func (l *Ledger) claimedFor(r Request, now time.Time) *proxy {
	c := l.claims[r.Claim]
	if c == nil || c.proxy == nil || c.proxy.load() > 0 || !l.claimable(c.proxy, r.Claim, r, now) {
		return nil
	}
	return c.proxy
}
