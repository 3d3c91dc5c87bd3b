//go:build bench

package bench

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// apiServer reads what the API server says of itself.
type apiServer struct {
	client *http.Client
	// url without a path.
	url string
}

// work is what the API server has done since it started, or between two moments.
type work struct {
	// cpu is the time it used, in seconds.
	cpu float64
	// writes that were answered, refused ones included.
	writes map[write]float64
}

// write is a kind of request that changes something.
type write struct {
	group, resource, subresource, verb string
	// refused tells whether the answer was an error, for instance a conflict.
	refused bool
}

func newAPIServer(t *testing.T, env *testenv.Env) *apiServer {
	t.Helper()
	client, err := rest.HTTPClientFor(env.Config)
	if err != nil {
		t.Fatalf("make a client for the metrics of the API server: %v", err)
	}
	return &apiServer{client: client, url: serverURL(env.Config)}
}

// serverURL is the API server's address with its scheme, which a rest.Config may leave out.
func serverURL(config *rest.Config) string {
	host := strings.TrimSuffix(config.Host, "/")
	if strings.Contains(host, "://") {
		return host
	}
	return "https://" + host
}

// work is what the API server has done until now.
func (s *apiServer) work(t *testing.T) work {
	t.Helper()
	response, err := s.client.Get(s.url + "/metrics")
	if err != nil {
		t.Fatalf("read the metrics of the API server: %v", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
		t.Fatalf("read the metrics of the API server: %s: %s", response.Status, body)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatalf("parse the metrics of the API server: %v", err)
	}
	out := work{writes: map[write]float64{}}
	for _, m := range families["process_cpu_seconds_total"].GetMetric() {
		out.cpu += m.GetCounter().GetValue()
	}
	for _, m := range families["apiserver_request_total"].GetMetric() {
		label := labelsOf(m)
		switch label["verb"] {
		case "POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION":
			key := write{
				group: label["group"], resource: label["resource"], subresource: label["subresource"], verb: label["verb"],
				refused: !strings.HasPrefix(label["code"], "2"),
			}
			out.writes[key] += m.GetCounter().GetValue()
		}
	}
	return out
}

// profile writes a CPU profile of the API server over the next seconds to a file. The returned function waits for it.
func (s *apiServer) profile(t *testing.T, file string, seconds int) func() {
	t.Helper()
	var done sync.WaitGroup
	done.Go(func() {
		response, err := s.client.Get(fmt.Sprintf("%s/debug/pprof/profile?seconds=%d", s.url, seconds))
		if err != nil {
			t.Errorf("profile the API server: %v", err)
			return
		}
		defer func() { _ = response.Body.Close() }()
		data, err := io.ReadAll(response.Body)
		if err == nil {
			err = os.WriteFile(file, data, 0o600)
		}
		if err != nil {
			t.Errorf("profile the API server: %v", err)
		}
	})
	return done.Wait
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, pair := range m.GetLabel() {
		out[pair.GetName()] = pair.GetValue()
	}
	return out
}

// since is the work after an earlier moment.
func (w work) since(before work) work {
	out := work{cpu: w.cpu - before.cpu, writes: map[write]float64{}}
	for key, n := range w.writes {
		if n > before.writes[key] {
			out.writes[key] = n - before.writes[key]
		}
	}
	return out
}

// plus is the work of both.
func (w work) plus(other work) work {
	out := work{cpu: w.cpu + other.cpu, writes: maps.Clone(w.writes)}
	if out.writes == nil {
		out.writes = map[write]float64{}
	}
	for key, n := range other.writes {
		out.writes[key] += n
	}
	return out
}

// count is the number of writes of the kinds that match.
func (w work) count(match func(write) bool) float64 {
	total := 0.0
	for key, n := range w.writes {
		if match(key) {
			total += n
		}
	}
	return total
}

// ofProxies are writes of Proxies and of their status.
func ofProxies(w write) bool {
	return w.group == v1alpha1.GroupName && w.resource == "proxies"
}

// ofEvents are writes of events, of both groups that have them.
func ofEvents(w write) bool { return w.resource == "events" }

// each lists the kinds of writes that match, per one of n, the most frequent first.
func (w work) each(n int, match func(write) bool) string {
	keys := slices.DeleteFunc(slices.Collect(maps.Keys(w.writes)), func(key write) bool { return !match(key) })
	slices.SortFunc(keys, func(a, b write) int {
		if w.writes[a] != w.writes[b] {
			return int(w.writes[b] - w.writes[a])
		}
		return strings.Compare(fmt.Sprint(a), fmt.Sprint(b))
	})
	texts := make([]string, len(keys))
	for i, key := range keys {
		name := key.verb + " " + key.resource
		if key.subresource != "" {
			name += "/" + key.subresource
		}
		if key.refused {
			name += " refused"
		}
		texts[i] = fmt.Sprintf("%s %.2f", name, w.writes[key]/float64(n))
	}
	return strings.Join(texts, ", ")
}
