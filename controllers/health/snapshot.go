package health

import (
	"crawl.example.com/egress-proxies-operator/controllers/health/fsm"
	"crawl.example.com/egress-proxies-operator/controllers/health/metrics"
)

// stateDisabled is the state of proxies that are not probed.
const stateDisabled = "disabled"

// snapshot is what a scrape of the metrics sees.
func (e *Engine) snapshot() metrics.Snapshot {
	s := metrics.Snapshot{States: map[string]int{
		fsm.Unknown.String(): 0, fsm.Healthy.String(): 0, fsm.Unhealthy.String(): 0, stateDisabled: 0,
	}}
	s.InFlight, s.Slots = e.sched.Load()
	e.mu.RLock()
	defer e.mu.RUnlock()
	for _, t := range e.targets {
		if t.breaker.Open() {
			s.SuspectTargets++
		}
	}
	single := len(e.entries) <= metrics.PerProxyLimit
	seen := map[string]bool{}
	for _, en := range e.entries {
		state := en.machine.Status().String()
		if en.target.Check.Disabled {
			state = stateDisabled
		}
		s.States[state]++
		// For a moment two objects may share a name, when one was re-created.
		if name := en.target.Key.String(); single && !seen[name] {
			seen[name] = true
			s.Proxies = append(s.Proxies, metrics.Proxy{
				Namespace: en.target.Key.Namespace, Name: en.target.Key.Name,
				Healthy: en.verdict.Known && en.verdict.Healthy, LastProbe: en.lastEnd,
			})
		}
	}
	return s
}
