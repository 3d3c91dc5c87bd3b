package orphangc

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	orphans        *prometheus.GaugeVec
	deleted, saved *prometheus.CounterVec
}

// newMetrics registers the metrics, or finds those that were registered before: several managers may share a process.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	labels := []string{"type", "class"}
	m := &metrics{
		orphans: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxy_operator_provider_orphans",
			Help: "Instances without a Proxy that the last sweep of the class found.",
		}, labels),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_orphans_deleted_total",
			Help: "Instances without a Proxy that were deleted.",
		}, labels),
		saved: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_provider_orphans_saved_total",
			Help: "Instances taken for orphans whose Proxy was found by the last look. Anything but 0 is a bug.",
		}, labels),
	}
	if registerer == nil {
		return m, nil
	}
	var err error
	if m.orphans, err = register(registerer, m.orphans); err != nil {
		return nil, err
	}
	if m.deleted, err = register(registerer, m.deleted); err != nil {
		return nil, err
	}
	m.saved, err = register(registerer, m.saved)
	return m, err
}

func register[C prometheus.Collector](registerer prometheus.Registerer, c C) (C, error) {
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
