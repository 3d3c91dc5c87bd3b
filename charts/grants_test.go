package charts_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/policy"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// The real binary with the chart's rights grants over HTTP only while the chart's policy is in force: it finds out that the
// binding or the policy is gone, and that they are back.
func TestCoreGrantsOverHTTPOnlyWithItsPolicy(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	all := render(t, "--set", "watchNamespaces={"+ns+"}")
	config, _, _ := unstructured.NestedString(find(t, all, "ConfigMap", "providers-config").Object, "data", "providers.yaml")
	core := startManager(t, testenv.BuildOperator(t), env.Config, coreUser, arguments(t, all, "controller-manager"), config)
	ask := func() (int, wire.Problem) {
		body := []byte(`{"namespace":"` + ns + `"}`)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+core.api+"/v1/leases", bytes.NewReader(body))
		must(t, err)
		request.Header.Set("Authorization", "Bearer "+apiToken)
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, wire.Problem{Detail: err.Error()}
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		must(t, err)
		var problem wire.Problem
		must(t, json.Unmarshal(text, &problem))
		return answer.StatusCode, problem
	}
	await := func(code, reason string) {
		t.Helper()
		eventually(t, "a call for a lease is answered "+code+" "+reason, func() bool {
			status, problem := ask()
			return status == http.StatusServiceUnavailable && problem.Code == code && problem.Reason == reason && problem.RetryAfterSeconds > 0
		})
	}
	// There is no proxy: so far a call only gets when grants are protected.
	await(wire.CodeNoProxy, "NoProxyAvailable")
	restore := func(kind string) *unstructured.Unstructured { return find(t, all, kind, policy.DefaultName) }
	for kind, reason := range map[string]string{
		"ValidatingAdmissionPolicyBinding": policy.ReasonBindingNotFound, "ValidatingAdmissionPolicy": policy.ReasonPolicyNotFound,
	} {
		must(t, env.Client.Delete(t.Context(), restore(kind).DeepCopy()))
		await(wire.CodePolicyMissing, reason)
		must(t, env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(restore(kind).DeepCopy()), client.FieldOwner("test")))
		await(wire.CodeNoProxy, "NoProxyAvailable")
	}
	weak := restore("ValidatingAdmissionPolicyBinding").DeepCopy()
	must(t, unstructured.SetNestedStringSlice(weak.Object, []string{"Audit"}, "spec", "validationActions"))
	must(t, env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(weak), client.FieldOwner("test"), client.ForceOwnership))
	await(wire.CodePolicyMissing, policy.ReasonNotEnforced)
	if n := strings.Count(core.Output(), "Leases are not granted over HTTP"); n != 3 {
		t.Errorf("%d lines in the log, want one for each time", n)
	}
}
