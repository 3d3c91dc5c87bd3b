//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// assess makes a step of a feature out of a function that needs no configuration.
func assess(step func(ctx context.Context, t *testing.T)) features.Func {
	return func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
		step(ctx, t)
		return ctx
	}
}

// TestDemo1_Fleet: real Squid pods become Ready proxies, and the pool scales by kubectl.
func TestDemo1_Fleet(t *testing.T) {
	testenv.Test(t, features.New("a fleet of real Squid pods").
		Assess("two Squid pods are Ready, in the usual columns", assess(func(ctx context.Context, t *testing.T) {
			awaitPool(ctx, t, 2)
			table := kubectl(t, "get", "px", "-n", namespace)
			header := strings.Fields(strings.SplitN(table, "\n", 2)[0])
			if got, want := strings.Join(header, " "), "NAME MODE PROVIDER PHASE IP HEALTHY"; got != want {
				t.Errorf("columns are %q, want %q", got, want)
			}
			say(t, "kubectl get px:\n%s", table)
		})).
		Assess("kubectl scale to three, three Ready", assess(func(ctx context.Context, t *testing.T) {
			kubectl(t, "scale", "proxypool/"+poolName, "-n", namespace, "--replicas=3")
			awaitPool(ctx, t, 3)
			eventually(ctx, t, time.Minute, "the pool says that it is ready", func(ctx context.Context) string {
				pool := &v1alpha1.ProxyPool{}
				if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: poolName}, pool); err != nil {
					return err.Error()
				}
				if pool.Status.Ready != 3 || !meta.IsStatusConditionTrue(pool.Status.Conditions, v1alpha1.ConditionReady) {
					return fmt.Sprintf("ready=%d conditions=%v", pool.Status.Ready, pool.Status.Conditions)
				}
				return ""
			})
			say(t, "kubectl get pxp,px:\n%s", kubectl(t, "get", "pxp,px", "-n", namespace))
		})).
		Assess("an External proxy is tracked and probed", assess(func(ctx context.Context, t *testing.T) {
			eventually(ctx, t, readyTimeout, "the External proxy is Ready", func(ctx context.Context) string {
				px := &v1alpha1.Proxy{}
				if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: externalName}, px); err != nil {
					return err.Error()
				}
				return usable(px)
			})
			say(t, "kubectl get px %s:\n%s", externalName, kubectl(t, "get", "px", externalName, "-n", namespace))
		})).
		Feature())
}

const demoLease = `
apiVersion: crawl.example.com/v1alpha1
kind: ProxyLease
metadata: {name: by-hand, namespace: default}
spec: {poolRef: {name: demo}, ttlSeconds: 600, holder: demo}
`

// TestDemo2_LeaseByCR: a ProxyLease is all an in-cluster crawler needs.
func TestDemo2_LeaseByCR(t *testing.T) {
	testenv.Test(t, features.New("a lease as a custom resource").
		Assess("kubectl wait sees it Bound", assess(func(ctx context.Context, t *testing.T) {
			_, _ = tryKubectl("delete", "pxl", "by-hand", "-n", namespace, "--ignore-not-found")
			apply(t, demoLease)
			say(t, "%s", kubectl(t, "wait", "--for=condition=Bound", "pxl/by-hand", "-n", namespace, "--timeout=60s"))
			say(t, "kubectl get pxl:\n%s", kubectl(t, "get", "pxl", "-n", namespace))
		})).
		Assess("deleting it gives the proxy back", assess(func(ctx context.Context, t *testing.T) {
			kubectl(t, "delete", "pxl", "by-hand", "-n", namespace)
		})).
		Feature())
}

// TestDemo3_CrawlThroughALeasedProxy: the main job by HTTP, from outside of the cluster.
func TestDemo3_CrawlThroughALeasedProxy(t *testing.T) {
	var (
		a     *api
		first lease
	)
	testenv.Test(t, features.New("crawling through a leased proxy").
		Assess("a wrong token is refused with 401", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			status, body := a.curl(t, http.MethodGet, "/v1/proxies", "wrong", "")
			if status != http.StatusUnauthorized {
				t.Fatalf("GET /v1/proxies with a wrong token: %d %s", status, body)
			}
			say(t, "401 %s", body)
		})).
		Assess("curl lists and leases with the token", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			status, body := a.curl(t, http.MethodGet, "/v1/proxies?healthy=true&geo=local", a.token, "")
			if status != http.StatusOK || strings.Count(string(body), `"id"`) != 3 {
				t.Fatalf("GET /v1/proxies: %d %s", status, body)
			}
			first = a.acquire(t, `{"selector":{"geo":"local"},"target":"`+originHost+`","ttlSeconds":300}`)
			say(t, "leased %s at %s until %s", first.Proxy.ID, first.Proxy.URL, first.ExpiresAt)
		})).
		Assess("a page is fetched through it and the origin saw the leased pod", assess(func(ctx context.Context, t *testing.T) {
			path := fmt.Sprintf("/page-%d", time.Now().UnixNano())
			status, body := crawl(ctx, t, first.Proxy.URL, path)
			if status != http.StatusOK {
				t.Fatalf("the page answered %d %s", status, body)
			}
			address := podOf(ctx, t, first.proxyName()).Status.PodIP
			if address != first.Proxy.IP {
				t.Errorf("the lease says %s and the pod has %s", first.Proxy.IP, address)
			}
			eventually(ctx, t, 30*time.Second, "the origin's log has the request", func(context.Context) string {
				for line := range strings.Lines(kubectl(t, "logs", "-n", originNamespace, "deploy/origin", "--tail=500")) {
					if !strings.Contains(line, path) {
						continue
					}
					if !strings.Contains(line, address+":") {
						t.Fatalf("the origin saw another source than %s: %s", address, line)
					}
					say(t, "origin's log: %s", strings.TrimSpace(line))
					return ""
				}
				return "no line with " + path
			})
		})).
		Assess("after a rate-limit report the next lease for that target gets another proxy", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			status, body := a.curl(t, http.MethodPost, "/v1/leases/"+first.LeaseID+"/report", a.token,
				`{"result":"rate_limited","target":"`+originHost+`"}`)
			if status != http.StatusNoContent {
				t.Fatalf("report: %d %s", status, body)
			}
			// More leases than proxies, so that least-loaded alone would come back to the first one.
			for range 4 {
				next := a.acquire(t, `{"selector":{"geo":"local"},"target":"`+originHost+`"}`)
				if next.Proxy.ID == first.Proxy.ID {
					t.Fatalf("the proxy that cools for %s was leased for it: %s", originHost, next.Proxy.ID)
				}
				say(t, "next lease for %s: %s", originHost, next.Proxy.ID)
				a.release(t, next)
			}
			elsewhere := map[string]bool{}
			for range 3 {
				other := a.acquire(t, `{"selector":{"geo":"local"},"target":"elsewhere.example"}`)
				elsewhere[other.Proxy.ID] = true
			}
			if !elsewhere[first.Proxy.ID] {
				t.Errorf("for another target the cooling proxy was left out as well: %v", elsewhere)
			}
		})).
		Assess("releasing twice answers 204 twice", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			for range 2 {
				if status, body := a.curl(t, http.MethodDelete, "/v1/leases/"+first.LeaseID, a.token, ""); status != http.StatusNoContent {
					t.Fatalf("DELETE: %d %s", status, body)
				}
			}
			say(t, "204, 204")
		})).
		Feature())
}

// TestDemo4_ASquidIsKilled: a dead Squid is seen, and so is its return.
func TestDemo4_ASquidIsKilled(t *testing.T) {
	var victim string
	healthy := func(ctx context.Context) (metav1.Condition, error) {
		px := &v1alpha1.Proxy{}
		if err := cluster.Get(ctx, client.ObjectKey{Namespace: namespace, Name: victim}, px); err != nil {
			return metav1.Condition{}, err
		}
		if c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionHealthy); c != nil {
			return *c, nil
		}
		return metav1.Condition{Status: metav1.ConditionUnknown}, nil
	}
	testenv.Test(t, features.New("a killed Squid").
		Assess("its proxy becomes Unhealthy", assess(func(ctx context.Context, t *testing.T) {
			members, err := poolProxies(ctx)
			if err != nil || len(members) == 0 {
				t.Fatalf("list the pool's proxies: %d, %v", len(members), err)
			}
			victim = members[0].Name
			pod := podOf(ctx, t, victim)
			// The kubelet restarts it at once, so it is killed again until the restarts back off long enough to be seen.
			eventually(ctx, t, 3*time.Minute, "Healthy=False", func(ctx context.Context) string {
				c, err := healthy(ctx)
				if err != nil {
					return err.Error()
				}
				if c.Status == metav1.ConditionFalse {
					say(t, "%s: Healthy=False, %s: %s", victim, c.Reason, c.Message)
					return ""
				}
				_, _ = tryKubectl("exec", "-n", namespace, pod.Name, "--", "sh", "-c", "kill -TERM 1")
				return fmt.Sprintf("Healthy is %s, %s", c.Status, c.Reason)
			})
			say(t, "kubectl get px:\n%s", kubectl(t, "get", "px", "-n", namespace))
		})).
		Assess("and is Ready again when the kubelet has restarted it", assess(func(ctx context.Context, t *testing.T) {
			awaitPool(ctx, t, 3)
			say(t, "kubectl get px:\n%s", kubectl(t, "get", "px", "-n", namespace))
		})).
		Feature())
}

// TestDemo5_CoreIsRestarted: leases and cooldowns outlive the core manager.
func TestDemo5_CoreIsRestarted(t *testing.T) {
	var (
		a      *api
		before lease
	)
	const target = "restart.example"
	testenv.Test(t, features.New("a restart of core").
		Assess("lease, report, restart", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			before = a.acquire(t, `{"selector":{"geo":"local"},"target":"`+target+`","ttlSeconds":900}`)
			status, body := a.curl(t, http.MethodPost, "/v1/leases/"+before.LeaseID+"/report", a.token, `{"result":"rate_limited","target":"`+target+`"}`)
			if status != http.StatusNoContent {
				t.Fatalf("report: %d %s", status, body)
			}
			kubectl(t, "-n", operatorNamespace, "rollout", "restart", coreDeployment)
			say(t, "%s", kubectl(t, "-n", operatorNamespace, "rollout", "status", coreDeployment, "--timeout=180s"))
		})).
		Assess("the lease is still there", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			var got lease
			eventually(ctx, t, time.Minute, "GET of the lease", func(context.Context) string {
				status, body := a.curl(t, http.MethodGet, "/v1/leases/"+before.LeaseID, a.token, "")
				if status != http.StatusOK {
					return fmt.Sprintf("%d %s", status, body)
				}
				if err := json.Unmarshal(body, &got); err != nil {
					return err.Error()
				}
				return ""
			})
			if got.Proxy.ID != before.Proxy.ID {
				t.Errorf("the lease moved from %s to %s", before.Proxy.ID, got.Proxy.ID)
			}
			say(t, "lease of %s until %s", got.Proxy.ID, got.ExpiresAt)
		})).
		Assess("and so is the cooldown", assess(func(ctx context.Context, t *testing.T) {
			a = openAPI(ctx, t)
			var next lease
			eventually(ctx, t, time.Minute, "a lease after the restart", func(context.Context) string {
				status, body := a.curl(t, http.MethodPost, "/v1/leases", a.token, `{"selector":{"geo":"local"},"target":"`+target+`"}`)
				if status != http.StatusCreated {
					return fmt.Sprintf("%d %s", status, body)
				}
				if err := json.Unmarshal(body, &next); err != nil {
					return err.Error()
				}
				return ""
			})
			if next.Proxy.ID == before.Proxy.ID {
				t.Errorf("%s still cools for %s and was leased for it", next.Proxy.ID, target)
			}
			say(t, "next lease for %s: %s, not %s", target, next.Proxy.ID, before.Proxy.ID)
			a.release(t, next)
			a.release(t, before)
		})).
		Assess("the replica that does not lead asks the one that does", assess(func(ctx context.Context, t *testing.T) {
			var pods corev1.PodList
			if err := cluster.List(ctx, &pods, client.InNamespace(operatorNamespace), client.MatchingLabels{"app.kubernetes.io/component": "core"}); err != nil {
				t.Fatal(err)
			}
			type replica struct{ api, metrics *api }
			var replicas []replica
			for _, pod := range pods.Items {
				if pod.DeletionTimestamp.IsZero() {
					replicas = append(replicas, replica{
						&api{base: forward(t, "pod/"+pod.Name, 8090), token: a.token}, &api{base: forward(t, "pod/"+pod.Name, 8080)},
					})
				}
			}
			// count is how often a replica was answered by the one that leads, or had to make an object.
			count := func(r replica, metric string) string {
				_, body := r.metrics.curl(t, http.MethodGet, "/metrics", "", "")
				for line := range strings.Lines(string(body)) {
					if value, ok := strings.CutPrefix(line, metric+" "); ok {
						return value
					}
				}
				return ""
			}
			// Just after the restart nobody leads, or it is not known yet who does; then calls go by objects.
			eventually(ctx, t, time.Minute, "one replica asks the other", func(context.Context) string {
				asked, objects := 0, 0
				for _, r := range replicas {
					const answered, follower = `proxy_operator_leases_leader_asked_total{outcome="answered"}`, `proxy_operator_leases_grants_total{path="follower"}`
					before, made := count(r, answered), count(r, follower)
					status, body := r.api.curl(t, http.MethodPost, "/v1/leases", r.api.token, `{"selector":{"geo":"local"}}`)
					var l lease
					if err := json.Unmarshal(body, &l); err != nil || status != http.StatusCreated {
						return fmt.Sprintf("%d %s", status, body)
					}
					r.api.release(t, l)
					if count(r, answered) != before {
						asked++
					}
					if count(r, follower) != made {
						objects++
					}
				}
				if asked != 1 || objects != 0 {
					return fmt.Sprintf("%d asked, %d made objects", asked, objects)
				}
				return ""
			})
		})).
		Feature())
}

func (a *api) release(t *testing.T, l lease) {
	t.Helper()
	if status, body := a.curl(t, http.MethodDelete, "/v1/leases/"+l.LeaseID, a.token, ""); status != http.StatusNoContent {
		t.Fatalf("release of %s: %d %s", l.LeaseID, status, body)
	}
}
