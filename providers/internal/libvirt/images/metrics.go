package images

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Metrics of the downloads of all classes of a manager. A nil *Metrics counts nothing.
type Metrics struct {
	bytes     *prometheus.CounterVec
	downloads *prometheus.CounterVec
}

// NewMetrics registers the metrics, or finds those that were registered before. A nil registerer registers nothing.
func NewMetrics(registerer prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_libvirt_image_bytes_total",
			Help: "Bytes of base images that were brought to a host.",
		}, []string{"host", "image"}),
		downloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_libvirt_image_downloads_total",
			Help: "Downloads of base images that have ended. reason is empty for success, else a reason of the error taxonomy.",
		}, []string{"host", "image", "reason"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range []**prometheus.CounterVec{&m.bytes, &m.downloads} {
		if err := registerer.Register(*c); err != nil {
			known, ok := errors.AsType[prometheus.AlreadyRegisteredError](err)
			if !ok {
				return nil, err
			}
			*c = known.ExistingCollector.(*prometheus.CounterVec)
		}
	}
	return m, nil
}

func (m *Metrics) read(host, image string, n int) {
	if m != nil {
		m.bytes.WithLabelValues(host, image).Add(float64(n))
	}
}

func (m *Metrics) ended(host, image string, err error) {
	if m != nil {
		m.downloads.WithLabelValues(host, image, string(providers.ReasonOf(err))).Inc()
	}
}
