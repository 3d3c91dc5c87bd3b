package orphangc

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
)

var (
	tableNow    = time.Unix(1_700_000_000, 0)
	tablePolicy = Policy{ClusterID: "cluster", MinAge: DefaultMinAge, MaxDeletes: DefaultMaxDeletes}
)

// instance is one of ours, an hour old, whose Proxy has the UID "uid-NAME".
func instance(name string, change ...func(*providers.Instance)) providers.Instance {
	i := providers.Instance{
		Ref:       providers.Ref{Name: name, ID: "id-" + name},
		Owner:     providers.Owner{ClusterID: "cluster", Namespace: "ns", Name: name, UID: types.UID("uid-" + name)},
		State:     providers.StateRunning,
		CreatedAt: tableNow.Add(-time.Hour),
	}
	for _, f := range change {
		f(&i)
	}
	return i
}

func alive(names ...string) map[types.UID]bool {
	live := map[types.UID]bool{}
	for _, name := range names {
		live[types.UID("uid-"+name)] = true
	}
	return live
}

func TestSweep(t *testing.T) {
	struck := func(instances ...providers.Instance) map[string]bool {
		strikes := map[string]bool{}
		for _, i := range instances {
			strikes[strikeOf(i)] = true
		}
		return strikes
	}
	confirmed := func(n int) Policy {
		policy := tablePolicy
		policy.Confirmed = n
		return policy
	}
	change := func(f func(*providers.Instance)) providers.Instance { return instance("gone", f) }
	many := func(n int) (all []providers.Instance) {
		for i := range n {
			all = append(all, instance(fmt.Sprintf("gone-%02d", i), func(x *providers.Instance) { x.CreatedAt = x.CreatedAt.Add(-time.Duration(i) * time.Minute) }))
		}
		return all
	}
	living := func(n int) (all []providers.Instance, live map[types.UID]bool) {
		live = map[types.UID]bool{}
		for i := range n {
			all = append(all, instance(fmt.Sprintf("px-%d", i)))
			live[all[i].Owner.UID] = true
		}
		return all, live
	}
	hundred, hundredLive := living(100)

	for _, test := range []struct {
		name      string
		instances []providers.Instance
		live      map[types.UID]bool
		strikes   map[string]bool
		policy    Policy
		deleted   int
		orphans   int
		tripped   bool
	}{
		{name: "A32 a live Proxy's instance", instances: []providers.Instance{instance("px")}, live: alive("px"), strikes: struck(instance("px"))},
		{name: "A34 the first strike", instances: []providers.Instance{instance("gone")}, live: alive("px"), orphans: 1},
		{name: "A34 the second strike", instances: []providers.Instance{instance("gone")}, live: alive("px"), strikes: struck(instance("gone")), orphans: 1, deleted: 1},
		{name: "a strike is of one incarnation", instances: []providers.Instance{change(func(i *providers.Instance) { i.ID = "next" })}, live: alive("px"), strikes: struck(instance("gone")), orphans: 1},
		{name: "A34 too young", instances: []providers.Instance{change(func(i *providers.Instance) { i.CreatedAt = tableNow.Add(time.Second - DefaultMinAge) })}, live: alive("px"), strikes: struck(instance("gone"))},
		{name: "of unknown age", instances: []providers.Instance{change(func(i *providers.Instance) { i.CreatedAt = time.Time{} })}, live: alive("px"), strikes: struck(instance("gone"))},
		{name: "A34 of another cluster", instances: []providers.Instance{change(func(i *providers.Instance) { i.Owner.ClusterID = "other" })}, live: alive("px")},
		{name: "A34 without a mark", instances: []providers.Instance{change(func(i *providers.Instance) { i.Owner = providers.Owner{} })}, live: alive("px")},
		{name: "without the owner's UID", instances: []providers.Instance{change(func(i *providers.Instance) { i.Owner.UID = "" })}, live: alive("px")},
		{name: "A32 on its way out", instances: []providers.Instance{change(func(i *providers.Instance) { i.State = providers.StateTerminating })}, live: alive("px")},
		{name: "in a namespace that is not watched", instances: []providers.Instance{instance("gone")}, live: alive("px"), strikes: struck(instance("gone")), policy: Policy{ClusterID: "cluster", Namespaces: []string{"other"}, MinAge: DefaultMinAge, MaxDeletes: 5}},
		{name: "A33 no Proxy at all", instances: []providers.Instance{instance("gone")}, live: alive(), strikes: struck(instance("gone")), orphans: 1, tripped: true},
		{name: "nothing at all", live: alive()},
		{name: "too many", instances: many(breakerMin + 1), live: alive("px"), strikes: struck(many(breakerMin + 1)...), orphans: breakerMin + 1, tripped: true},
		{name: "as many as may be", instances: many(breakerMin), live: alive("px"), strikes: struck(many(breakerMin)...), orphans: breakerMin, deleted: breakerMin},
		{name: "a share of many, a few at a time", instances: append(many(10), hundred...), live: hundredLive, strikes: struck(many(10)...), orphans: 10, deleted: DefaultMaxDeletes},
		{name: "too many, confirmed", instances: many(8), live: alive("px"), strikes: struck(many(8)...), policy: confirmed(8), orphans: 8, tripped: true, deleted: DefaultMaxDeletes},
		{name: "too many, more confirmed", instances: many(8), live: alive("px"), strikes: struck(many(8)...), policy: confirmed(9), orphans: 8, tripped: true, deleted: DefaultMaxDeletes},
		{name: "too many, fewer confirmed", instances: many(8), live: alive("px"), strikes: struck(many(8)...), policy: confirmed(7), orphans: 8, tripped: true},
		{name: "confirmed and not seen twice", instances: many(8), live: alive("px"), policy: confirmed(8), orphans: 8, tripped: true},
		{name: "no Proxy at all, confirmed", instances: []providers.Instance{instance("gone")}, live: alive(), strikes: struck(instance("gone")), policy: confirmed(1), orphans: 1, tripped: true, deleted: 1},
		{name: "confirmed for nothing", instances: many(breakerMin), live: alive("px"), strikes: struck(many(breakerMin)...), policy: confirmed(1), orphans: breakerMin, deleted: breakerMin},
		{name: "too great a share", instances: append(many(26), hundred...), live: hundredLive, strikes: struck(many(26)...), orphans: 26, tripped: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			policy := test.policy
			if policy.ClusterID == "" {
				policy = tablePolicy
			}
			got := Sweep(test.instances, test.live, test.strikes, tableNow, policy)
			if len(got.Delete) != test.deleted || got.Orphans != test.orphans || got.Tripped != test.tripped {
				t.Errorf("delete %d, orphans %d, tripped %v; want %d, %d, %v", len(got.Delete), got.Orphans, got.Tripped, test.deleted, test.orphans, test.tripped)
			}
			for i := 1; i < len(got.Delete); i++ {
				if got.Delete[i].CreatedAt.Before(got.Delete[i-1].CreatedAt) {
					t.Error("not the oldest first")
				}
			}
		})
	}
}

func TestSweep_WithoutClusterIDNothingIsOurs(t *testing.T) {
	i := instance("gone", func(i *providers.Instance) { i.Owner.ClusterID = "" })
	if got := Sweep([]providers.Instance{i}, alive("px"), map[string]bool{strikeOf(i): true}, tableNow, Policy{MinAge: time.Second, MaxDeletes: 5}); got.Orphans != 0 {
		t.Errorf("got %+v", got)
	}
}
