package leasing

import (
	"cmp"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// account compares what a leader believes with what there is, when nothing is under way.
func (w *simWorld) account(p *simProcess) {
	b := p.backend
	load := map[types.UID]int{}
	exclusive := map[types.UID]int{}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	var proxies []*v1alpha1.Proxy
	all := 0
	for _, o := range w.api.objects {
		switch o := o.(type) {
		case *v1alpha1.Proxy:
			proxies = append(proxies, o)
		case *v1alpha1.ProxyLease:
			if record.Holds(o) {
				held, _ := record.BindingOf(o)
				load[held.ProxyUID]++
				all++
				if o.Spec.Mode == v1alpha1.LeaseExclusive {
					exclusive[held.ProxyUID]++
				}
			}
		}
	}
	for _, px := range proxies {
		key := types.NamespacedName{Namespace: px.Namespace, Name: px.Name}
		if got := b.ledger.Load(px.UID); got != load[px.UID] {
			w.fail("the ledger has %d leases on proxy %s, and there are %d", got, px.UID, load[px.UID])
		}
		if over := load[px.UID] > simCapacity; over != b.ledger.Overcommitted(key, px.UID) {
			w.fail("proxy %s carries %d and counts as overcommitted: %v", px.UID, load[px.UID], !over)
		}
		if exclusive[px.UID] > 0 && load[px.UID] > 1 {
			w.fail("proxy %s carries %d leases, %d of them exclusive, and nothing is done about it", px.UID, load[px.UID], exclusive[px.UID])
		}
	}
	if reserved, bound := b.ledger.Counts(); reserved != 0 || bound != all {
		w.fail("%d slots are being written and %d written, and there are %d leases", reserved, bound, all)
	}
	// What is kept for calls that have ended is nothing.
	b.flights.mu.Lock()
	flights := len(b.flights.busy)
	b.flights.mu.Unlock()
	b.followed.mu.Lock()
	followed := len(b.followed.calls)
	b.followed.mu.Unlock()
	if n := b.waiting.len() + b.calls.len(); n+flights+followed+b.ledger.Claimed() != 0 {
		w.fail("%d wait, %d keys and %d watches are remembered, %d proxies are claimed", n, flights, followed, b.ledger.Claimed())
	}
	if _, ok := b.deadlines.Next(); ok && all == 0 {
		w.fail("a deadline is left of no lease")
	}
}

// ordered checks that leases of one holder that waited when their leader came were granted in the order in which they came.
// Only without faults: whoever could not be written waits again, at the end.
func (w *simWorld) ordered() {
	if w.seed%5 != 0 || w.storm() {
		return
	}
	slices.SortFunc(w.bound, func(a, b simGrant) int { return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.seq, b.seq)) })
	last := map[string]simGrant{}
	for _, b := range w.bound {
		if b.created.UnixMilli() >= b.epoch {
			continue
		}
		line := fmt.Sprint(b.epoch, " ", b.holder)
		if before, ok := last[line]; ok && cmp.Or(before.created.Compare(b.created), cmp.Compare(before.uid, b.uid)) > 0 {
			w.fail("lease %s of %s was granted before %s, which had waited longer", before.uid, b.holder, b.uid)
		}
		last[line] = b
	}
}

// simulate runs schedules, several at a time, and tells how many of them show doubles. check is called for each; no more
// begin after it was false.
func simulate(t *testing.T, runs int, change func(*simWorld), check func(*simWorld) (goOn bool)) (doubled, granted int) {
	first := *simFirst
	switch {
	case *simSeed != 0:
		first, runs = *simSeed, 1
	case *simRuns != 0:
		runs = *simRuns
	case testing.Short():
		runs = min(runs, 20)
	}
	// Garbage is most of the cost: each schedule has processes of its own.
	defer debug.SetGCPercent(debug.SetGCPercent(400))
	seeds := make(chan uint64)
	var mu sync.Mutex
	var enough atomic.Bool
	var workers sync.WaitGroup
	for range 2 {
		workers.Go(func() {
			for seed := range seeds {
				w := run(t, seed, change)
				w.ordered()
				mu.Lock()
				granted += w.granted
				if len(w.doubles) > 0 {
					doubled++
				}
				if !check(w) {
					enough.Store(true)
				}
				mu.Unlock()
			}
		})
	}
	ran := 0
	for seed := first; seed < first+uint64(runs) && !enough.Load(); seed++ {
		seeds <- seed
		ran++
	}
	close(seeds)
	workers.Wait()
	t.Logf("%d schedules, %d grants, doubles in %d", ran, granted, doubled)
	return doubled, granted
}

// kept fails the test for every promise that a schedule has broken.
func kept(t *testing.T) func(*simWorld) bool {
	return func(w *simWorld) bool {
		for _, problem := range append(w.doubles, w.broken...) {
			t.Errorf("seed %d (-sim.seed=%d): %s", w.seed, w.seed, problem)
		}
		return true
	}
}
