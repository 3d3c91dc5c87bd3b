package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// gcpPatience is how long a manager may take to notice something: a class that is not ready is looked at every 15 seconds, a
// Proxy that waits for credentials every minute or when its class is ready again.
const gcpPatience = 2 * time.Minute

// says waits for a condition of an object.
func (c *cloud) says(obj client.Object, kind string, status metav1.ConditionStatus, reason, message string) {
	c.t.Helper()
	last := &metav1.Condition{}
	err := wait.PollUntilContextTimeout(c.t.Context(), pollPeriod, gcpPatience, true, func(ctx context.Context) (bool, error) {
		if err := c.env.Client.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return false, err
		}
		var conditions []metav1.Condition
		switch o := obj.(type) {
		case *v1alpha1.Proxy:
			conditions = o.Status.Conditions
		case *v1alpha1.ProviderClass:
			conditions = o.Status.Conditions
		}
		last = meta.FindStatusCondition(conditions, kind)
		return last != nil && last.Status == status && (reason == "" || last.Reason == reason) && strings.Contains(last.Message, message), nil
	})
	if err != nil {
		c.t.Fatalf("%s: %s is %+v, want %s %s %q", obj.GetName(), kind, last, status, reason, message)
	}
}

func (c *cloud) create(px *v1alpha1.Proxy) *v1alpha1.Proxy {
	c.t.Helper()
	if err := c.env.Client.Create(c.t.Context(), px); err != nil {
		c.t.Fatal(err)
	}
	return px
}

func (c *cloud) patch(px *v1alpha1.Proxy, change func(*v1alpha1.Proxy)) {
	c.t.Helper()
	patch := client.MergeFrom(px.DeepCopy())
	change(px)
	if err := c.env.Client.Patch(c.t.Context(), px, patch); err != nil {
		c.t.Fatal(err)
	}
}

// TestGcpRecoversWithoutRestart: one manager process goes through missing, revoked and renewed credentials, a right that it
// lacks, bad specifications and a full zone. Each is told where a person looks, nothing is made meanwhile, and all is well
// when the cause is gone.
func TestGcpRecoversWithoutRestart(t *testing.T) {
	c := newCloud(t, v1alpha1.GCPClass{})
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: c.class}}
	pinned := func(name string) *v1alpha1.Proxy {
		px := c.proxy(name)
		px.Spec.Placement.Zone = computetest.DefaultZones[0]
		return px
	}
	if err := os.Remove(c.key); err != nil {
		t.Fatal(err)
	}
	c.start()
	px := c.create(pinned("px"))
	c.says(class, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed, "Application Default Credentials")
	c.says(px, v1alpha1.ConditionProvisioned, metav1.ConditionUnknown, v1alpha1.ReasonAuthFailed, "Application Default Credentials")
	if len(px.Finalizers) != 0 || c.Count("") != 0 {
		t.Errorf("finalizers %v and %d calls without credentials", px.Finalizers, c.Count(""))
	}
	c.account.WriteFile(c.key)
	c.says(class, v1alpha1.ConditionReady, metav1.ConditionTrue, "", "")
	c.says(px, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "", "")
	address := px.Status.Instance.Addresses[0]

	// The key is rotated: the tokens of the old one are refused at once, and the file follows a little later.
	c.account.RotateKey()
	c.account.SetToken("the-next-token")
	c.SetToken("the-next-token")
	c.says(class, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed, "")
	c.account.WriteFile(c.key)
	c.says(class, v1alpha1.ConditionReady, metav1.ConditionTrue, "", "")
	c.says(px, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "", "")
	if now := px.Status.Instance.Addresses[0]; now != address {
		t.Errorf("the address changed from %s to %s", address, now)
	}

	// A full zone that is named: the Proxy says so with Compute Engine's code, and waits there.
	restore := c.Fail(computetest.Fault{Call: computetest.Insert, Operation: computetest.Stockout(computetest.DefaultZones[0])})
	full := c.create(pinned("full"))
	c.says(full, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonWaitingForCapacity, "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS")
	restore()
	c.says(full, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "", "")

	// A right that is missing, noticed when a machine is made.
	restore = c.Fail(computetest.Fault{Call: computetest.Insert, Answer: computetest.Forbidden("compute.subnetworks.useExternalIp", gcpProject)})
	denied := c.create(pinned("denied"))
	c.says(denied, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed, "compute.subnetworks.useExternalIp")
	restore()
	c.says(denied, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "", "")

	// What is missing or wrong in the specification, by its field.
	before := c.Count(computetest.Insert)
	bad := c.create(c.proxy("bad"))
	c.says(bad, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, "spec.placement.zone")
	for field, change := range map[string]func(*v1alpha1.Placement){
		"spec.placement.machineType": func(p *v1alpha1.Placement) { p.MachineType = "" },
		"spec.placement.image":       func(p *v1alpha1.Placement) { p.Image = "debian-12" },
		"spec.placement.zone":        func(p *v1alpha1.Placement) { p.Zone = "Frankfurt" },
	} {
		c.patch(bad, func(px *v1alpha1.Proxy) { px.Spec.Placement = pinned("x").Spec.Placement; change(px.Spec.Placement) })
		c.says(bad, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, field)
	}
	if n := c.Count(computetest.Insert) - before; n != 0 {
		t.Errorf("%d inserts of a bad specification", n)
	}
	c.patch(bad, func(px *v1alpha1.Proxy) { px.Spec.Placement = pinned("x").Spec.Placement })
	c.says(bad, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "", "")

	// An image that Compute Engine does not find: known only when it is asked. The Proxy can go.
	c.SetMissing("debian-cloud/global/images/family/debian-99", true)
	lost := pinned("lost")
	lost.Spec.Placement.Image = "projects/debian-cloud/global/images/family/debian-99"
	c.create(lost)
	c.says(lost, v1alpha1.ConditionProvisioned, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, "spec.placement.image")
	if last := c.differences(); !strings.HasPrefix(last, "lost: ") {
		t.Errorf("besides the one without an image: %s", last)
	}
	if n := len(c.VMs()); n != 4 {
		t.Errorf("%d machines, want 4", n)
	}
}
