package computetest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// gcloud runs the gcloud program against a server. Where it is not installed the test is skipped, even with
// EGRESS_REQUIRE_ALL=1: no distribution that the tests run on has it as a package, so it cannot be demanded.
func gcloud(t *testing.T, s *Server, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("the gcloud program is not installed: the server was not tried with it")
	}
	command := exec.CommandContext(t.Context(), program, append(args, "--quiet")...)
	command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CLOUDSDK_") || strings.HasPrefix(v, "GOOGLE_") || strings.HasPrefix(strings.ToLower(v), "http")
	}),
		"CLOUDSDK_CONFIG="+t.TempDir(), "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE="+s.URL+"/compute/v1/", "CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true",
		"CLOUDSDK_CORE_PROJECT="+project, "CLOUDSDK_CORE_DISABLE_PROMPTS=1", "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=1", "CLOUDSDK_CORE_CHECK_GCE_METADATA=false", "CLOUDSDK_SURVEY_DISABLE_PROMPTS=true",
	)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		t.Fatalf("gcloud %s: %v\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return strings.TrimSpace(out.String())
}

// TestGT2_Gcloud: a program that somebody else wrote creates, lists, describes and deletes a VM on the server.
func TestGT2_Gcloud(t *testing.T) {
	if testing.Short() {
		t.Skip("gcloud takes seconds")
	}
	s := New(t, Options{Timing: &Timing{}})
	s.Seed(Seed{Project: project, Zone: zoneB, Name: "another"})
	gcloud(t, s, "compute", "instances", "create", "px-g", "--zone="+zoneA, "--machine-type=e2-micro", "--image-family=debian-12", "--image-project=debian-cloud",
		"--labels=owner=u1", "--provisioning-model=SPOT", "--instance-termination-action=DELETE", "--tags=egress-proxy", "--metadata=user-data=#cloud-config",
		"--network-tier=STANDARD", "--no-service-account", "--no-scopes")
	v, ok := s.VM(project, zoneA, "px-g")
	if !ok || v.Labels["owner"] != "u1" || v.Metadata["user-data"] != "#cloud-config" || v.Status != statusRunning {
		t.Fatalf("created %+v", v)
	}
	if got := gcloud(t, s, "compute", "instances", "list", "--filter=labels.owner=u1", "--format=value(name,status,networkInterfaces[0].accessConfigs[0].natIP)"); got != "px-g\tRUNNING\t"+v.NatIP {
		t.Errorf("listed %q", got)
	}
	var described obj
	if err := json.Unmarshal([]byte(gcloud(t, s, "compute", "instances", "describe", "px-g", "--zone="+zoneA, "--format=json")), &described); err != nil {
		t.Fatal(err)
	}
	scheduling, _ := described["scheduling"].(obj)
	if described["name"] != "px-g" || scheduling["instanceTerminationAction"] != "DELETE" || natIP(described) != v.NatIP {
		t.Errorf("described %v", described)
	}
	gcloud(t, s, "compute", "instances", "delete", "px-g", "--zone="+zoneA)
	if left := s.VMs(); len(left) != 1 || left[0].Name != "another" {
		t.Errorf("left: %+v", left)
	}
	for _, r := range s.Requests() {
		if r.Status != http.StatusOK && r.Call != Get && r.Call != imageFromFamily {
			t.Errorf("%s %s was answered with %d", r.Method, r.URI, r.Status)
		}
	}
}
