//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Of manifests/fleet.yaml.
const (
	fleetNamespace = "fleet"
	fleetPool      = "rolled"
	fleetSize      = 2
	fleetSurge     = 1
	// fleetDraining is how many members that are leaving may exist besides: a quarter of the size, rounded up.
	fleetDraining = 1
	fleetNewPort  = 3129
)

// TestDemo7_PoolUnderLeases: an autoscaler sizes a pool, a disruption budget guards its pods, and a changed template rolls them
// while crawlers hold them.
func TestDemo7_PoolUnderLeases(t *testing.T) {
	var (
		whole       = t
		saw         *witness
		kept, freed lease
		freedAt     time.Time
	)
	key := client.ObjectKey{Namespace: fleetNamespace, Name: fleetPool}
	testenv.Test(t, features.New("a pool under leases").
		Assess("kubectl wait sees a new pool Ready", assess(func(ctx context.Context, t *testing.T) {
			kubectl(t, "delete", "namespace", fleetNamespace, "--ignore-not-found", "--timeout="+goneTimeout.String())
			kubectl(t, "create", "namespace", fleetNamespace)
			manifest, err := os.ReadFile("manifests/fleet.yaml")
			if err != nil {
				t.Fatal(err)
			}
			apply(t, string(manifest))
			say(t, "%s", kubectl(t, "wait", "--for=condition=Ready", "pxp/"+fleetPool, "-n", fleetNamespace, "--timeout="+readyTimeout.String()))
		})).
		Assess("a HorizontalPodAutoscaler is able to scale it, and does", assess(func(ctx context.Context, t *testing.T) {
			say(t, "%s", kubectl(t, "wait", "--for=condition=AbleToScale", "hpa/"+fleetPool, "-n", fleetNamespace, "--timeout=90s"))
			eventually(ctx, t, time.Minute, "the autoscaler's lower bound is the pool's size", func(ctx context.Context) string {
				pool, hpa := &v1alpha1.ProxyPool{}, &autoscalingv2.HorizontalPodAutoscaler{}
				if err := cluster.Get(ctx, key, pool); err != nil {
					return err.Error()
				}
				if err := cluster.Get(ctx, key, hpa); err != nil {
					return err.Error()
				}
				if *pool.Spec.Replicas != fleetSize {
					return fmt.Sprintf("replicas=%d, %+v", *pool.Spec.Replicas, hpa.Status)
				}
				return ""
			})
			say(t, "%s", kubectl(t, "wait", "--for=condition=Ready", "pxp/"+fleetPool, "-n", fleetNamespace, "--timeout="+readyTimeout.String()))
			say(t, "kubectl get hpa,pxp,px:\n%s", kubectl(t, "get", "hpa,pxp,px", "-n", fleetNamespace))
		})).
		Assess("P15 evicting the pod of a leased proxy is refused by a percentage", assess(func(ctx context.Context, t *testing.T) {
			a := openAPI(ctx, t)
			kept, freed = a.acquire(t, fleetLease), a.acquire(t, fleetLease)
			if kept.Proxy.ID == freed.Proxy.ID {
				t.Fatalf("two leases of two free proxies are both on %s", kept.Proxy.ID)
			}
			eventually(ctx, t, time.Minute, "the budget counts the pods by the scale of their proxies", func(ctx context.Context) string {
				budget := &policyv1.PodDisruptionBudget{}
				if err := cluster.Get(ctx, key, budget); err != nil {
					return err.Error()
				}
				// 75% of two are two.
				if s := budget.Status; s.ObservedGeneration != budget.Generation || s.ExpectedPods != fleetSize || s.DesiredHealthy != fleetSize || s.CurrentHealthy != fleetSize || s.DisruptionsAllowed != 0 {
					return fmt.Sprintf("%+v", s)
				}
				return ""
			})
			pod := podOfIn(ctx, t, fleetNamespace, kept.proxyName())
			err := cluster.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{})
			if !apierrors.IsTooManyRequests(err) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
				t.Fatalf("eviction of %s: %v, want 429 by the disruption budget", pod.Name, err)
			}
			say(t, "429 %v\nkubectl get pdb:\n%s", err, kubectl(t, "get", "pdb", "-n", fleetNamespace))
		})).
		Assess("a changed template asks both holders to leave, whose proxies go on working", assess(func(ctx context.Context, t *testing.T) {
			a := openAPI(ctx, t)
			saw = watchProxies(whole, fleetNamespace)
			kubectl(t, "patch", "pxp", fleetPool, "-n", fleetNamespace, "--type=merge",
				"-p", fmt.Sprintf(`{"spec":{"template":{"spec":{"port":%d}}}}`, fleetNewPort))
			eventually(ctx, t, readyTimeout, "one holder is told", func(context.Context) string {
				if a.draining(t, freed) {
					kept, freed = freed, kept
				} else if !a.draining(t, kept) {
					return "neither is draining"
				}
				return ""
			})
			fleetPage(ctx, t, kept)
			say(t, "%s drains and still serves; kubectl get px:\n%s", kept.Proxy.ID, kubectl(t, "get", "px", "-n", fleetNamespace))
			eventually(ctx, t, readyTimeout, "so is the other one", func(context.Context) string {
				if !a.draining(t, freed) {
					return freed.Proxy.ID + " does not drain"
				}
				return ""
			})
			fleetPage(ctx, t, freed)
			freedAt = time.Now()
			a.release(t, freed)
		})).
		Assess("a proxy goes when it is released, or at its deadline", assess(func(ctx context.Context, t *testing.T) {
			a := openAPI(ctx, t)
			eventually(ctx, t, readyTimeout, "the lease that nobody released ends", func(context.Context) string {
				status, body := a.curl(t, http.MethodGet, "/v1/leases/"+kept.LeaseID, a.token, "")
				if status == http.StatusOK {
					return string(body)
				}
				if deadline := saw.deadlineOf(kept.proxyName()); status != http.StatusGone || deadline.IsZero() || time.Now().Before(deadline) {
					t.Fatalf("%d %s, deadline %s", status, body, deadline)
				}
				say(t, "410 %s", body)
				return ""
			})
			eventually(ctx, t, goneTimeout, "both are gone", func(context.Context) string {
				return saw.stillThere(kept.proxyName(), freed.proxyName())
			})
			saw.check(t, map[string]time.Time{kept.proxyName(): saw.deadlineOf(kept.proxyName()), freed.proxyName(): freedAt})
		})).
		Assess("the pool is Ready with the new template", assess(func(ctx context.Context, t *testing.T) {
			say(t, "%s", kubectl(t, "wait", "--for=condition=Ready", "pxp/"+fleetPool, "-n", fleetNamespace, "--timeout="+readyTimeout.String()))
			a := openAPI(ctx, t)
			next := a.acquire(t, fleetLease)
			if next.Proxy.Port != fleetNewPort {
				t.Errorf("the next lease is for port %d", next.Proxy.Port)
			}
			fleetPage(ctx, t, next)
			a.release(t, next)
			say(t, "kubectl get pxp,px:\n%s", kubectl(t, "get", "pxp,px", "-n", fleetNamespace))
		})).
		Assess("the namespace can be deleted with its pool", assess(func(ctx context.Context, t *testing.T) {
			say(t, "%s", kubectl(t, "delete", "namespace", fleetNamespace, "--timeout="+goneTimeout.String()))
		})).
		Feature())
}

const fleetLease = `{"namespace":"` + fleetNamespace + `","pool":"` + fleetPool + `","ttlSeconds":900}`

// draining tells whether a lease that must still run is asked to end.
func (a *api) draining(t *testing.T, l lease) bool {
	t.Helper()
	status, body := a.curl(t, http.MethodGet, "/v1/leases/"+l.LeaseID, a.token, "")
	var now struct{ Draining bool }
	if status != http.StatusOK || json.Unmarshal(body, &now) != nil {
		t.Fatalf("GET of the lease of %s: %d %s", l.Proxy.ID, status, body)
	}
	return now.Draining
}

// fleetPage fetches a page through a leased proxy.
func fleetPage(ctx context.Context, t *testing.T, l lease) {
	t.Helper()
	if status, body := crawl(ctx, t, l.Proxy.URL, "/rollout"); status != http.StatusOK {
		t.Fatalf("a page through %s: %d %s", l.Proxy.ID, status, body)
	}
}
