package gcp

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// sent inserts with a class and gives what the server got, which has held it against the discovery document.
func sent(t *testing.T, req providers.CreateRequest, change ...func(*v1alpha1.GCPClass)) map[string]any {
	t.Helper()
	r := newRig(t, func(s *v1alpha1.ProviderClassSpec) {
		for _, f := range change {
			f(s.GCP)
		}
	})
	r.create(req)
	vm, ok := r.VM(testProject, req.Zone, req.Name)
	if !ok {
		t.Fatal("there is no VM")
	}
	return vm.Body
}

func at(t *testing.T, body any, path ...any) any {
	t.Helper()
	for _, p := range path {
		switch key := p.(type) {
		case string:
			object, _ := body.(map[string]any)
			body = object[key]
		case int:
			list, _ := body.([]any)
			if key >= len(list) {
				return nil
			}
			body = list[key]
		}
	}
	return body
}

// TestGT1_BodiesOverAllFields: what is sent for every combination of the class's fields is valid by the discovery document,
// and is what was asked for.
func TestGT1_BodiesOverAllFields(t *testing.T) {
	for _, spot := range []string{"", modelStandard, modelSpot} {
		for _, tier := range []string{"", tierPremium, tierStandard} {
			for _, subnetwork := range []string{"", "egress-eu", "projects/host-project/regions/europe-west3/subnetworks/shared"} {
				for _, account := range []string{"", "proxy@demo-project.iam.gserviceaccount.com"} {
					body := sent(t, newRequest("px", zoneA), func(c *v1alpha1.GCPClass) {
						c.ProvisioningModel, c.NetworkTier, c.Subnetwork, c.ServiceAccount = spot, tier, subnetwork, account
						c.DiskType, c.DiskSizeGb, c.NetworkTag = "pd-balanced", ptr.To[int32](20), "fleet"
					})
					wantSpot, action := spot == modelSpot, at(t, body, "scheduling", "instanceTerminationAction")
					if wantSpot != (action == "DELETE") || (!wantSpot && action != nil) {
						t.Errorf("%s: termination action %v", spot, action)
					}
					if restart := at(t, body, "scheduling", "automaticRestart"); restart != !wantSpot {
						t.Errorf("%s: automaticRestart %v", spot, restart)
					}
					if got := at(t, body, "networkInterfaces", 0, "accessConfigs", 0, "networkTier"); tier != "" && got != tier {
						t.Errorf("tier %v, want %s", got, tier)
					}
					if got := at(t, body, "networkInterfaces", 0, "subnetwork").(string); subnetwork != "" && !strings.HasSuffix(got, "/regions/europe-west3/subnetworks/"+lastPart(subnetwork)) {
						t.Errorf("subnetwork %s, want %s", got, subnetwork)
					}
					if got := at(t, body, "serviceAccounts", 0, "email"); (account == "") != (got == nil) || (account != "" && got != account) {
						t.Errorf("service account %v, want %q", got, account)
					}
					if tags := at(t, body, "tags", "items", 0); tags != "fleet" {
						t.Errorf("tag %v", tags)
					}
					if auto := at(t, body, "disks", 0, "autoDelete"); auto != true {
						t.Error("the disk stays")
					}
				}
			}
		}
	}
}

// TestG5_G43_TerminationAction is sent for SPOT, always, and for nothing else.
func TestG5_G43_TerminationAction(t *testing.T) {
	for model, want := range map[string]any{"": nil, modelStandard: nil, modelSpot: "DELETE"} {
		body := sent(t, newRequest("px", zoneA), func(c *v1alpha1.GCPClass) { c.ProvisioningModel = model })
		if got := at(t, body, "scheduling", "instanceTerminationAction"); got != want {
			t.Errorf("%q: %v, want %v", model, got, want)
		}
	}
}

// TestG42_BooleansAreSent: whatever their value.
func TestG42_BooleansAreSent(t *testing.T) {
	req := newRequest("px", zoneA)
	for _, spot := range []bool{false, true} {
		insert := newInsert(settings{project: testProject, spot: spot}, req).GetInstanceResource()
		for name, flag := range map[string]*bool{
			"automaticRestart": insert.GetScheduling().AutomaticRestart, "deletionProtection": insert.DeletionProtection,
			"canIpForward": insert.CanIpForward, "boot": insert.GetDisks()[0].Boot, "autoDelete": insert.GetDisks()[0].AutoDelete,
		} {
			if flag == nil {
				t.Errorf("%s is left out", name)
			}
		}
	}
}

// TestG19_MarksAndTag: labels to find the machine by and a tag for firewalls, also where the class names none.
func TestG19_MarksAndTag(t *testing.T) {
	req := newRequest("px", zoneA)
	req.Labels = map[string]string{"geo": "eu", "Upper": "x", "a/b": "x", "dotted": "a.b", labelUID: "forged", "egress-proxy-more": "x"}
	body := sent(t, req)
	labels := at(t, body, "labels").(map[string]any)
	if labels["geo"] != "eu" || labels[labelUID] != string(req.Owner.UID) {
		t.Errorf("labels %v", labels)
	}
	for _, key := range []string{"Upper", "a/b", "dotted", "egress-proxy-more"} {
		if _, ok := labels[key]; ok {
			t.Errorf("label %s was sent", key)
		}
	}
	if tag := at(t, body, "tags", "items", 0); tag != DefaultNetworkTag {
		t.Errorf("tag %v", tag)
	}
}

// TestG22_UserDataKey: scripts go to the guest agent, everything else to cloud-init.
func TestG22_UserDataKey(t *testing.T) {
	for data, want := range map[string]string{
		"#cloud-config\n{}": keyUserData, "Content-Type: multipart/mixed; boundary=x\n": keyUserData, "## template: jinja\n#cloud-config\n": keyUserData,
		"#include\nhttps://example.com/x\n": keyUserData, "#!/bin/sh\ntrue\n": keyStartupScript,
	} {
		req := newRequest("px", zoneA)
		req.UserData = []byte(data)
		r := newRig(t)
		r.create(req)
		vm, _ := r.VM(testProject, zoneA, req.Name)
		if vm.Metadata[want] != data {
			t.Errorf("%q is not under %s: %v", data, want, slices.Sorted(maps.Keys(vm.Metadata)))
		}
	}
}

// TestG50_AttemptsHaveKeys: the calls of an attempt have one idempotency key, other attempts and names another one.
func TestG50_AttemptsHaveKeys(t *testing.T) {
	a, again, next, other := newRequest("px", zoneA), newRequest("px", zoneA), newRequest("px", zoneA), newRequest("other", zoneA)
	next.Attempt = "1700000100-2"
	key := func(req providers.CreateRequest) string {
		return newInsert(settings{project: testProject}, req).GetRequestId()
	}
	if key(a) != key(again) || key(a) == key(next) || key(a) == key(other) || key(a) == "" {
		t.Errorf("keys %s %s %s %s", key(a), key(again), key(next), key(other))
	}
	r := newRig(t)
	first := r.create(a)
	if second := r.create(again); second.Operation != first.Operation || len(r.VMs()) != 1 {
		t.Errorf("operations %s and %s, %d VMs", first.Operation, second.Operation, len(r.VMs()))
	}
}
