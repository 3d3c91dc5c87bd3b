package libvirt

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
)

// metrics of all classes of a manager.
type metrics struct {
	space  *prometheus.GaugeVec
	calls  *prometheus.HistogramVec
	images *images.Metrics
}

// rpcBuckets reach from an answer of libvirtd to the limit of a call, in seconds.
var rpcBuckets = []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 30}

// newMetrics registers the metrics, or finds those that were registered before. A nil registerer registers nothing.
func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	downloads, err := images.NewMetrics(registerer)
	if err != nil {
		return nil, fmt.Errorf("register the metrics of images: %w", err)
	}
	m := &metrics{
		images: downloads,
		space: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxy_operator_libvirt_pool_free_bytes",
			Help: "Space of a host's storage pool that is neither used nor promised to thin disks.",
		}, []string{"type", "class", "host"}),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "proxy_operator_libvirt_rpc_duration_seconds",
			Help:    "Duration of RPCs to libvirtd. code is libvirt's error, 0 for success, -1 without an answer.",
			Buckets: rpcBuckets,
		}, []string{"type", "procedure", "code"}),
	}
	if registerer == nil {
		return m, nil
	}
	if m.space, err = register(registerer, m.space); err != nil {
		return nil, fmt.Errorf("register the metrics of hosts: %w", err)
	}
	if m.calls, err = register(registerer, m.calls); err != nil {
		return nil, fmt.Errorf("register the metrics of RPCs: %w", err)
	}
	return m, nil
}

func register[T prometheus.Collector](registerer prometheus.Registerer, c T) (T, error) {
	err := registerer.Register(c)
	if known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		return known.ExistingCollector.(T), nil
	}
	return c, err
}

func (m *metrics) free(t v1alpha1.ProviderType, class, host string, bytes int64) {
	m.space.WithLabelValues(string(t), class, host).Set(float64(bytes))
}

// forget drops what a class that is closed has said of a host.
func (m *metrics) forget(t v1alpha1.ProviderType, class, host string) {
	m.space.DeleteLabelValues(string(t), class, host)
}

func (m *metrics) observe(t v1alpha1.ProviderType) func(string, int, time.Duration) {
	return func(procedure string, code int, took time.Duration) {
		m.calls.WithLabelValues(string(t), procedure, strconv.Itoa(code)).Observe(took.Seconds())
	}
}
