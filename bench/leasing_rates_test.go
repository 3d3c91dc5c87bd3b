//go:build bench

package bench

import (
	"context"
	"strings"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
)

func ofLeases(w write) bool { return w.group == v1alpha1.GroupName && w.resource == "proxyleases" }

// throughput measures leases per second at the leader and at a follower against raw creations, and the writes of each.
func (b *leasingBench) throughput() {
	t := b.t
	t.Helper()
	b.note("%d rounds of %d leases each by %d callers; raw is the creation of the same objects by as many writers, half of them before and half after",
		leaseRounds, leasesPerRound, leaseWriters)
	warm, _ := b.leases(b.leader, leaseWriters, leasesPerRound, longTTL)
	b.give(b.leader, warm)
	b.rawCreates(leaseWriters, leasesPerRound)
	b.clearRaw()
	var leader, raw, follower, detached, pairs, ratio, followerRatio, pairRatio sample
	var leaderWork, rawWork, followerWork, detachedWork, pairWork work
	perSecond := func(total *work, n int, do func() time.Duration) float64 {
		before := b.api.work(t)
		took := do()
		*total = total.plus(b.api.work(t).since(before))
		return float64(n) / took.Seconds()
	}
	for i := range leaseRounds {
		var all []granted
		by := func(c *core, n int) func() time.Duration {
			return func() (took time.Duration) {
				all, took = b.leases(c, leaseWriters, n, longTTL)
				return took
			}
		}
		half := func() time.Duration { return b.rawCreates(leaseWriters, leasesPerRound/2) }
		before := perSecond(&rawWork, leasesPerRound/2, half)
		leader = append(leader, perSecond(&leaderWork, leasesPerRound, by(b.leader, leasesPerRound)))
		after := perSecond(&rawWork, leasesPerRound/2, half)
		b.clearRaw()
		b.give(b.leader, all)
		follower = append(follower, perSecond(&followerWork, leasesPerRound, by(b.follower, leasesPerRound)))
		b.give(b.follower, all)
		detached = append(detached, perSecond(&detachedWork, leasesPerRound, by(b.detached, leasesPerRound)))
		b.give(b.detached, all)
		pairs = append(pairs, perSecond(&pairWork, leasesPerRound, func() time.Duration { return b.rawPairs(leaseWriters, leasesPerRound) }))
		b.clearRaw()
		raw = append(raw, 2/(1/before+1/after))
		ratio, followerRatio = append(ratio, leader[i]/raw[i]), append(followerRatio, follower[i]/leader[i])
		pairRatio = append(pairRatio, detached[i]/pairs[i])
	}
	// From here on there are two: the other steps are about those that may come to lead.
	b.detached.Kill()
	const n = leaseRounds * leasesPerRound
	b.note("leases per second at the leader: %v", leader)
	b.note("leases per second at a follower that asks the leader: %v", follower)
	b.note("leases per second at a follower that makes objects: %v", detached)
	b.note("raw per second: %v", raw)
	b.note("raw pairs of a creation and a write of the status per second: %v", pairs)
	b.note("CPU of the API server: %.2f ms per lease at the leader, %.2f ms at the follower that asks it, %.2f ms at the other one, %.2f ms per raw creation, %.2f ms per raw pair",
		1000*leaderWork.cpu/n, 1000*followerWork.cpu/n, 1000*detachedWork.cpu/n, 1000*rawWork.cpu/n, 1000*pairWork.cpu/n)
	b.note("http_vs_raw_create: %v", ratio)
	b.atLeast("http_vs_raw_create", ratio.median(), minHTTPVsRaw)
	b.note("writes per lease at the leader: %s", leaderWork.each(n, func(write) bool { return true }))
	b.note("writes per lease at the follower that asks it: %s", followerWork.each(n, func(write) bool { return true }))
	b.atMost("writes_per_http_lease", leaderWork.count(func(w write) bool { return ofLeases(w) || ofProxies(w) })/n, maxWritesPerLease)
	b.note("follower_vs_leader: %v", followerRatio)
	b.atLeast("follower_vs_leader", followerRatio.median(), minFollowerVsLeader)
	b.note("follower_vs_raw_writes: %v", pairRatio)
	b.atLeast("follower_vs_raw_writes", pairRatio.median(), minFollowerVsRawWrites)
}

// bursts measures burst300_vs_raw. The collector of the API server needs as much CPU for one of its runs as half a burst does,
// and runs after every few bursts. So it is the sums that are compared, and which side begins changes, lest it always falls on
// the same one.
func (b *leasingBench) bursts() {
	b.t.Helper()
	var leased, raw sample
	ours := func() {
		all, took := b.leases(b.leader, burst, burst, longTTL)
		b.give(b.leader, all)
		leased = append(leased, took.Seconds())
	}
	theirs := func() {
		raw = append(raw, b.rawCreates(burst, burst).Seconds())
		b.clearRaw()
	}
	for i := range burstRounds {
		if i%2 == 0 {
			ours()
			theirs()
		} else {
			theirs()
			ours()
		}
	}
	b.note("seconds for %d leases at once: %v", burst, leased)
	b.note("seconds for %d raw creations at once: %v", burst, raw)
	b.atMost("burst300_vs_raw", leased.sum()/raw.sum(), maxBurstVsRaw)
}

// rawLease is the object that the leader creates, for a namespace that nobody watches.
func (b *leasingBench) rawLease() *v1alpha1.ProxyLease {
	return &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.raw, Name: "http-" + strings.ReplaceAll(uuid.NewString(), "-", "") + "00000000", Annotations: b.sample.Annotations,
		},
		Spec: *b.sample.Spec.DeepCopy(),
	}
}

// rawCreates creates n leases directly, and gives the time that it took.
func (b *leasingBench) rawCreates(workers, n int) time.Duration {
	b.t.Helper()
	return b.parallel(workers, n, func(ctx context.Context, _ int) error { return b.client.Create(ctx, b.rawLease()) })
}

// rawPairs does n times what a lease at a follower is for the API server, the creation of a pending lease and one write of
// its status, without anything else.
func (b *leasingBench) rawPairs(workers, n int) time.Duration {
	b.t.Helper()
	return b.parallel(workers, n, func(ctx context.Context, _ int) error {
		lease := b.pending("pair-" + uuid.NewString())
		lease.Namespace = b.raw
		if err := b.client.Create(ctx, lease); err != nil {
			return err
		}
		return statusapply.Whole(ctx, b.client, v1alpha1.ManagerLeasing, lease, &lease.Status, b.bound.Status.DeepCopy())
	})
}

// clearRaw deletes what was created without an operator.
func (b *leasingBench) clearRaw() {
	b.t.Helper()
	b.must(b.client.DeleteAllOf(b.t.Context(), &v1alpha1.ProxyLease{}, client.InNamespace(b.raw)))
}
