package guard

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Metrics of the calls to providers. A nil *Metrics counts nothing.
type Metrics struct {
	duration *prometheus.HistogramVec
	refused  *prometheus.CounterVec
	open     *prometheus.GaugeVec
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
		open: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxy_operator_provider_breaker_open",
			Help: "1 while the circuit breaker of the class is open or half open, else 0.",
		}, []string{"type", "class"}),
	}
	var err error
	m.duration, err = register(registerer, m.duration, err)
	m.refused, err = register(registerer, m.refused, err)
	m.open, err = register(registerer, m.open, err)
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

func (m *Metrics) called(o Options, method string, reason providers.Reason, took time.Duration, open bool) {
	if m == nil {
		return
	}
	m.duration.WithLabelValues(string(o.Type), o.Class, method, string(reason)).Observe(took.Seconds())
	value := 0.0
	if open {
		value = 1
	}
	m.open.WithLabelValues(string(o.Type), o.Class).Set(value)
}

func (m *Metrics) rejected(o Options, method string, err error) {
	if m == nil {
		return
	}
	cause := "rate"
	if errors.Is(err, providers.ErrBreakerOpen) {
		cause = "breaker"
	}
	m.refused.WithLabelValues(string(o.Type), o.Class, method, cause).Inc()
}

// forget drops what is true only while the class is open; the counts stay.
func (m *Metrics) forget(o Options) {
	if m == nil {
		return
	}
	m.open.DeleteLabelValues(string(o.Type), o.Class)
}
