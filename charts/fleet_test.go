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

func (r *fleetRelease) rollback(revision string, args ...string) {
	r.t.Helper()
	_, err := output(r.helm, append([]string{
		"rollback", "fleet", revision, "--namespace", r.namespace, "--kubeconfig", testenv.Kubeconfig(r.t, r.env.Config),
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

// Helm applies on the server's side, or merges by what it wrote before, as helm 3 does: the size is left alone by both.
func TestP16_UpgradeLeavesTheSizeToTheAutoscaler(t *testing.T) {
	for side, flags := range map[string][]string{"server": {"--server-side=true"}, "client": {"--server-side=false"}} {
		run := func(name string, steps func(*fleetRelease, func(autoscaled, geo, replicas string, more ...string))) {
			t.Run(side+"/"+name, func(t *testing.T) {
				r := newFleetRelease(t)
				steps(r, func(autoscaled, geo, replicas string, more ...string) {
					r.t.Helper()
					r.upgrade(fleetValues(autoscaled, geo, replicas), append(more, flags...)...)
				})
			})
		}
		run("from the start", func(r *fleetRelease, upgrade func(autoscaled, geo, replicas string, more ...string)) {
			upgrade("true", "a", "9")
			r.want("eu", 1, "a")
			r.scale("eu", "7")
			upgrade("true", "b", "9")
			r.want("eu", 7, "b")
			r.scale("eu", "5")
			r.rollback("1", flags...)
			r.want("eu", 5, "a")
			r.scale("eu", "0")
			upgrade("true", "c", "9")
			r.want("eu", 0, "c")
		})
		run("on and off and on", func(r *fleetRelease, upgrade func(autoscaled, geo, replicas string, more ...string)) {
			var force []string
			if side == "server" {
				// Back in the hands of who installs, which has to be said.
				force = []string{"--force-conflicts"}
			}
			upgrade("true", "a", "3")
			r.scale("eu", "7")
			upgrade("false", "b", "4", force...)
			r.want("eu", 4, "b")
			upgrade("true", "c", "4")
			r.want("eu", 4, "c")
			upgrade("true", "d", "4")
			r.want("eu", 4, "d")
			r.scale("eu", "6")
			upgrade("true", "e", "4")
			r.want("eu", 6, "e")
			r.scale("eu", "8")
			upgrade("true", "f", "4")
			r.want("eu", 8, "f")
			upgrade("false", "g", "2", force...)
			r.want("eu", 2, "g")
		})
		run("scaled before", func(r *fleetRelease, upgrade func(autoscaled, geo, replicas string, more ...string)) {
			upgrade("false", "a", "3")
			r.want("eu", 3, "a")
			r.scale("eu", "7")
			upgrade("true", "b", "3")
			r.want("eu", 7, "b")
			r.scale("eu", "0")
			upgrade("true", "c", "3")
			r.want("eu", 0, "c")
		})
	}
	// A release whose way is changed.
	for _, sides := range [][2]string{{"true", "false"}, {"false", "true"}} {
		t.Run("from server-side="+sides[0]+" to "+sides[1], func(t *testing.T) {
			r := newFleetRelease(t)
			r.upgrade(fleetValues("false", "a", "3"), "--server-side="+sides[0])
			r.scale("eu", "7")
			r.upgrade(fleetValues("true", "b", "3"), "--server-side="+sides[1])
			r.want("eu", 7, "b")
			r.scale("eu", "5")
			r.upgrade(fleetValues("true", "c", "3"), "--server-side="+sides[0])
			r.want("eu", 5, "c")
		})
	}
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

func TestAFleetWithTwoOfOneNameIsRefused(t *testing.T) {
	helm := component(t, "helm")
	const provider = ".template.spec.provider=kubernetes"
	pools := func(a, b string) string {
		return "pools[0].name=" + a + ",pools[0]" + provider + ",pools[1].name=" + b + ",pools[1]" + provider
	}
	for values, want := range map[string]string{
		pools("eu", "eu") + ",pools[1].replicas=5":              "there are two of kind ProxyPool with the name eu; each needs a name of its own",
		"proxies[0].name=a,proxies[1].name=b,proxies[2].name=a": "there are two of kind Proxy with the name a; each needs a name of its own",
		pools("eu", "us") + ",proxies[0].name=eu":               "",
	} {
		_, err := output(helm, "template", "fleet", fleetChart, "--set", values)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", values, err, want)
		}
	}
}
