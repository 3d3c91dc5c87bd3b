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
	progress  *prometheus.GaugeVec
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
		progress: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxy_operator_libvirt_image_progress_ratio",
			Help: "How much of a base image is on the host, from 0 to 1. Only while it is being brought there.",
		}, []string{"host", "image"}),
	}
	var err error
	m.bytes, err = register(registerer, m.bytes, err)
	m.downloads, err = register(registerer, m.downloads, err)
	m.progress, err = register(registerer, m.progress, err)
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

// read counts bytes; ratio is how much of the image they complete.
func (m *Metrics) read(host, image string, n int, ratio float64) {
	if m != nil {
		m.bytes.WithLabelValues(host, image).Add(float64(n))
		m.progress.WithLabelValues(host, image).Set(ratio)
	}
}

func (m *Metrics) ended(host, image string, err error) {
	if m != nil {
		m.downloads.WithLabelValues(host, image, string(providers.ReasonOf(err))).Inc()
		m.progress.DeleteLabelValues(host, image)
	}
}
