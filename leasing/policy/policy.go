// Package policy looks whether the admission policy is in force that keeps everybody but core from writing spec.grant of a
// ProxyLease. Without it whoever may create ProxyLeases could give himself any proxy, and what core recovers after a restart
// could not be believed; so core grants nothing over HTTP then.
package policy

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// DefaultName of the policy and of its binding, as config/policy has it.
	DefaultName = "egress-proxies-operator-lease-grants"
	// serviceAccountPrefix and coreSuffix are around the part of core's user name that the policy's name begins with.
	serviceAccountPrefix = "system:serviceaccount:"
	coreSuffix           = "-controller-manager"
	policySuffix         = "-lease-grants"
	// resource that is protected.
	resource = "proxyleases"
)

// Reasons for which grants are not protected. They are part of the HTTP API.
const (
	// ReasonPolicyNotFound: there is no policy of the name.
	ReasonPolicyNotFound = "PolicyNotFound"
	// ReasonBindingNotFound: nothing binds the policy, so it has no effect.
	ReasonBindingNotFound = "BindingNotFound"
	// ReasonNotEnforced: policy and binding exist, but do not refuse every grant of somebody else.
	ReasonNotEnforced = "PolicyNotEnforced"
	// ReasonNotReadable: core lacks the right to look.
	ReasonNotReadable = "PolicyNotReadable"
)

// NameFor is the name of the policy that an installation has whose core runs as this user: chart and kustomization derive
// both from one name. People, who run core from a laptop, have the usual one.
func NameFor(user string) string {
	account, ok := strings.CutPrefix(user, serviceAccountPrefix)
	if !ok {
		return DefaultName
	}
	_, account, _ = strings.Cut(account, ":")
	name, ok := strings.CutSuffix(account, coreSuffix)
	if !ok || name == "" {
		return DefaultName
	}
	return name + policySuffix
}

// Judge says why a policy and its binding, nil where there is none, do not keep everybody but user from writing grants. Both
// texts are empty when they do.
func Judge(user, name string, p *admissionv1.ValidatingAdmissionPolicy, b *admissionv1.ValidatingAdmissionPolicyBinding) (reason, detail string) {
	switch {
	case p == nil || !p.DeletionTimestamp.IsZero():
		return ReasonPolicyNotFound, "there is no ValidatingAdmissionPolicy " + name
	case b == nil || !b.DeletionTimestamp.IsZero():
		return ReasonBindingNotFound, "there is no ValidatingAdmissionPolicyBinding " + name
	}
	if problem := weakness(p, user); problem != "" {
		return ReasonNotEnforced, fmt.Sprintf("ValidatingAdmissionPolicy %s %s", name, problem)
	}
	if problem := looseness(b, name); problem != "" {
		return ReasonNotEnforced, fmt.Sprintf("ValidatingAdmissionPolicyBinding %s %s", name, problem)
	}
	return "", ""
}

// weakness is what makes a policy let some grants pass, or those of user not.
func weakness(p *admissionv1.ValidatingAdmissionPolicy, user string) string {
	spec := p.Spec
	switch {
	case spec.FailurePolicy != nil && *spec.FailurePolicy != admissionv1.Fail:
		return "has a failurePolicy that lets requests pass which it cannot judge"
	case len(spec.MatchConditions) > 0:
		return "has matchConditions, so it does not judge every request"
	case len(spec.Validations) == 0:
		return "has no validations"
	case spec.MatchConstraints == nil || narrow(spec.MatchConstraints) || !covers(spec.MatchConstraints.ResourceRules):
		return "does not match every creation and update of " + resource + "." + v1alpha1.GroupName
	case !names(spec, user):
		return "does not name " + user + " as the one who may write spec.grant"
	}
	return ""
}

// looseness is what makes a binding not refuse what its policy does.
func looseness(b *admissionv1.ValidatingAdmissionPolicyBinding, policy string) string {
	switch {
	case b.Spec.PolicyName != policy:
		return "binds another policy"
	case !slices.Contains(b.Spec.ValidationActions, admissionv1.Deny):
		return "does not have the action Deny"
	case b.Spec.ParamRef != nil:
		return "has parameters, which the policy does not take"
	case b.Spec.MatchResources != nil && (narrow(b.Spec.MatchResources) || len(b.Spec.MatchResources.ResourceRules) > 0 && !covers(b.Spec.MatchResources.ResourceRules)):
		return "does not bind it for every " + resource + "." + v1alpha1.GroupName
	}
	return ""
}

// narrow tells whether something besides the resource rules decides which requests match.
func narrow(m *admissionv1.MatchResources) bool {
	selects := func(s *metav1.LabelSelector) bool { return s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 }
	return selects(m.NamespaceSelector) || selects(m.ObjectSelector) || len(m.ExcludeResourceRules) > 0
}

// covers tells whether the rules match every creation and update of a lease.
func covers(rules []admissionv1.NamedRuleWithOperations) bool {
	has := func(operation admissionv1.OperationType) bool {
		return slices.ContainsFunc(rules, func(r admissionv1.NamedRuleWithOperations) bool {
			return len(r.ResourceNames) == 0 && (r.Scope == nil || *r.Scope != admissionv1.ClusterScope) &&
				hasOrAll(r.APIGroups, v1alpha1.GroupName) && hasOrAll(r.APIVersions, v1alpha1.SchemeGroupVersion.Version) &&
				hasOrAll(r.Resources, resource) && hasOrAll(r.Operations, operation)
		})
	}
	return has(admissionv1.Create) && has(admissionv1.Update)
}

func hasOrAll[T ~string](list []T, want T) bool {
	return slices.Contains(list, want) || slices.Contains(list, "*")
}

// names tells whether an expression of the policy has the user as a string.
func names(spec admissionv1.ValidatingAdmissionPolicySpec, user string) bool {
	quoted := func(expression string) bool {
		return strings.Contains(expression, "'"+user+"'") || strings.Contains(expression, `"`+user+`"`)
	}
	return slices.ContainsFunc(spec.Variables, func(v admissionv1.Variable) bool { return quoted(v.Expression) }) ||
		slices.ContainsFunc(spec.Validations, func(v admissionv1.Validation) bool { return quoted(v.Expression) })
}
