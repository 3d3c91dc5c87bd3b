package guard

import (
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Metrics of the calls to providers. A nil *Metrics counts nothing.
type Metrics struct {
	duration *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	panics   *prometheus.CounterVec
	breaker  *prometheus.GaugeVec

	mu sync.Mutex
	// guards is how many of each class are open. When a class changes there are two for a moment.
	guards map[string]int
}

// callBuckets reach from an answer of a local API to the longest timeout, in seconds.
var callBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 90}

// NewMetrics registers the metrics, or finds those that were registered before: several managers may share a process. A nil
// registerer registers nothing.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "proxy_operator_provider_call_duration_seconds",
			Help:    "Duration of calls to providers. reason is empty for success, else a reason of the error taxonomy.",
			Buckets: callBuckets,
		}, []string{"type", "class", "method", "reason"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_calls_refused_total",
			Help: "Calls to providers that were not made. cause is breaker or rate.",
		}, []string{"type", "class", "method", "cause"}),
		panics: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_panics_total",
			Help: "Calls to providers that ended in a panic. Anything but 0 is a bug of the provider.",
		}, []string{"type", "class", "method"}),
		breaker: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxy_operator_provider_breaker_open",
			Help: "1 while the circuit breaker of the class is open or half open, else 0.",
		}, []string{"type", "class"}),
		guards: map[string]int{},
	}
	var err error
	m.duration, err = register(registerer, m.duration, err)
	m.refused, err = register(registerer, m.refused, err)
	m.panics, err = register(registerer, m.panics, err)
	m.breaker, err = register(registerer, m.breaker, err)
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
	return c, err
}

// series are those of one guard. A nil *series counts nothing.
type series struct {
	*Metrics
	kind, class string
	closed      bool // guarded by Metrics.mu
}

// open starts the series of a class, or goes on with those of the guard that is replaced.
func (m *Metrics) open(o Options) *series {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &series{Metrics: m, kind: string(o.Type), class: o.Class}
	m.guards[s.key()]++
	m.breaker.WithLabelValues(s.kind, s.class).Set(0)
	return s
}

// close ends the series with the last guard of the class, so that a class that is gone leaves none behind.
func (s *series) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	if s.guards[s.key()]--; s.guards[s.key()] > 0 {
		return
	}
	delete(s.guards, s.key())
	mine := prometheus.Labels{"type": s.kind, "class": s.class}
	s.duration.DeletePartialMatch(mine)
	s.Metrics.refused.DeletePartialMatch(mine)
	s.panics.DeletePartialMatch(mine)
	s.breaker.DeletePartialMatch(mine)
}

func (s *series) key() string { return s.kind + "/" + s.class }

// count runs f unless the guard is closed: a call that ends late must not bring the series of a class back.
func (s *series) count(f func()) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		f()
	}
}

func (s *series) called(method string, reason providers.Reason, took time.Duration, open bool) {
	s.count(func() {
		s.duration.WithLabelValues(s.kind, s.class, method, string(reason)).Observe(took.Seconds())
		value := 0.0
		if open {
			value = 1
		}
		s.breaker.WithLabelValues(s.kind, s.class).Set(value)
	})
}

func (s *series) refused(method string, err error) {
	cause := "rate"
	if errors.Is(err, providers.ErrBreakerOpen) {
		cause = "breaker"
	}
	s.count(func() { s.Metrics.refused.WithLabelValues(s.kind, s.class, method, cause).Inc() })
}

func (s *series) panicked(method string) {
	s.count(func() { s.panics.WithLabelValues(s.kind, s.class, method).Inc() })
}
