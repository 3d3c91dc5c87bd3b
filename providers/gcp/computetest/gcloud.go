package computetest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// gcloudTimeout bounds one run of gcloud, which takes a few seconds.
const gcloudTimeout = 2 * time.Minute

// Gcloud runs the gcloud program against a server, without credentials, and gives what it prints. Where it is not installed
// the test is skipped, even with EGRESS_REQUIRE_ALL=1: it comes from Google's own package repository and from none that the
// tests install from, so it cannot be demanded.
func Gcloud(t testing.TB, s *Server, project string, args ...string) string {
	t.Helper()
	return gcloud(t, []string{"CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE=" + s.URL + "/compute/v1/", "CLOUDSDK_CORE_PROJECT=" + project}, args)
}

// GcloudOffline is Gcloud for commands that call nobody.
func GcloudOffline(t testing.TB, args ...string) string {
	t.Helper()
	return gcloud(t, nil, args)
}

func gcloud(t testing.TB, environment, args []string) string {
	t.Helper()
	program, err := exec.LookPath("gcloud")
	if err != nil {
		t.Skip("the gcloud program is not installed: nothing was tried with it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), gcloudTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, program, append(args, "--quiet")...)
	command.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "CLOUDSDK_") || strings.HasPrefix(v, "GOOGLE_") || strings.HasPrefix(strings.ToLower(v), "http")
	}),
		"CLOUDSDK_CONFIG="+t.TempDir(), "CLOUDSDK_AUTH_DISABLE_CREDENTIALS=true",
		"CLOUDSDK_CORE_DISABLE_PROMPTS=1", "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING=true",
		"CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK=1", "CLOUDSDK_CORE_CHECK_GCE_METADATA=false", "CLOUDSDK_SURVEY_DISABLE_PROMPTS=true",
	)
	command.Env = append(command.Env, environment...)
	var out, complaint bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaint
	if err := command.Run(); err != nil {
		t.Fatalf("gcloud %s: %v\n%s", strings.Join(args, " "), err, complaint.String())
	}
	return strings.TrimSpace(out.String())
}
