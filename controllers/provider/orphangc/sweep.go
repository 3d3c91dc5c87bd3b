// Package orphangc deletes instances whose Proxy is gone. It is the net under the instance controller, for the accidents
// that nothing else can see: a Proxy that was released by hand, a predecessor's call that arrived after everything.
//
// Its order makes it safe. An instance is made only for a Proxy that exists, and UIDs never come back; so when a complete
// and current list of Proxies, taken after the list of instances, lacks an instance's UID, that Proxy is gone for good,
// whatever caches, leaders and clocks do. All else guards against restored backups, shared accounts and mistakes.
package orphangc

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// DefaultMinAge is how old an instance must be: more than any attempt and any start takes.
	DefaultMinAge = 30 * time.Minute
	// DefaultMaxDeletes is how many instances one sweep of one class deletes.
	DefaultMaxDeletes = 5
	// breakerMin and breakerShare: more orphans than both, as a number and as a part of all instances, look like a mistake.
	breakerMin   = 3
	breakerShare = 0.2
)

// Policy of a sweep.
type Policy struct {
	ClusterID string
	// Namespaces that are watched; empty means all. Owners in others are never candidates.
	Namespaces []string
	MinAge     time.Duration
	MaxDeletes int
	// Confirmed is how many orphans a person said may go although there are so many; 0 for none.
	Confirmed int
}

// Result of a sweep.
type Result struct {
	// Delete are the orphans that may be deleted after a last look, oldest first.
	Delete []providers.Instance
	// Orphans is how many there are, young in the list of strikes or not.
	Orphans int
	// Tripped tells that there are so many, or no Proxy at all, that a mistake is likely. Then nothing is deleted unless it
	// is Confirmed.
	Tripped, NoProxies, Confirmed bool
	// Strikes are the incarnations that were orphans in this sweep, for the next one.
	Strikes map[string]bool
}

// Sweep decides which instances of a class are orphans that may be deleted. instances must have been listed before live,
// the UIDs of all Proxies of the cluster, and both must be complete. strikes are those of the previous sweep.
func Sweep(instances []providers.Instance, live map[types.UID]bool, strikes map[string]bool, now time.Time, p Policy) Result {
	result := Result{Strikes: map[string]bool{}}
	var orphans []providers.Instance
	candidates := 0
	for _, i := range instances {
		if !candidate(i, now, p) {
			continue
		}
		candidates++
		if !live[i.Owner.UID] {
			orphans = append(orphans, i)
			result.Strikes[strikeOf(i)] = true
		}
	}
	result.Orphans = len(orphans)
	result.NoProxies = len(live) == 0 && candidates > 0
	result.Tripped = result.NoProxies || len(orphans) > max(breakerMin, int(breakerShare*float64(len(instances))))
	// A confirmation is about what a person has seen. More orphans than that are something else.
	result.Confirmed = result.Tripped && len(orphans) <= p.Confirmed
	if result.Tripped && !result.Confirmed {
		return result
	}
	for _, i := range orphans {
		if strikes[strikeOf(i)] {
			result.Delete = append(result.Delete, i)
		}
	}
	slices.SortFunc(result.Delete, func(a, b providers.Instance) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(strikeOf(a), strikeOf(b)))
	})
	result.Delete = result.Delete[:min(len(result.Delete), p.MaxDeletes)]
	return result
}

// candidate tells whether an instance may be looked at: marked as ours, old enough, and not on its way out.
func candidate(i providers.Instance, now time.Time, p Policy) bool {
	return i.Owner.ClusterID != "" && i.Owner.ClusterID == p.ClusterID &&
		i.Owner.UID != "" && i.Owner.Namespace != "" && i.Owner.Name != "" && i.Name != "" && i.ID != "" &&
		(len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, i.Owner.Namespace)) &&
		i.State != providers.StateTerminating &&
		!i.CreatedAt.IsZero() && now.Sub(i.CreatedAt) >= p.MinAge
}

// strikeOf is the key of one incarnation.
func strikeOf(i providers.Instance) string {
	return i.Zone + "/" + i.Name + "/" + i.ID + "/" + string(i.Owner.UID)
}
