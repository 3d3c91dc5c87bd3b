package proxypool

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// registerMetrics makes the gauge by which autoscalers size a pool. It shows what waits for an empty pool too, which no
// metric of its proxies could.
func (r *Reconciler) registerMetrics() error {
	r.demand = prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "proxy_operator", Subsystem: "pool", Name: "demand",
		Help: "Leases that the proxies of a pool carry and those that wait for one of them.",
	}, []string{"namespace", "pool"})
	if r.Registerer == nil {
		return nil
	}
	if err := r.Registerer.Register(r.demand); err != nil {
		return fmt.Errorf("register the metrics of pools: %w", err)
	}
	return nil
}

func (r *Reconciler) setDemand(pool types.NamespacedName, leased, pending int32) {
	if r.demand != nil {
		r.demand.WithLabelValues(pool.Namespace, pool.Name).Set(float64(leased + pending))
	}
}

func (r *Reconciler) forgetDemand(pool types.NamespacedName) {
	if r.demand != nil {
		r.demand.DeleteLabelValues(pool.Namespace, pool.Name)
	}
}
