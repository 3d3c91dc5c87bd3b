package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"crawl.example.com/egress-proxies-operator/controllers/health/metrics"
)

// gather returns "name{labels}" and value or count of every series.
func gather(t *testing.T, c prometheus.Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			out[f.GetName()+"{"+strings.Join(labels, ",")+"}"] = value
		}
	}
	return out
}

func TestMetrics(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0, managed))
		b.Upsert(proxy(1))
		b.Upsert(proxy(2, func(x *Target) { x.Check.Disabled = true }))
		b.pass(time.Second)
		got := gather(t, b.Collector())
		for series, want := range map[string]float64{
			"proxy_operator_healthcheck_probes_total{reason=ProbeSucceeded,result=success}":  2,
			"proxy_operator_healthcheck_transitions_total{reason=ProbeSucceeded,to=healthy}": 2,
			"proxy_operator_healthcheck_access_probes_total{answer=refused}":                 1,
			"proxy_operator_healthcheck_proxies{state=healthy}":                              2,
			"proxy_operator_healthcheck_proxies{state=unknown}":                              0,
			"proxy_operator_healthcheck_proxies{state=disabled}":                             1,
			"proxy_operator_healthcheck_up{namespace=ns,proxy=px-0}":                         1,
			"proxy_operator_healthcheck_up{namespace=ns,proxy=px-2}":                         0,
			"proxy_operator_healthcheck_probe_slots{}":                                       512,
			"proxy_operator_healthcheck_probes_in_flight{}":                                  0,
			"proxy_operator_healthcheck_suspect_targets{}":                                   0,
			"proxy_operator_healthcheck_lateness_seconds{}":                                  2,
		} {
			if v, ok := got[series]; !ok || v != want {
				t.Errorf("%s is %v (present: %v), want %v", series, v, ok, want)
			}
		}
		last := got["proxy_operator_healthcheck_last_probe_timestamp_seconds{namespace=ns,proxy=px-1}"]
		if age := float64(time.Now().UnixMilli())/1000 - last; age < 0 || age > 1.1 {
			t.Errorf("the last probe is %v s old", age)
		}
		b.Remove(uid(1))
		for series := range gather(t, b.Collector()) {
			if strings.Contains(series, "px-1") {
				t.Errorf("%s outlived its proxy", series)
			}
		}
	})
}

// The number of series does not grow with the fleet.
func TestMetricsAreBounded(t *testing.T) {
	inBubble(t, &fakeProber{}, func(b *bench) {
		for i := range metrics.PerProxyLimit + 1 {
			b.Upsert(proxy(i))
		}
		b.pass(time.Minute)
		if n := len(gather(t, b.Collector())); n > 50 {
			t.Errorf("%d series", n)
		}
	})
}

func TestTracing(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(recorder))
	f := &fakeProber{}
	inBubbleWith(t, f, Options{Tracer: provider.Tracer("test")}, func(b *bench) {
		credentials, _ := NewCredentials("crawler", "hunter2")
		b.Upsert(proxy(0, func(x *Target) { x.Credentials = credentials }))
		b.pass(time.Second)
		f.set(refused)
		b.Hint(uid(0))
		b.pass(10 * time.Second)
	})
	spans := recorder.Ended()
	if len(spans) < 2 || spans[0].Name() != "healthcheck.probe" {
		t.Fatalf("got %d spans", len(spans))
	}
	for _, s := range spans {
		if text := fmt.Sprint(s.Attributes(), s.Events(), s.Status()); strings.Contains(text, "hunter2") || strings.Contains(text, "10.0.") || strings.Contains(text, "a.example") {
			t.Errorf("span carries %s", text)
		}
	}
}
