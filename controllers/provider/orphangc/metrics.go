package orphangc

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// sweepBuckets reach from an answer of a local API to the end of a sweep's time, in seconds.
var sweepBuckets = []float64{.05, .25, 1, 5, 15, 60, 120, 300}

type metrics struct {
	orphans, tripped, lastSuccess *prometheus.GaugeVec
	deleted, saved, failures      *prometheus.CounterVec
	duration                      *prometheus.HistogramVec
}

// newMetrics registers the metrics, or finds those that were registered before: several managers may share a process.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	labels := []string{"type", "class"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		orphans: gauge("proxy_operator_provider_orphans", "Instances without a Proxy that the last sweep of the class found."),
		tripped: gauge("proxy_operator_provider_orphan_breaker_tripped",
			"1 while the class has so many instances without a Proxy that none is deleted until a person confirms it, else 0."),
		lastSuccess: gauge("proxy_operator_provider_orphan_sweep_last_success_timestamp_seconds",
			"When a sweep of the class last saw all instances and all Proxies. Absent while orphans are not to be looked for."),
		deleted: counter("proxy_operator_provider_orphans_deleted_total", "Instances without a Proxy that were deleted."),
		saved: counter("proxy_operator_provider_orphans_saved_total",
			"Instances taken for orphans whose Proxy was found by the last look. Anything but 0 is a bug."),
		failures: counter("proxy_operator_provider_orphan_sweep_failures_total",
			"Sweeps of the class that failed or were not done in time, and those that could not delete what they found."),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "proxy_operator_provider_orphan_sweep_duration_seconds",
			Help:    "Duration of the sweeps of the class.",
			Buckets: sweepBuckets,
		}, labels),
	}
	var err error
	m.orphans, err = register(registerer, m.orphans, err)
	m.tripped, err = register(registerer, m.tripped, err)
	m.lastSuccess, err = register(registerer, m.lastSuccess, err)
	m.deleted, err = register(registerer, m.deleted, err)
	m.saved, err = register(registerer, m.saved, err)
	m.failures, err = register(registerer, m.failures, err)
	m.duration, err = register(registerer, m.duration, err)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func register[C prometheus.Collector](registerer prometheus.Registerer, c C, before error) (C, error) {
	if before != nil || registerer == nil {
		return c, before
	}
	err := registerer.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing, nil
		}
	}
	if err != nil {
		return c, fmt.Errorf("register metric: %w", err)
	}
	return c, nil
}

// memory is what is known of one class from sweep to sweep, with its metrics. A restart starts anew, which delays a
// deletion by one sweep.
type memory struct {
	*metrics
	labels prometheus.Labels
	// strikes belong to the sweep that is under way.
	strikes map[string]bool

	mu          sync.Mutex
	busy, ended bool
}

// remember starts what is known of a class. Counters start at 0, so that the first event is a change.
func (m *metrics) remember(kind v1alpha1.ProviderType, class string) *memory {
	out := &memory{metrics: m, labels: prometheus.Labels{"type": string(kind), "class": class}}
	for _, counter := range []*prometheus.CounterVec{m.deleted, m.saved, m.failures} {
		counter.With(out.labels).Add(0)
	}
	return out
}

// begin starts a sweep, unless one is under way.
func (m *memory) begin() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.busy {
		return false
	}
	m.busy = true
	return true
}

func (m *memory) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy = false
}

// forget ends the series of a class that is gone.
func (m *memory) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ended = true
	m.orphans.Delete(m.labels)
	m.tripped.Delete(m.labels)
	m.lastSuccess.Delete(m.labels)
	m.metrics.deleted.Delete(m.labels)
	m.metrics.saved.Delete(m.labels)
	m.failures.Delete(m.labels)
	m.duration.Delete(m.labels)
}

// note runs f unless the class is gone: a sweep that ends late must not bring its series back.
func (m *memory) note(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ended {
		f()
	}
}

func (m *memory) swept(took time.Duration, err error) {
	m.note(func() {
		m.duration.With(m.labels).Observe(took.Seconds())
		if err != nil {
			m.failures.With(m.labels).Inc()
		}
	})
}

// found tells what a sweep that saw everything found.
func (m *memory) found(result Result, now time.Time) {
	m.note(func() {
		tripped := 0.0
		if result.Tripped && !result.Confirmed {
			tripped = 1
		}
		m.orphans.With(m.labels).Set(float64(result.Orphans))
		m.tripped.With(m.labels).Set(tripped)
		m.lastSuccess.With(m.labels).Set(float64(now.Unix()))
	})
}

// disabled takes back what is not known any more.
func (m *memory) disabled() {
	m.note(func() {
		m.orphans.Delete(m.labels)
		m.tripped.Delete(m.labels)
		m.lastSuccess.Delete(m.labels)
	})
}

func (m *memory) deleted() { m.note(func() { m.metrics.deleted.With(m.labels).Inc() }) }

func (m *memory) saved() { m.note(func() { m.metrics.saved.With(m.labels).Inc() }) }
