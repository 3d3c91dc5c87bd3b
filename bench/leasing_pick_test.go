//go:build bench

package bench

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
)

const (
	// manyProxies and fewProxies are in the ledgers whose picks are compared.
	manyProxies, fewProxies = 10_000, 100
	// leasesPerProxy hold slots all the time.
	leasesPerProxy = 3
	// picks of each ledger in a round, pickRounds one after the other.
	picks, pickRounds = 2_500, 81
	// pickTargets are what leases are for, in turn.
	pickTargets = 8
)

// picker is a ledger whose proxies have leases.
type picker struct {
	ledger *ledger.Ledger
	held   []ledger.Reservation
	next   int
}

func newPicker(proxies int) (*picker, error) {
	p := &picker{ledger: ledger.New(nil)}
	p.ledger.Open()
	for i := range proxies {
		id := fmt.Sprintf("p-%d", i)
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{
			Namespace: "bench", Name: id, UID: types.UID(id), Generation: 1, ResourceVersion: "1",
			Labels: map[string]string{"geo": []string{"eu", "us", "ap"}[i%3]},
		}}
		px.Spec.Mode, px.Spec.Leasing, px.Spec.Capacity = v1alpha1.ModeExternal, v1alpha1.LeasingEnabled, new(int32(10))
		px.Status = v1alpha1.ProxyStatus{
			ObservedGeneration: 1, Instance: &v1alpha1.Instance{ID: id, Addresses: []string{"192.0.2.1"}},
			Health: &v1alpha1.Health{InstanceID: id}, EgressIdentity: "instance/" + id,
		}
		for _, name := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionHealthy} {
			meta.SetStatusCondition(&px.Status.Conditions, metav1.Condition{Type: name, Status: metav1.ConditionTrue, Reason: "Bench", ObservedGeneration: 1})
		}
		p.ledger.ObserveProxy(px)
	}
	p.ledger.Start(1, "1")
	p.held = make([]ledger.Reservation, proxies*leasesPerProxy)
	for range p.held {
		if err := p.pick(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// pick gives the oldest lease back and takes a proxy for a new one.
func (p *picker) pick() error {
	slot := &p.held[p.next%len(p.held)]
	if slot.Proxy != nil {
		p.ledger.Cancel(*slot)
	}
	r, err := p.ledger.Reserve(ledger.Request{
		Lease:    types.NamespacedName{Namespace: "bench", Name: fmt.Sprintf("l-%d", p.next)},
		Selector: labels.SelectorFromSet(labels.Set{"geo": "eu"}), Mode: v1alpha1.LeaseShared,
		Targets: []string{fmt.Sprintf("target-%d.example", p.next%pickTargets)},
	}, time.Now())
	if err != nil {
		return err
	}
	*slot = r
	p.next++
	return nil
}

// nanoseconds that a pick takes, with its return.
func (p *picker) nanoseconds() (float64, error) {
	start := time.Now()
	for range picks {
		if err := p.pick(); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(start).Nanoseconds()) / picks, nil
}

// pick measures pick_10k_vs_100: the choice of a proxy and the way back, in memory.
func (b *leasingBench) pick() {
	b.t.Helper()
	few, err := newPicker(fewProxies)
	b.must(err)
	many, err := newPicker(manyProxies)
	b.must(err)
	var fewTimes, manyTimes sample
	for range pickRounds {
		small, err := few.nanoseconds()
		b.must(err)
		large, err := many.nanoseconds()
		b.must(err)
		fewTimes, manyTimes = append(fewTimes, small), append(manyTimes, large)
	}
	b.note("ns per pick with %d proxies: %.0f, median %.0f", fewProxies, slices.Min(fewTimes), fewTimes.median())
	b.note("ns per pick with %d proxies: %.0f, median %.0f", manyProxies, slices.Min(manyTimes), manyTimes.median())
	b.note("the fastest rounds count: the others have waited for a CPU")
	b.atMost("pick_10k_vs_100", slices.Min(manyTimes)/slices.Min(fewTimes), maxPickGrowth)
}
