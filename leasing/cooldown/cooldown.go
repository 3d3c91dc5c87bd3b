// Package cooldown computes for which targets a proxy must rest and until when. It is pure: who writes the result, and
// when, is decided elsewhere.
package cooldown

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// Default is the first cooldown after a rate limit.
	Default = 15 * time.Minute
	// Banned is the first cooldown after a ban.
	Banned = time.Hour
	// Max is the longest cooldown, escalated or asked for.
	Max = 24 * time.Hour
	// Quiet is how long after its end a cooldown is remembered: a report within it escalates, a later one starts anew.
	Quiet = time.Hour
	// coalesce is the share of a cooldown, and of Default at most, below which a mere extension is not worth a write: what a
	// target asked for is never shortened by much.
	coalesce = 10
)

// Hit is a report that a target has had enough of a proxy.
type Hit struct {
	Target string
	Result v1alpha1.ReportResult
	// InstanceID is the incarnation that was seen by the target.
	InstanceID string
	// RetryAfter is what the target asked for; it counts when it is longer.
	RetryAfter time.Duration
	// Repeat: the same lease has reported this target before. A repetition never escalates.
	Repeat bool
}

// Cools tells whether a result puts a proxy to rest at all.
func Cools(r v1alpha1.ReportResult) bool {
	return r == v1alpha1.ReportRateLimited || r == v1alpha1.ReportBanned
}

// Add takes a hit in and gives the new list, pruned, sorted by target and at most v1alpha1.MaxCooldowns long. changed is
// false when what is stored already says as much. evicted counts live cooldowns that had to make room.
//
// The end never moves to an earlier moment. Hits escalate only when the former cooldown of the target has ended: while one
// runs, further reports are about the same incident, however many leases see it.
func Add(list []v1alpha1.Cooldown, hit Hit, now time.Time) (out []v1alpha1.Cooldown, changed bool, evicted int) {
	out = Prune(list, hit.InstanceID, now)
	i := slices.IndexFunc(out, func(c v1alpha1.Cooldown) bool { return c.Target == hit.Target })
	if i < 0 {
		out = append(out, v1alpha1.Cooldown{Target: hit.Target, InstanceID: hit.InstanceID})
		i = len(out) - 1
	}
	c := &out[i]
	old := end(*c)
	hits := max(c.Hits, 1)
	if ended := !old.After(now); ended && c.Hits > 0 && !hit.Repeat {
		hits = c.Hits + 1
	}
	length := max(escalated(hit.Result, hits), min(hit.RetryAfter, Max))
	until := ceilSecond(now.Add(length))
	if old.After(now) && until.Sub(old) < min(length, Default)/coalesce {
		return list, false, 0
	}
	if until.After(old) {
		c.UntilTime = &metav1.Time{Time: until}
	}
	c.Hits = hits
	out, evicted = bound(out, hit.Target, now)
	return out, true, evicted
}

// Prune drops what has no effect any more: cooldowns of another incarnation and those that ended more than Quiet ago.
func Prune(list []v1alpha1.Cooldown, instanceID string, now time.Time) []v1alpha1.Cooldown {
	out := make([]v1alpha1.Cooldown, 0, len(list)+1)
	for _, c := range list {
		if c.InstanceID == instanceID && end(c).Add(Quiet).After(now) {
			out = append(out, *c.DeepCopy())
		}
	}
	return out
}

// Live are the cooldowns of the incarnation that run now.
func Live(list []v1alpha1.Cooldown, instanceID string, now time.Time) []v1alpha1.Cooldown {
	var out []v1alpha1.Cooldown
	for _, c := range list {
		if c.InstanceID == instanceID && end(c).After(now) {
			out = append(out, c)
		}
	}
	return out
}

// Carry merges the live cooldowns of a proxy that goes away into those of another one that leaves by the same exit, by the
// later end.
func Carry(list []v1alpha1.Cooldown, instanceID string, from []v1alpha1.Cooldown, now time.Time) (out []v1alpha1.Cooldown, changed bool) {
	out = Prune(list, instanceID, now)
	for _, c := range from {
		if !end(c).After(now) {
			continue
		}
		i := slices.IndexFunc(out, func(o v1alpha1.Cooldown) bool { return o.Target == c.Target })
		if i < 0 {
			out = append(out, v1alpha1.Cooldown{Target: c.Target, UntilTime: c.UntilTime.DeepCopy(), Hits: c.Hits, InstanceID: instanceID})
			changed = true
			continue
		}
		if end(c).After(end(out[i])) {
			out[i].UntilTime, out[i].Hits = c.UntilTime.DeepCopy(), max(out[i].Hits, c.Hits)
			changed = true
		}
	}
	if !changed {
		return list, false
	}
	out, _ = bound(out, "", now)
	return out, true
}

// Until is when a proxy with these cooldowns may be leased for the target; zero when it may now.
func Until(list []v1alpha1.Cooldown, instanceID, target string, now time.Time) time.Time {
	for _, c := range list {
		if c.Target == target && c.InstanceID == instanceID && end(c).After(now) {
			return end(c)
		}
	}
	return time.Time{}
}

// escalated is the length of the cooldown after so many hits.
func escalated(result v1alpha1.ReportResult, hits int32) time.Duration {
	length := Default
	if result == v1alpha1.ReportBanned {
		length = Banned
	}
	for ; hits > 1 && length < Max; hits-- {
		length *= 2
	}
	return min(length, Max)
}

// bound sorts by target and keeps the list within the schema's limit. Ended cooldowns go first, then those that end
// soonest; the one of keep stays, because its report was just promised.
func bound(list []v1alpha1.Cooldown, keep string, now time.Time) (out []v1alpha1.Cooldown, evicted int) {
	if extra := len(list) - v1alpha1.MaxCooldowns; extra > 0 {
		slices.SortFunc(list, func(a, b v1alpha1.Cooldown) int {
			switch {
			case a.Target == keep:
				return 1
			case b.Target == keep:
				return -1
			}
			return cmp.Or(end(a).Compare(end(b)), cmp.Compare(a.Target, b.Target))
		})
		for _, c := range list[:extra] {
			if end(c).After(now) {
				evicted++
			}
		}
		list = list[extra:]
	}
	slices.SortFunc(list, func(a, b v1alpha1.Cooldown) int { return cmp.Compare(a.Target, b.Target) })
	return list, evicted
}

func end(c v1alpha1.Cooldown) time.Time {
	if c.UntilTime == nil {
		return time.Time{}
	}
	return c.UntilTime.Time
}

// ceilSecond rounds up: the API stores whole seconds, and a cooldown must not become shorter by that.
func ceilSecond(t time.Time) time.Time {
	if r := t.Truncate(time.Second); !r.Equal(t) {
		return r.Add(time.Second)
	}
	return t
}
