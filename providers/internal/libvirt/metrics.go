package libvirt

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
)

// metrics of all classes of a manager.
type metrics struct {
	space  *space
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
		space: &space{open: map[series]int{}, GaugeVec: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "proxy_operator_libvirt_pool_free_bytes",
			Help: "Space of a host's storage pool that is neither used nor promised to thin disks.",
		}, []string{"type", "class", "host"})},
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

// space is the gauge of free space. A class that is changed is open twice for a moment, the old one closes last; a host's
// series stays as long as one of them has the host.
type space struct {
	*prometheus.GaugeVec

	mu   sync.Mutex
	open map[series]int
}

// series of a host in a class.
type series struct {
	provider    v1alpha1.ProviderType
	class, host string
}

func (s series) labels() []string { return []string{string(s.provider), s.class, s.host} }

// hold notes that a class with the host was opened.
func (s *space) hold(of series) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[of]++
}

// release drops what was said of a host with the last class that has it.
func (s *space) release(of series) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[of]--; s.open[of] <= 0 {
		delete(s.open, of)
		s.DeleteLabelValues(of.labels()...)
	}
}

// set says how much is free, unless the class was closed meanwhile.
func (s *space) set(of series, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[of] > 0 {
		s.WithLabelValues(of.labels()...).Set(float64(bytes))
	}
}

func (m *metrics) observe(t v1alpha1.ProviderType) func(string, int, time.Duration) {
	return func(procedure string, code int, took time.Duration) {
		m.calls.WithLabelValues(string(t), procedure, strconv.Itoa(code)).Observe(took.Seconds())
	}
}
