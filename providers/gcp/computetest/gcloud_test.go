package computetest

import (
	"encoding/json"
	"net/http"
	"testing"
)

// TestGT2_Gcloud: a program that somebody else wrote creates, lists, describes and deletes a VM on the server.
func TestGT2_Gcloud(t *testing.T) {
	if testing.Short() {
		t.Skip("gcloud takes seconds")
	}
	s := New(t, Options{Timing: &Timing{}})
	s.Seed(Seed{Project: project, Zone: zoneB, Name: "another"})
	Gcloud(t, s, project, "compute", "instances", "create", "px-g", "--zone="+zoneA, "--machine-type=e2-micro", "--image-family=debian-12", "--image-project=debian-cloud",
		"--labels=owner=u1", "--provisioning-model=SPOT", "--instance-termination-action=DELETE", "--tags=egress-proxy", "--metadata=user-data=#cloud-config",
		"--network-tier=STANDARD", "--no-service-account", "--no-scopes")
	v, ok := s.VM(project, zoneA, "px-g")
	if !ok || v.Labels["owner"] != "u1" || v.Metadata["user-data"] != "#cloud-config" || v.Status != statusRunning {
		t.Fatalf("created %+v", v)
	}
	if got := Gcloud(t, s, project, "compute", "instances", "list", "--filter=labels.owner=u1", "--format=value(name,status,networkInterfaces[0].accessConfigs[0].natIP)"); got != "px-g\tRUNNING\t"+v.NatIP {
		t.Errorf("listed %q", got)
	}
	var described obj
	if err := json.Unmarshal([]byte(Gcloud(t, s, project, "compute", "instances", "describe", "px-g", "--zone="+zoneA, "--format=json")), &described); err != nil {
		t.Fatal(err)
	}
	scheduling, _ := described["scheduling"].(obj)
	if described["name"] != "px-g" || scheduling["instanceTerminationAction"] != "DELETE" || natIP(described) != v.NatIP {
		t.Errorf("described %v", described)
	}
	Gcloud(t, s, project, "compute", "instances", "delete", "px-g", "--zone="+zoneA)
	if left := s.VMs(); len(left) != 1 || left[0].Name != "another" {
		t.Errorf("left: %+v", left)
	}
	for _, r := range s.Requests() {
		if r.Status != http.StatusOK && r.Call != Get && r.Call != imageFromFamily {
			t.Errorf("%s %s was answered with %d", r.Method, r.URI, r.Status)
		}
	}
}
