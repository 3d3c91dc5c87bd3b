package leasing

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// metrics of leasing. None has a label with more than a handful of values.
type metrics struct {
	grants    *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	refusals  *prometheus.CounterVec
	ended     *prometheus.CounterVec
	renewals  *prometheus.CounterVec
	reports   *prometheus.CounterVec
	evicted   prometheus.Counter
	unknown   prometheus.Counter
	conflicts prometheus.Counter
	collected *prometheus.CounterVec
	epoch     prometheus.Gauge
	recovery  prometheus.Gauge
	asked     *prometheus.CounterVec
}

// Ways in which a lease is asked for, as metrics name them.
const (
	pathHTTP     = "http"
	pathCR       = "cr"
	pathFollower = "follower"
)

func newMetrics(a *Allocator, r prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "proxy_operator_leases_" + name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: "proxy_operator_leases_" + name, Help: help}
	}
	m := &metrics{
		grants: counter("grants_total", "Leases granted, by the way they were asked for.", "path"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "proxy_operator_leases_grant_duration_seconds", Help: "Time from the request to the grant, waiting included, by the way it was asked for.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"path"}),
		refusals:  counter("refusals_total", "Calls for a lease that were refused, by reason: why there was no proxy, or else the code of the answer.", "reason"),
		ended:     counter("ended_total", "Leases that ended or could not be granted, by reason.", "reason"),
		renewals:  counter("renewals_total", "Renewals, by whether they had to be written.", "written"),
		reports:   counter("reports_total", "Reports of holders, by result.", "result"),
		evicted:   prometheus.NewCounter(prometheus.CounterOpts{Name: "proxy_operator_leases_cooldowns_evicted_total", Help: "Cooldowns dropped before their end because a proxy had too many."}),
		unknown:   prometheus.NewCounter(prometheus.CounterOpts{Name: "proxy_operator_leases_unknown_outcomes_total", Help: "Writes whose outcome was not known at first."}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Name: "proxy_operator_leases_exclusive_conflicts_total", Help: "Exclusive leases that found their proxy held by another."}),
		collected: counter("collected_total", "Finished leases that were deleted, by cause: their age, too many of their namespace, or the brake.", "cause"),
		epoch:     prometheus.NewGauge(gauge("leader_epoch", "Epoch of the grants of this leader; 0 on a replica that does not lead.")),
		asked:     counter("leader_asked_total", "Calls for a lease that this replica, which does not lead, passed to the leader: answered, or else unreachable or unknown, and a lease was made for it to find.", "outcome"),
		recovery:  prometheus.NewGauge(gauge("recovery_seconds", "How long the recovery at the start of this leader took.")),
	}
	slots := func(pick func() int) func() float64 { return func() float64 { return float64(pick()) } }
	for _, c := range []prometheus.Collector{
		m.grants, m.duration, m.refusals, m.ended, m.renewals, m.reports, m.evicted, m.unknown, m.conflicts, m.collected, m.epoch, m.recovery, m.asked,
		prometheus.NewGaugeFunc(gauge("bound", "Leases that hold a proxy."), slots(func() int { _, n := a.ledger.Counts(); return n })),
		prometheus.NewGaugeFunc(gauge("writing", "Grants whose write is under way or unknown."), slots(func() int { n, _ := a.ledger.Counts(); return n })),
		prometheus.NewGaugeFunc(gauge("overcommitted_proxies", "Proxies that carry more leases than their capacity."), slots(a.ledger.CountOvercommitted)),
		prometheus.NewGaugeFunc(gauge("claimed_proxies", "Proxies that are kept for an Exclusive lease that waits."), slots(a.ledger.Claimed)),
		prometheus.NewGaugeFunc(gauge("finished", "Leases that have ended and still exist; known to the leader."), slots(a.finished.Len)),
		prometheus.NewGaugeFunc(gauge("objects", "Leases that exist, live and finished ones."), slots(a.objects)),
		prometheus.NewGaugeFunc(gauge("brake_on", "1 while there are too many leases to grant more by HTTP."), func() float64 {
			if a.braked() {
				return 1
			}
			return 0
		}),
		prometheus.NewGaugeFunc(gauge("waiting", "Leases that wait for a proxy."), slots(a.waiting.lenObjects)),
		prometheus.NewGaugeFunc(gauge("waiting_calls", "Calls that wait for a proxy."), slots(a.calls.len)),
		prometheus.NewGaugeFunc(gauge("cooldowns", "Cooldowns that run, of all proxies; known to the leader."), slots(func() int { return a.ledger.CountCooldowns(a.Clock.Now()) })),
	} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of leasing: %w", err)
		}
	}
	return m, nil
}

// counted counts what becomes of calls for a lease.
type counted struct{ Backend }

// Lease implements httpapi.Backend.
func (c counted) Lease(ctx context.Context, r httpapi.LeaseRequest) (httpapi.Lease, bool, error) {
	lease, replayed, err := c.Backend.Lease(ctx, r)
	if err != nil {
		c.metrics.refusals.WithLabelValues(refusalReason(err)).Inc()
	}
	return lease, replayed, err
}

// refusalReason is one of a handful of words.
func refusalReason(err error) string {
	refused, ok := errors.AsType[*httpapi.Error](err)
	switch {
	case !ok:
		return wire.CodeInternal
	case refused.Code == wire.CodeNoProxy && refused.Reason != "":
		return refused.Reason
	}
	return refused.Code
}
