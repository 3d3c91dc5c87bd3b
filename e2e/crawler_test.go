//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	crawlerNamespace = "crawlers"
	crawlerAccount   = "system:serviceaccount:" + crawlerNamespace + ":crawler"
	privateProxy     = "private"
	// loginName is every printable ASCII character that a user name may have; a password may have a colon as well, and blanks
	// at its ends.
	loginName     = "!\"#$%&'()*+,-./0123456789;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	loginPassword = " " + loginName + ": "
	// goneTimeout is how long the cluster may take to collect what was deleted.
	goneTimeout = 3 * time.Minute
)

const nextLease = `
apiVersion: crawl.example.com/v1alpha1
kind: ProxyLease
metadata: {name: next, namespace: crawlers}
spec: {proxyName: private, holder: next}
`

// TestDemo6_CrawlerInTheCluster: a Job leases by object with the rights of lease-user, crawls through a proxy that asks for a
// login of every printable character, and its lease goes away with its Pod.
func TestDemo6_CrawlerInTheCluster(t *testing.T) {
	var crawlerPod, held string
	leaseOf := func(ctx context.Context, name string) (*v1alpha1.ProxyLease, error) {
		lease := &v1alpha1.ProxyLease{}
		return lease, cluster.Get(ctx, client.ObjectKey{Namespace: crawlerNamespace, Name: name}, lease)
	}
	testenv.Test(t, features.New("a crawler in the cluster").
		Assess("its namespace has a proxy that asks for a login", assess(func(ctx context.Context, t *testing.T) {
			kubectl(t, "delete", "namespace", crawlerNamespace, "--ignore-not-found", "--timeout="+goneTimeout.String())
			ca, err := os.ReadFile(os.Getenv("DEMO_CA_FILE"))
			if err != nil {
				t.Fatal(err)
			}
			for _, object := range []client.Object{
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: crawlerNamespace}},
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: crawlerNamespace, Name: "origin-ca"}, Data: map[string]string{"ca.crt": string(ca)}},
				&corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: crawlerNamespace, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
					StringData: map[string]string{"username": loginName, "password": loginPassword},
				},
			} {
				if err := cluster.Create(ctx, object); err != nil {
					t.Fatalf("create %T: %v", object, err)
				}
			}
			manifest, err := os.ReadFile("manifests/crawler.yaml")
			if err != nil {
				t.Fatal(err)
			}
			apply(t, string(manifest))
			eventually(ctx, t, readyTimeout, "the proxy is Ready, so probes got through with the login", func(ctx context.Context) string {
				px := &v1alpha1.Proxy{}
				if err := cluster.Get(ctx, client.ObjectKey{Namespace: crawlerNamespace, Name: privateProxy}, px); err != nil {
					return err.Error()
				}
				return usable(px)
			})
			say(t, "kubectl get px:\n%s", kubectl(t, "get", "px", "-n", crawlerNamespace))
		})).
		Assess("its account may lease and nothing else", assess(func(_ context.Context, t *testing.T) {
			for question, want := range map[string]string{
				"create proxyleases": "yes", "patch proxyleases": "yes", "delete proxyleases": "yes", "list proxies": "yes",
				"get secrets": "no", "list secrets": "no", "create pods": "no", "create proxies": "no", "delete proxies": "no", "patch proxyleases --subresource=status": "no",
				"create proxyleases --namespace=" + namespace: "no",
			} {
				args := append([]string{"auth", "can-i", "--as=" + crawlerAccount, "--namespace=" + crawlerNamespace}, strings.Fields(question)...)
				if out, _ := tryKubectl(args...); out != want {
					t.Errorf("may it %s? %q, want %s", question, out, want)
				}
			}
		})).
		Assess("the Job crawls through the leased proxy", assess(func(ctx context.Context, t *testing.T) {
			var line struct {
				Lease, ProxyURL, Body string
				Status                int
			}
			eventually(ctx, t, time.Minute, "the crawler has printed what it got", func(context.Context) string {
				out, err := tryKubectl("logs", "-n", crawlerNamespace, "job/crawler")
				if err != nil || !strings.HasPrefix(out, "{") {
					return out
				}
				if err := json.Unmarshal([]byte(out), &line); err != nil {
					t.Fatalf("%s: %v", out, err)
				}
				return ""
			})
			say(t, "the crawler says: %+v", line)
			px := &v1alpha1.Proxy{}
			if err := cluster.Get(ctx, client.ObjectKey{Namespace: crawlerNamespace, Name: privateProxy}, px); err != nil {
				t.Fatal(err)
			}
			address := px.Status.Instance.Addresses[0]
			if line.Status != http.StatusOK || !strings.Contains(line.ProxyURL, address) || !strings.Contains(line.Body, `"`+address+`"`) {
				t.Errorf("the page did not come through %s", address)
			}
			for _, leak := range []string{loginPassword, loginName, url.QueryEscape(loginName)} {
				if strings.Contains(fmt.Sprintf("%+v", line), leak) {
					t.Error("the login is in what the crawler or the origin saw")
				}
			}
			pods := &corev1.PodList{}
			if err := cluster.List(ctx, pods, client.InNamespace(crawlerNamespace), client.MatchingLabels{"batch.kubernetes.io/job-name": "crawler"}); err != nil || len(pods.Items) != 1 {
				t.Fatalf("%d pods of the Job, %v", len(pods.Items), err)
			}
			crawlerPod = pods.Items[0].Name
			leases := &v1alpha1.ProxyLeaseList{}
			if err := cluster.List(ctx, leases, client.InNamespace(crawlerNamespace)); err != nil || len(leases.Items) != 1 {
				t.Fatalf("%d leases, %v", len(leases.Items), err)
			}
			lease := leases.Items[0]
			held = lease.Name
			if owners := lease.OwnerReferences; lease.Status.Phase != v1alpha1.LeaseBound || len(owners) != 1 || owners[0].UID != pods.Items[0].UID {
				t.Errorf("the lease is %s, owned by %+v", lease.Status.Phase, owners)
			}
			say(t, "kubectl get pxl:\n%s", kubectl(t, "get", "pxl", "-n", crawlerNamespace))
		})).
		Assess("nobody gets through without the login", assess(func(ctx context.Context, t *testing.T) {
			px := &v1alpha1.Proxy{}
			if err := cluster.Get(ctx, client.ObjectKey{Namespace: crawlerNamespace, Name: privateProxy}, px); err != nil {
				t.Fatal(err)
			}
			if c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionAccessRestricted); c == nil || c.Status != metav1.ConditionTrue {
				t.Errorf("AccessRestricted is %+v", c)
			}
			if logs := kubectl(t, "logs", "-n", crawlerNamespace, px.Status.Instance.Name); !strings.Contains(logs, "TCP_DENIED/407") || strings.Contains(logs, loginPassword) {
				t.Error("Squid's log has no refusal of a stranger, or has the password")
			}
		})).
		Assess("another lease waits for the proxy", assess(func(ctx context.Context, t *testing.T) {
			apply(t, nextLease)
			eventually(ctx, t, time.Minute, "it waits", func(ctx context.Context) string {
				lease, err := leaseOf(ctx, "next")
				if err != nil {
					return err.Error()
				}
				if c := meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionBound); c == nil || c.Status != metav1.ConditionFalse {
					return fmt.Sprintf("%+v", lease.Status)
				}
				return ""
			})
		})).
		Assess("with the Pod its lease goes, and the proxy is free", assess(func(ctx context.Context, t *testing.T) {
			kubectl(t, "delete", "pod", crawlerPod, "-n", crawlerNamespace)
			eventually(ctx, t, goneTimeout, "the lease is collected", func(ctx context.Context) string {
				lease, err := leaseOf(ctx, held)
				if apierrors.IsNotFound(err) {
					return ""
				}
				return fmt.Sprintf("it is %s, %v", lease.Status.Phase, err)
			})
			say(t, "%s", kubectl(t, "wait", "--for=condition=Bound", "pxl/next", "-n", crawlerNamespace, "--timeout=60s"))
		})).
		Assess("the namespace can be deleted with its bound lease", assess(func(ctx context.Context, t *testing.T) {
			say(t, "%s", kubectl(t, "delete", "namespace", crawlerNamespace, "--timeout="+goneTimeout.String()))
		})).
		Feature())
}
