package ledger

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// maxSelectorShown is how much of a selector a message repeats, in bytes: a selector may be longer than a condition.
const maxSelectorShown = 256

// Explain says why a request cannot be granted now. Of a request that can be granted it says nothing useful.
func (l *Ledger) Explain(r Request, now time.Time) *NoProxyError {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.explain(r, now)
}

func (l *Ledger) explain(r Request, now time.Time) *NoProxyError {
	if r.ProxyName != "" {
		return l.explainPin(r, now)
	}
	var excluded, matching, open, cooling, claimed int
	var closed string
	var earliest time.Time
	if s := l.spaces[r.Lease.Namespace]; s != nil {
		for _, c := range s.classes {
			if !r.Selector.Matches(c.labels) {
				continue
			}
			for p := range c.members {
				if slices.Contains(r.Excluded, p.key.Name) {
					excluded++
					continue
				}
				matching++
				if p.closed != "" {
					closed = p.closed
					continue
				}
				open++
				if p.claim != "" && p.claim != r.Claim {
					claimed++
				}
				if until := l.cooling(p, r.Targets, now); !until.IsZero() {
					cooling++
					if earliest.IsZero() || until.Before(earliest) {
						earliest = until
					}
				}
			}
		}
	}
	switch {
	case matching == 0:
		message := lookedFor(r)
		if excluded > 0 {
			message += ", but for those that are excluded"
		}
		return &NoProxyError{Reason: v1alpha1.ReasonNoProxy, Message: message, Unmatched: excluded == 0}
	case open == 0 && matching == 1:
		return &NoProxyError{Reason: v1alpha1.ReasonNoProxy, Message: "The only matching proxy takes no leases: " + closed}
	case open == 0:
		return &NoProxyError{Reason: v1alpha1.ReasonNoProxy, Message: fmt.Sprintf("None of %d matching proxies takes leases", matching)}
	case cooling == open:
		return &NoProxyError{
			Reason: v1alpha1.ReasonCooling, Earliest: earliest,
			Message: fmt.Sprintf("All %d matching proxies that take leases cool down for a target", open),
		}
	}
	message := fmt.Sprintf("None of %d matching proxies that take leases is free", open)
	if claimed > 0 {
		message += fmt.Sprintf("; %d kept for exclusive leases that wait", claimed)
	}
	return &NoProxyError{Reason: v1alpha1.ReasonAtCapacity, Earliest: earliest, Message: message}
}

func (l *Ledger) explainPin(r Request, now time.Time) *NoProxyError {
	p := l.proxies[types.NamespacedName{Namespace: r.Lease.Namespace, Name: r.ProxyName}]
	if p == nil {
		return &NoProxyError{
			Reason: v1alpha1.ReasonProxyNotFound, Unmatched: true, Message: fmt.Sprintf("Proxy %s does not exist", r.ProxyName),
		}
	}
	if p.closed != "" {
		return &NoProxyError{Reason: v1alpha1.ReasonNoProxy, Message: fmt.Sprintf("Proxy %s takes no leases: %s", r.ProxyName, p.closed)}
	}
	if until := l.cooling(p, r.Targets, now); !until.IsZero() {
		return &NoProxyError{
			Reason: v1alpha1.ReasonCooling, Earliest: until,
			Message: fmt.Sprintf("Proxy %s cools down for a target", r.ProxyName),
		}
	}
	return &NoProxyError{Reason: v1alpha1.ReasonPinnedBusy, Message: fmt.Sprintf("Proxy %s is not free", r.ProxyName)}
}

// lookedFor says that there is no proxy as a request wants it, and how that is.
func lookedFor(r Request) string {
	requirements, selects := r.Selector.Requirements()
	if !selects {
		return "The lease selects no Proxy"
	}
	pool, rest := "", labels.NewSelector()
	for _, q := range requirements {
		if values := q.ValuesUnsorted(); q.Key() == v1alpha1.LabelPool && q.Operator() == selection.Equals && len(values) == 1 && pool == "" {
			pool = values[0]
		} else {
			rest = rest.Add(q)
		}
	}
	shown := rest.String()
	if len(shown) > maxSelectorShown { // labels are ASCII
		shown = shown[:maxSelectorShown] + "…"
	}
	switch {
	case pool == "" && shown == "":
		return "There is no Proxy in namespace " + r.Lease.Namespace
	case pool == "":
		return fmt.Sprintf("No Proxy in namespace %s has %s", r.Lease.Namespace, shown)
	case shown == "":
		return fmt.Sprintf("No Proxy in namespace %s is of pool %s", r.Lease.Namespace, pool)
	}
	return fmt.Sprintf("No Proxy in namespace %s is of pool %s and has %s", r.Lease.Namespace, pool, shown)
}
