package proxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// externalIDLength is how much of the digest of an External proxy's endpoint makes its instance id, in bytes.
const externalIDLength = 8

// externalInstance is the instance of an External proxy. Its id is made from host and port: another endpoint is another
// instance, whose health and cooldowns start anew.
func externalInstance(px *v1alpha1.Proxy) *v1alpha1.Instance {
	if px.Spec.External == nil {
		return nil
	}
	host := px.Spec.External.Host
	sum := sha256.Sum256([]byte(probe.JoinAddress(host, px.Spec.Port)))
	return &v1alpha1.Instance{
		Port: px.Spec.Port,
		ID:   "external-" + hex.EncodeToString(sum[:externalIDLength]), State: "Running", Addresses: []string{host},
	}
}

// instanceOf is the instance that counts for px now.
func instanceOf(px *v1alpha1.Proxy) *v1alpha1.Instance {
	if px.Spec.Mode == v1alpha1.ModeExternal {
		return externalInstance(px)
	}
	return px.Status.Instance
}

// endpointHost is the host of the instance's endpoint; "" as long as there is none that could be probed.
func endpointHost(instance *v1alpha1.Instance) string {
	if instance == nil || instance.ID == "" || len(instance.Addresses) == 0 {
		return ""
	}
	return instance.Addresses[0]
}

// target is what the health engine is to watch, or the problem that keeps it from doing so. Both are nil when there is
// nothing to probe yet. Errors are those of reading.
func (r *Reconciler) target(ctx context.Context, px *v1alpha1.Proxy, class *v1alpha1.ProviderClass) (*health.Target, *Problem, error) {
	var classCheck *v1alpha1.HealthCheck
	if class != nil {
		classCheck = class.Spec.HealthCheck
	}
	check, err := health.ResolveSettings(px.Spec.HealthCheck, classCheck, r.HealthDefaults)
	if err != nil {
		return nil, &Problem{Reason: v1alpha1.ReasonInvalidCheck, Message: err.Error()}, nil
	}
	if check.Disabled {
		return nil, &Problem{Reason: v1alpha1.ReasonCheckDisabled, Message: "Health checks are disabled; the proxy is never leased."}, nil
	}
	credentials, problem, err := r.credentials(ctx, px)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	instance := instanceOf(px)
	host := endpointHost(instance)
	if host == "" {
		return nil, nil, nil
	}
	return &health.Target{
		Key: client.ObjectKeyFromObject(px), UID: px.UID,
		InstanceID: instance.ID, Address: probe.JoinAddress(host, cmp.Or(instance.Port, px.Spec.Port)),
		Managed: px.Spec.Mode != v1alpha1.ModeExternal, Credentials: credentials, RequireAuth: credentials != nil,
		Check: check, Initial: recorded(px),
	}, nil, nil
}

// recorded is the verdict that stands in the status, from which a restarted engine goes on.
func recorded(px *v1alpha1.Proxy) *health.Verdict {
	if px.Status.Health == nil {
		return nil
	}
	v := &health.Verdict{InstanceID: px.Status.Health.InstanceID, EgressIP: px.Status.Health.EgressIP}
	if healthy := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionHealthy); healthy != nil {
		v.Known, v.Healthy = healthy.Status != metav1.ConditionUnknown, healthy.Status == metav1.ConditionTrue
		v.Reason, v.Message = healthy.Reason, healthy.Message
	}
	if at := px.Status.Health.LastHealthCheckTime; at != nil {
		v.LastTransition = at.Time
	}
	if access := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionAccessRestricted); access != nil {
		v.AccessReason = access.Reason
		if access.Status != metav1.ConditionUnknown {
			restricted := access.Status == metav1.ConditionTrue
			v.AccessRestricted = &restricted
		}
	}
	return v
}

// credentials that the probe must send; nil when the proxy asks for none.
func (r *Reconciler) credentials(ctx context.Context, px *v1alpha1.Proxy) (*health.Credentials, *Problem, error) {
	ref := px.Spec.CredentialsSecretRef
	if ref == nil {
		return nil, nil, nil
	}
	secret := &corev1.Secret{}
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: px.Namespace, Name: ref.Name}, secret)
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, nil, fmt.Errorf("get credentials Secret of proxy %s/%s: %w", px.Namespace, px.Name, err)
	}
	if err != nil || secret.Labels[v1alpha1.LabelProxyCredentials] != "true" {
		return nil, &Problem{Reason: v1alpha1.ReasonCredentialsNotFound, Message: fmt.Sprintf(
			"spec.credentialsSecretRef: Secret %s does not exist or lacks the label %s=true.", ref.Name, v1alpha1.LabelProxyCredentials)}, nil
	}
	credentials, err := parseCredentials(secret)
	if err != nil {
		return nil, &Problem{Reason: v1alpha1.ReasonCredentialsInvalid, Message: fmt.Sprintf(
			"spec.credentialsSecretRef: Secret %s: %v.", ref.Name, err)}, nil
	}
	return credentials, nil, nil
}

func parseCredentials(secret *corev1.Secret) (*health.Credentials, error) {
	username, password, err := v1alpha1.ParseCredentials(secret.Data)
	if err != nil {
		return nil, err
	}
	return health.NewCredentials(username, password)
}

// drainHeld tells whether core holds the deletion of px while leases run out.
func drainHeld(px *v1alpha1.Proxy) bool {
	return slices.Contains(px.Finalizers, v1alpha1.FinalizerLeaseDrain)
}
