package charts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

const fleetChart = "egress-fleet"

// fleetRelease installs and upgrades the chart of pools on the API server.
type fleetRelease struct {
	t               *testing.T
	env             *testenv.Env
	helm, namespace string
}

func newFleetRelease(t *testing.T) *fleetRelease {
	env := testenv.New(t)
	return &fleetRelease{t: t, env: env, helm: component(t, "helm"), namespace: env.Namespace(t)}
}

func (r *fleetRelease) upgrade(values string, args ...string) {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "values.yaml")
	must(r.t, os.WriteFile(file, []byte(values), 0o600))
	_, err := output(r.helm, append([]string{
		"upgrade", "--install", "fleet", fleetChart, "--namespace", r.namespace, "--values", file, "--wait=hookOnly",
		"--kubeconfig", testenv.Kubeconfig(r.t, r.env.Config),
	}, args...)...)
	must(r.t, err)
}

// scale sets the size as an autoscaler or kubectl does.
func (r *fleetRelease) scale(name string, replicas string) {
	r.t.Helper()
	pool := &v1alpha1.ProxyPool{}
	pool.Namespace, pool.Name = r.namespace, name
	must(r.t, r.env.Client.SubResource("scale").Patch(r.t.Context(), pool, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":`+replicas+`}}`))))
}

// want checks the size of a pool and the label of its template.
func (r *fleetRelease) want(name string, replicas int32, geo string) {
	r.t.Helper()
	pool := &v1alpha1.ProxyPool{}
	must(r.t, r.env.Client.Get(r.t.Context(), client.ObjectKey{Namespace: r.namespace, Name: name}, pool))
	if got := *pool.Spec.Replicas; got != replicas || pool.Spec.Template.Metadata.Labels["geo"] != geo {
		r.t.Errorf("pool %s: %d replicas with %v, want %d with geo %s", name, got, pool.Spec.Template.Metadata.Labels, replicas, geo)
	}
}

func fleetValues(autoscaled, geo, replicas string) string {
	return `{pools: [{name: eu, autoscaled: ` + autoscaled + `, replicas: ` + replicas + `, template: {metadata: {labels: {geo: ` + geo + `}}, spec: {provider: kubernetes}}}]}`
}

func TestP16_UpgradeLeavesTheSizeToTheAutoscaler(t *testing.T) {
	t.Run("from the start", func(t *testing.T) {
		r := newFleetRelease(t)
		r.upgrade(fleetValues("true", "a", "9"))
		r.want("eu", 1, "a")
		r.scale("eu", "7")
		r.upgrade(fleetValues("true", "b", "9"))
		r.want("eu", 7, "b")
		r.scale("eu", "0")
		r.upgrade(fleetValues("true", "c", "9"))
		r.want("eu", 0, "c")
	})
	t.Run("of a pool that had a size", func(t *testing.T) {
		r := newFleetRelease(t)
		r.upgrade(fleetValues("false", "a", "3"))
		r.want("eu", 3, "a")
		r.upgrade(fleetValues("true", "b", "3"))
		r.want("eu", 3, "b")
		r.upgrade(fleetValues("true", "c", "3"))
		r.want("eu", 3, "c")
		r.scale("eu", "5")
		r.upgrade(fleetValues("true", "d", "3"))
		r.want("eu", 5, "d")
		// Back in the hands of who installs, which has to be said.
		r.upgrade(fleetValues("false", "e", "4"), "--force-conflicts")
		r.want("eu", 4, "e")
	})
	t.Run("of a pool that was scaled before", func(t *testing.T) {
		r := newFleetRelease(t)
		r.upgrade(fleetValues("false", "a", "3"))
		r.scale("eu", "0")
		r.upgrade(fleetValues("true", "b", "3"))
		r.want("eu", 0, "b")
	})
}

// Whatever a specification has passes through, numbers that look like floating point included.
func TestFleetAppliesToARealServer(t *testing.T) {
	r := newFleetRelease(t)
	r.upgrade(`
pools:
  - name: eu
    replicas: 2
    strategy: {maxSurge: 25%, maxUnavailable: 0}
    recycle: {maxAgeSeconds: 31536000, afterReports: {count: 3}}
    leases: {defaultTTLSeconds: 60}
    template:
      metadata: {labels: {geo: eu}, annotations: {example.com/owner: crawling}}
      spec: {provider: kubernetes, port: 3129, deletion: {drainTimeoutSeconds: 600}}
proxies:
  - name: rented
    labels: {geo: us, weight: "1"}
    mode: External
    external: {host: proxy.example.net}
`)
	pool, px := &v1alpha1.ProxyPool{}, &v1alpha1.Proxy{}
	must(t, r.env.Client.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "eu"}, pool))
	must(t, r.env.Client.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: "rented"}, px))
	if *pool.Spec.Recycle.MaxAgeSeconds != 31536000 || pool.Spec.Strategy.MaxSurge.String() != "25%" || pool.Spec.Template.Spec.Port != 3129 {
		t.Errorf("the pool is %+v", pool.Spec)
	}
	if px.Labels["geo"] != "us" || px.Labels["weight"] != "1" || px.Spec.External.Host != "proxy.example.net" {
		t.Errorf("the proxy is %+v with %v", px.Spec, px.Labels)
	}
}

func TestWrongValuesOfAFleetAreRefusedByName(t *testing.T) {
	helm := component(t, "helm")
	const template = ",pools[0].template.spec.provider=kubernetes"
	for values, field := range map[string]string{
		"pool[0].name=eu":                                             "pool",
		"pools[0].name=eu":                                            "template",
		"pools[0].name=Eu":                                            "pools/0/name",
		"pools[0].replicas=1":                                         "pools/0",
		"proxies[0].port=70000":                                       "proxies/0",
		"proxies[0].mode=Managed":                                     "proxies/0",
		"pools[0].name=eu,pools[0].replicas=-1" + template:            "pools/0/replicas",
		"pools[0].name=eu,pools[0].replicas=5001" + template:          "pools/0/replicas",
		"pools[0].name=eu,pools[0].replica=1" + template:              "replica",
		"pools[0].name=eu,pools[0].autoscaled=maybe" + template:       "pools/0/autoscaled",
		"pools[0].name=eu,pools[0].template.spec.mode=External":       "mode",
		"pools[0].name=eu,pools[0].strategy.type=Recreate" + template: "pools/0/strategy/type",
		"pools[0].name=" + strings.Repeat("x", 41) + template:         "pools/0/name",
		"proxies[0].name=a,proxies[0].labels.geo.a=b":                 "proxies/0/labels/geo",
		"proxies[0].name=a,proxies[0].port=70000":                     "proxies/0/port",
		"proxies[0].name=a,proxies[0].external.hots=proxy.example":    "hots",
	} {
		_, err := output(helm, "template", "fleet", fleetChart, "--set", values)
		if err == nil {
			t.Errorf("%s was taken", values)
		} else if !strings.Contains(err.Error(), field) {
			t.Errorf("%s: the error does not name %s:\n%v", values, field, err)
		}
	}
}
