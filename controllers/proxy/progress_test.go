package proxy

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// An instance that does not come to run says what it waits for, in Ready too; one that comes soon costs no write for that.
func TestReadySaysWhatAnInstanceWaitsFor(t *testing.T) {
	const onItsWay, trouble = "The instance is on its way; the condition Provisioned says how far.", "the instance is starting: no node can take the pod"
	for name, c := range map[string]struct {
		reason, message string // of Provisioned
		started         time.Duration
		instance        string
		want            string
		again           time.Duration
	}{
		"just started":            {v1alpha1.ReasonStarting, trouble, 5 * time.Second, "no node can take the pod", onItsWay, StartingPatience - 5*time.Second},
		"for too long":            {v1alpha1.ReasonStarting, trouble, StartingPatience, "no node can take the pod", trouble, 0},
		"for long":                {v1alpha1.ReasonStarting, trouble, time.Hour, "no node can take the pod", trouble, 0},
		"nothing is said of it":   {v1alpha1.ReasonStarting, "the instance is starting", time.Hour, "", onItsWay, 0},
		"waits for its turn":      {v1alpha1.ReasonPending, "waiting for its turn", time.Hour, "", onItsWay, 0},
		"another one is replaced": {v1alpha1.ReasonReplacing, "m", time.Hour, "old", "Replacing: m", 0},
	} {
		t.Run(name, func(t *testing.T) {
			px, in := running(), input()
			setCondition(px, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, c.reason)
			px.Status.Conditions[0].Message = c.message
			px.Status.Instance.StartedTime, px.Status.Instance.Message = new(metav1.NewTime(start.Add(-c.started))), c.instance
			out := Compose(px, in)
			if ready := meta.FindStatusCondition(out.Conditions, v1alpha1.ConditionReady); ready.Reason != v1alpha1.ReasonNotProvisioned || ready.Message != c.want {
				t.Errorf("Ready is %s: %s", ready.Reason, ready.Message)
			}
			if got := again(px, &out, in); got != c.again {
				t.Errorf("looked at again after %s, want %s", got, c.again)
			}
		})
	}
}

// A draining proxy says how many leases hold it and until when, in few writes, and does not forget it over a restart.
func TestADrainingProxySaysForWhatItWaits(t *testing.T) {
	deadline := start.Add(10 * time.Minute)
	asked := func(deadlines ...time.Time) func(*v1alpha1.Proxy) {
		return func(px *v1alpha1.Proxy) {
			px.Spec.DrainRequests = []v1alpha1.DrainRequest{{Requester: "someone"}}
			for _, d := range deadlines {
				px.Spec.DrainRequests[0].DeadlineTime = new(metav1.NewTime(d))
			}
		}
	}
	deleted := func(px *v1alpha1.Proxy) {
		px.DeletionTimestamp, px.Finalizers = new(metav1.NewTime(start)), []string{v1alpha1.FinalizerLeaseDrain}
		px.Spec.Deletion = &v1alpha1.ProxyDeletion{DrainTimeoutSeconds: new(int32(1800))}
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.Proxy)
		leases int
		want   string
	}{
		"one":              {asked(deadline), 1, "1 lease holds the proxy until 2026-03-01T12:10:00Z at the latest; no new ones are granted."},
		"some":             {asked(deadline), 10, "10 leases hold the proxy until 2026-03-01T12:10:00Z at the latest; no new ones are granted."},
		"many":             {asked(deadline), 11, "More than 10 leases hold the proxy until 2026-03-01T12:10:00Z at the latest; no new ones are granted."},
		"as many":          {asked(deadline), 5000, "More than 10 leases hold the proxy until 2026-03-01T12:10:00Z at the latest; no new ones are granted."},
		"no deadline":      {asked(), 2, "2 leases hold the proxy; no new ones are granted."},
		"deleted":          {deleted, 2, "2 leases hold the proxy until 2026-03-01T12:30:00Z at the latest; no new ones are granted."},
		"asked, then gone": {func(px *v1alpha1.Proxy) { asked(deadline)(px); deleted(px) }, 2, "2 leases hold the proxy until 2026-03-01T12:10:00Z at the latest; no new ones are granted."},
	} {
		t.Run(name, func(t *testing.T) {
			px, in := running(), input()
			in.Verdict, in.Leases = healthy("i-1"), c.leases
			c.change(px)
			out := Compose(px, in)
			if drained := meta.FindStatusCondition(out.Conditions, v1alpha1.ConditionDrained); drained.Status != metav1.ConditionFalse || drained.Message != c.want {
				t.Errorf("Drained is %s: %s", drained.Status, drained.Message)
			}
			if got := again(px, &out, in); got != DrainRefresh {
				t.Errorf("looked at again after %s", got)
			}
			if ready := meta.FindStatusCondition(out.Conditions, v1alpha1.ConditionReady); !px.DeletionTimestamp.IsZero() &&
				ready.Message != "The deletion waits for leases; the condition Drained says for how many, and until when." {
				t.Errorf("Ready: %s", ready.Message)
			}
			// A core that has just started does not know the leases yet.
			px.Status = out
			in.LeasesKnown, in.Leases = false, 0
			if blind := Compose(px, in); !equality.Semantic.DeepEqual(blind, out) {
				t.Errorf("another status while leases are not known: %+v", blind.Conditions)
			}
		})
	}
	px, in := running(), input()
	asked()(px)
	in.LeasesKnown = false
	out := Compose(px, in)
	if drained := meta.FindStatusCondition(out.Conditions, v1alpha1.ConditionDrained); drained.Message != "Leases may still hold the proxy; no new ones are granted." {
		t.Errorf("Drained: %s", drained.Message)
	}
}
