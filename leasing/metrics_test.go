package leasing

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func TestMetricsAreDocumented(t *testing.T) {
	registry := prometheus.NewRegistry()
	if _, err := newMetrics(newBackend(t, true).Allocator, registry); err != nil {
		t.Fatal(err)
	}
	descriptions := make(chan *prometheus.Desc, 100)
	registry.Describe(descriptions)
	close(descriptions)
	var exist []string
	name := regexp.MustCompile(`fqName: "([^"]+)"`)
	for d := range descriptions {
		exist = append(exist, name.FindStringSubmatch(d.String())[1])
	}
	text, err := os.ReadFile(filepath.Join("..", "docs", "leasing.md"))
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile(`proxy_operator_leases_[a-z_]+`).FindAllString(string(text), -1)
	for _, list := range []*[]string{&exist, &documented} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	if !slices.Equal(exist, documented) {
		t.Fatalf("there are\n%q\ndocumented are\n%q", exist, documented)
	}
}

// gauge reads one metric without labels.
func gauge(t *testing.T, b Backend, name string) float64 {
	t.Helper()
	families, err := b.Registerer.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "proxy_operator_leases_"+name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

func TestMetricsCount(t *testing.T) {
	b := newBackend(t, true)
	b.role.Store(int32(leads))
	b.ledger.Open()
	px := fixture.Proxy("team", "p", fixture.Capacity(1), func(px *v1alpha1.Proxy) {
		px.Status.Cooldowns = []v1alpha1.Cooldown{cooling("x.example", "i-p"), cooling("y.example", "i-p"), cooling("z.example", "before")}
	})
	b.ledger.ObserveProxy(px)
	b.ledger.Start(1, "")
	for _, name := range []string{"one", "two"} {
		l := bound(px, name)
		b.onLease(l)
	}
	b.enqueue(fixture.Lease("team", "waits", func(l *v1alpha1.ProxyLease) { l.Spec.Selector = &metav1.LabelSelector{} }))
	b.waiting.add("call/1", &waiter{request: ledger.Request{Holder: "h", Selector: labels.Everything()}, served: make(chan served, 1)})
	if _, err := b.calls.enter(caller{identity: "h", holder: "team/h"}); err != nil {
		t.Fatal(err)
	}
	ended := bound(px, "ended")
	ended.Status.Phase = v1alpha1.LeaseExpired
	b.onLease(ended)
	for name, want := range map[string]float64{
		"bound": 2, "writing": 0, "waiting": 1, "waiting_calls": 1, "finished": 1, "objects": 4, "brake_on": 0, "cooldowns": 2,
		"overcommitted_proxies": 1, "claimed_proxies": 0,
	} {
		if got := gauge(t, b, name); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for range 2 {
		_, _, err := counted{b}.Lease(t.Context(), httpapi.LeaseRequest{Namespace: "team", Mode: v1alpha1.LeaseShared, Selector: map[string]string{}})
		wantCode(t, err, wire.CodeNoProxy)
	}
	if got := testutil.ToFloat64(b.metrics.refusals.WithLabelValues(v1alpha1.ReasonAtCapacity)); got != 2 {
		t.Errorf("%v refusals", got)
	}
	b.brake.Max = 1
	if got := gauge(t, b, "brake_on"); got != 1 {
		t.Error("the brake is not shown")
	}
}
