package policy

import (
	"os"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const coreUser = "system:serviceaccount:egress-proxies-operator-system:egress-proxies-operator-controller-manager"

// installed is what kustomize installs.
func installed(t *testing.T) (*admissionv1.ValidatingAdmissionPolicy, *admissionv1.ValidatingAdmissionPolicyBinding) {
	t.Helper()
	data, err := os.ReadFile("../../config/policy/lease_grants.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, b := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	parts := strings.Split(string(data), "\n---\n")
	if len(parts) != 2 {
		t.Fatalf("%d documents", len(parts))
	}
	for i, into := range []any{p, b} {
		if err := yaml.UnmarshalStrict([]byte(parts[i]), into); err != nil {
			t.Fatal(err)
		}
	}
	return p, b
}

func TestInstalledPolicyProtects(t *testing.T) {
	p, b := installed(t)
	if p.Name != DefaultName || b.Name != DefaultName {
		t.Errorf("names %s and %s", p.Name, b.Name)
	}
	if reason, detail := Judge(coreUser, NameFor(coreUser), p, b); reason != "" || detail != "" {
		t.Fatalf("%s: %s", reason, detail)
	}
}

// Whatever weakens the policy or its binding is found.
func TestWeakenedPolicyDoesNotProtect(t *testing.T) {
	type (
		pol = *admissionv1.ValidatingAdmissionPolicy
		bin = *admissionv1.ValidatingAdmissionPolicyBinding
	)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	rule := func(p pol) *admissionv1.NamedRuleWithOperations { return &p.Spec.MatchConstraints.ResourceRules[0] }
	for name, c := range map[string]struct {
		change func(p pol, b bin)
		reason string
	}{
		"failures pass": {func(p pol, _ bin) { p.Spec.FailurePolicy = new(admissionv1.Ignore) }, ReasonNotEnforced},
		"not every request": {func(p pol, _ bin) {
			p.Spec.MatchConditions = []admissionv1.MatchCondition{{Name: "x", Expression: "false"}}
		}, ReasonNotEnforced},
		"no validations":   {func(p pol, _ bin) { p.Spec.Validations = nil }, ReasonNotEnforced},
		"no constraints":   {func(p pol, _ bin) { p.Spec.MatchConstraints = nil }, ReasonNotEnforced},
		"other namespaces": {func(p pol, _ bin) { p.Spec.MatchConstraints.NamespaceSelector = selector }, ReasonNotEnforced},
		"some objects":     {func(p pol, _ bin) { p.Spec.MatchConstraints.ObjectSelector = selector }, ReasonNotEnforced},
		"exclusions": {func(p pol, _ bin) {
			p.Spec.MatchConstraints.ExcludeResourceRules = p.Spec.MatchConstraints.ResourceRules
		}, ReasonNotEnforced},
		"creations only":          {func(p pol, _ bin) { rule(p).Operations = []admissionv1.OperationType{admissionv1.Create} }, ReasonNotEnforced},
		"updates only":            {func(p pol, _ bin) { rule(p).Operations = []admissionv1.OperationType{admissionv1.Update} }, ReasonNotEnforced},
		"another group":           {func(p pol, _ bin) { rule(p).APIGroups = []string{"apps"} }, ReasonNotEnforced},
		"another version":         {func(p pol, _ bin) { rule(p).APIVersions = []string{"v1"} }, ReasonNotEnforced},
		"another resource":        {func(p pol, _ bin) { rule(p).Resources = []string{"proxies"} }, ReasonNotEnforced},
		"some names":              {func(p pol, _ bin) { rule(p).ResourceNames = []string{"x"} }, ReasonNotEnforced},
		"no namespaced objects":   {func(p pol, _ bin) { rule(p).Scope = new(admissionv1.ClusterScope) }, ReasonNotEnforced},
		"another account":         {func(p pol, _ bin) { p.Spec.Variables[0].Expression = "'system:admin'" }, ReasonNotEnforced},
		"being deleted":           {func(p pol, _ bin) { p.DeletionTimestamp = new(metav1.Now()) }, ReasonPolicyNotFound},
		"another policy is bound": {func(_ pol, b bin) { b.Spec.PolicyName = "x" }, ReasonNotEnforced},
		"only warnings": {func(_ pol, b bin) {
			b.Spec.ValidationActions = []admissionv1.ValidationAction{admissionv1.Warn, admissionv1.Audit}
		}, ReasonNotEnforced},
		"parameters":                {func(_ pol, b bin) { b.Spec.ParamRef = &admissionv1.ParamRef{Name: "x"} }, ReasonNotEnforced},
		"bound for some namespaces": {func(_ pol, b bin) { b.Spec.MatchResources = &admissionv1.MatchResources{NamespaceSelector: selector} }, ReasonNotEnforced},
		"bound for something else": {func(p pol, b bin) {
			b.Spec.MatchResources = p.Spec.MatchConstraints.DeepCopy()
			b.Spec.MatchResources.ResourceRules[0].Resources = []string{"x"}
		}, ReasonNotEnforced},
		"the binding is being deleted": {func(_ pol, b bin) { b.DeletionTimestamp = new(metav1.Now()) }, ReasonBindingNotFound},
	} {
		p, b := installed(t)
		c.change(p, b)
		if reason, detail := Judge(coreUser, DefaultName, p, b); reason != c.reason || detail == "" {
			t.Errorf("%s: %q %q, want %s", name, reason, detail, c.reason)
		}
	}
	p, b := installed(t)
	if reason, _ := Judge(coreUser, DefaultName, nil, b); reason != ReasonPolicyNotFound {
		t.Errorf("without the policy: %q", reason)
	}
	if reason, _ := Judge(coreUser, DefaultName, p, nil); reason != ReasonBindingNotFound {
		t.Errorf("without the binding: %q", reason)
	}
}

// What does not weaken it is no reason to refuse.
func TestHarmlessChangesOfThePolicy(t *testing.T) {
	p, b := installed(t)
	p.Spec.FailurePolicy = nil // Fail is the default
	p.Spec.MatchConstraints.NamespaceSelector, p.Spec.MatchConstraints.ObjectSelector = &metav1.LabelSelector{}, &metav1.LabelSelector{}
	rule := &p.Spec.MatchConstraints.ResourceRules[0]
	rule.Operations, rule.Resources, rule.Scope = []admissionv1.OperationType{admissionv1.OperationAll}, []string{"*"}, new(admissionv1.AllScopes)
	b.Spec.MatchResources = &admissionv1.MatchResources{}
	b.Spec.ValidationActions = append(b.Spec.ValidationActions, admissionv1.Audit)
	if reason, detail := Judge(coreUser, DefaultName, p, b); reason != "" {
		t.Fatalf("%s: %s", reason, detail)
	}
}

func TestNameFollowsTheAccount(t *testing.T) {
	for user, want := range map[string]string{
		coreUser: DefaultName, "system:serviceaccount:team:mine-controller-manager": "mine-lease-grants",
		"system:serviceaccount:team:other": DefaultName, "system:serviceaccount:team:-controller-manager": DefaultName, "admin": DefaultName, "": DefaultName,
	} {
		if got := NameFor(user); got != want {
			t.Errorf("%s: %s, want %s", user, got, want)
		}
	}
}
