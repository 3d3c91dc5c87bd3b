// Package metrics exposes the health engine's numbers. Labels are closed sets; series of single proxies exist only up
// to a limit, and end with their proxy.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// PerProxyLimit is up to how many proxies each has series of its own. Above it a scrape would take megabytes.
const PerProxyLimit = 1000

const prefix = "proxy_operator_healthcheck_"

// Snapshot is the engine's state at the time of a scrape.
type Snapshot struct {
	// States counts proxies by state.
	States map[string]int
	// InFlight and Slots are the probes under way and their limit.
	InFlight, Slots int
	// SuspectTargets counts probe targets whose failures are not held against proxies.
	SuspectTargets int
	// Proxies lists all proxies; nil when there are more than PerProxyLimit.
	Proxies []Proxy
}

// Proxy is one proxy in a Snapshot.
type Proxy struct {
	Namespace, Name string
	Healthy         bool
	// LastProbe is when the last probe ended; zero before the first.
	LastProbe time.Time
}

// Metrics is a prometheus.Collector.
type Metrics struct {
	snapshot func() Snapshot

	probes      *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	late        prometheus.Histogram
	transitions *prometheus.CounterVec
	access      *prometheus.CounterVec

	proxies, inFlight, slots, suspect, up, lastProbe *prometheus.Desc
}

// New returns metrics that ask snapshot for the state at each scrape.
func New(snapshot func() Snapshot) *Metrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, labels, nil)
	}
	return &Metrics{
		snapshot: snapshot,
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "probes_total", Help: "Probes by how they count and why.",
		}, []string{"result", "reason"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: prefix + "probe_stage_seconds", Help: "Time from the start of a probe to the end of a stage.",
			Buckets: []float64{0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		}, []string{"stage"}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: prefix + "lateness_seconds", Help: "How long after its due time a probe started.",
			Buckets: []float64{0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 30, 60, 300},
		}),
		transitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "transitions_total", Help: "Changes of verdicts by new state and reason.",
		}, []string{"to", "reason"}),
		access: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "access_probes_total", Help: "Negative probes by answer.",
		}, []string{"answer"}),
		proxies:   desc("proxies", "Watched proxies by state.", "state"),
		inFlight:  desc("probes_in_flight", "Probes under way."),
		slots:     desc("probe_slots", "Most probes that may be under way."),
		suspect:   desc("suspect_targets", "Probe targets that hardly any proxy reaches, whose failures are not held against proxies."),
		up:        desc("up", "1 if the proxy is healthy. Left out in fleets above the limit for series of single proxies.", "namespace", "proxy"),
		lastProbe: desc("last_probe_timestamp_seconds", "When the last probe of the proxy ended. Left out in fleets above the limit for series of single proxies.", "namespace", "proxy"),
	}
}

// Probe counts a finished probe.
func (m *Metrics) Probe(result, reason string, r probe.Result) {
	m.probes.WithLabelValues(result, reason).Inc()
	for s, end := range r.Ends {
		if end > 0 {
			m.duration.WithLabelValues(probe.Stage(s).String()).Observe(end.Seconds())
		}
	}
}

// Late records how late a probe started.
func (m *Metrics) Late(d time.Duration) { m.late.Observe(d.Seconds()) }

// Transition counts a change of a verdict.
func (m *Metrics) Transition(to, reason string) { m.transitions.WithLabelValues(to, reason).Inc() }

// Access counts a negative probe.
func (m *Metrics) Access(answer string) { m.access.WithLabelValues(answer).Inc() }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
	for _, d := range []*prometheus.Desc{m.proxies, m.inFlight, m.slots, m.suspect, m.up, m.lastProbe} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
	s := m.snapshot()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for state, n := range s.States {
		gauge(m.proxies, float64(n), state)
	}
	gauge(m.inFlight, float64(s.InFlight))
	gauge(m.slots, float64(s.Slots))
	gauge(m.suspect, float64(s.SuspectTargets))
	for _, p := range s.Proxies {
		up := 0.0
		if p.Healthy {
			up = 1
		}
		gauge(m.up, up, p.Namespace, p.Name)
		if !p.LastProbe.IsZero() {
			gauge(m.lastProbe, float64(p.LastProbe.UnixMilli())/1000, p.Namespace, p.Name)
		}
	}
}

func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.probes, m.duration, m.late, m.transitions, m.access}
}
