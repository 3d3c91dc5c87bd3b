package v1alpha1_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// poolCreated tries to create a pool of whose specification a part is given, dry and strictly.
func poolCreated(t *testing.T, env *testenv.Env, namespace, part string) error {
	t.Helper()
	body := fmt.Sprintf(`spec: {%s, template: {spec: {provider: a}}}`, part)
	return env.Client.Create(t.Context(), object(t, namespace, "ProxyPool", body), client.FieldValidation("Strict"), client.DryRunAll)
}

func TestPoolSharesOutOfBoundsAreRefusedByField(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	for _, field := range []string{"strategy.maxSurge", "strategy.maxUnavailable", "remediation.maxUnhealthy"} {
		parent, name, _ := strings.Cut(field, ".")
		for _, value := range []string{
			"-1", "5001", "2147483648", "2.5", "true", `""`, `"5"`, `"%"`, `"101%"`, `"1000%"`, `"-5%"`, `"+5%"`, `"5%%"`, `" 5%"`, `"5 %"`, `"5%\n"`, `"5.5%"`, `"1e1%"`, `"٥%"`, `"half"`,
		} {
			err := poolCreated(t, env, namespace, fmt.Sprintf(`%s: {%s: %s}`, parent, name, value))
			if err == nil || !strings.Contains(err.Error(), "spec."+field) {
				t.Errorf("%s: %s gave %v, want a refusal that names the field", field, value, err)
			}
		}
		for _, value := range []string{"0", "1", "5000", `"0%"`, `"1%"`, `"99%"`, `"100%"`} {
			if err := poolCreated(t, env, namespace, fmt.Sprintf(`%s: {%s: %s}`, parent, name, value)); err != nil {
				t.Errorf("%s: %s was refused: %v", field, value, err)
			}
		}
	}
}

// A proxy that must be ready for as long as a rollout may stand still never lets one get on in time. The deadline that a pool
// does not set is that of the pool controller.
func TestPoolWhoseProxiesAreAvailableTooLateIsRefused(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	const unset = 600
	for _, test := range []struct {
		fields  string
		refused bool
	}{
		{"minReadySeconds: 700, progressDeadlineSeconds: 10", true},
		{"minReadySeconds: 10, progressDeadlineSeconds: 10", true},
		{"minReadySeconds: 9, progressDeadlineSeconds: 10", false},
		{"minReadySeconds: 0, progressDeadlineSeconds: 1", false},
		{"progressDeadlineSeconds: 1", false},
		{fmt.Sprintf("minReadySeconds: %d", unset), true},
		{fmt.Sprintf("minReadySeconds: %d", unset-1), false},
		{"minReadySeconds: 86400, progressDeadlineSeconds: 86400", true},
		{"paused: true", false},
	} {
		err := poolCreated(t, env, namespace, test.fields)
		switch {
		case !test.refused && err != nil:
			t.Errorf("%s was refused: %v", test.fields, err)
		case test.refused && (err == nil || !strings.Contains(err.Error(), "spec.progressDeadlineSeconds: Invalid value") || !strings.Contains(err.Error(), "must be greater than minReadySeconds")):
			t.Errorf("%s: %v, want a refusal that names the field", test.fields, err)
		}
	}
}

func TestPoolWithBothFencepostsZeroIsRefused(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	zeros := []string{"0", `"0%"`, `"00%"`}
	for _, surge := range zeros {
		for _, unavailable := range zeros {
			err := poolCreated(t, env, namespace, fmt.Sprintf(`strategy: {maxSurge: %s, maxUnavailable: %s}`, surge, unavailable))
			if err == nil || !strings.Contains(err.Error(), "spec.strategy.maxUnavailable") {
				t.Errorf("maxSurge %s and maxUnavailable %s: %v, want a refusal that names the field", surge, unavailable, err)
			}
		}
	}
	pool := object(t, namespace, "ProxyPool", `spec: {strategy: {maxSurge: 0, maxUnavailable: 1}, template: {spec: {provider: a}}}`)
	if err := env.Client.Create(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	err := env.Client.Patch(t.Context(), pool, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"strategy":{"maxUnavailable":"0%"}}}`)))
	if err == nil || !strings.Contains(err.Error(), "spec.strategy.maxUnavailable") {
		t.Errorf("a change to both zero: %v, want a refusal that names the field", err)
	}
}

// What decides about one proxy, and what the pool itself sets, is no matter of a template.
func TestFieldsThatATemplateMayNotSetAreRefusedByName(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	for field, value := range map[string]string{
		"spec.mode": "Managed", "spec.external": "{host: a.example}", "spec.leasing": "Disabled", "spec.replacePolicy": "Automatic",
		"spec.immutableReplicas": "1", "spec.drainRequests": "[{requester: a}]", "spec.binding": "{type: a}",
		"metadata.name": "a", "metadata.namespace": "a", "metadata.generateName": "a", "metadata.finalizers": "[a/b]", "metadata.ownerReferences": "[]",
	} {
		parent, name, _ := strings.Cut(field, ".")
		template := fmt.Sprintf(`spec: {provider: a}, metadata: {%s: %s}`, name, value)
		if parent == "spec" {
			template = fmt.Sprintf(`spec: {provider: a, %s: %s}`, name, value)
		}
		pool := object(t, namespace, "ProxyPool", fmt.Sprintf(`spec: {template: {%s}}`, template))
		err := env.Client.Create(t.Context(), pool, client.FieldValidation("Strict"), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), `"spec.template.`+field+`"`) {
			t.Errorf("%s gave %v, want a refusal that names the field", field, err)
		}
	}
	err := poolCreated(t, env, namespace, `selector: {matchLabels: {geo: eu}}`)
	if err == nil || !strings.Contains(err.Error(), `"spec.selector"`) {
		t.Errorf("a selector of one's own: %v, want a refusal that names the field", err)
	}
}

// What the operator writes on its proxies is not a template's: skip-cleanup in one would leave every instance behind that the pool
// gives up.
func TestPoolTemplateWithTheOperatorsAnnotationsIsRefused(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	for annotation, ok := range map[string]bool{
		"crawl.example.com/skip-cleanup": false, "crawl.example.com/first-intent": false, "crawl.example.com/": false,
		"crawl.example.com/deletion-cost": true, "example.com/team": true, "crawl": true,
	} {
		body := fmt.Sprintf(`spec: {template: {metadata: {annotations: {%q: "true"}}, spec: {provider: a}}}`, annotation)
		err := env.Client.Create(t.Context(), object(t, namespace, "ProxyPool", body), client.DryRunAll)
		if named := err != nil && strings.Contains(err.Error(), "spec.template.metadata.annotations"); ok && err != nil || !ok && !named {
			t.Errorf("%s: %v", annotation, err)
		}
	}
}
