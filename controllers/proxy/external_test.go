package proxy

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// TestExternalWithCredentials: the Secret may be missing, unlabelled or incomplete; the Proxy says so by naming the field,
// is not probed and not ready, is never Failed, and recovers by an event. It has no finalizer all along.
func TestExternalWithCredentials(t *testing.T) {
	env := testenv.New(t)
	engine := newScriptedHealth()
	startCore(t, env, Options{Health: engine})
	namespace := env.Namespace(t)
	px := newProxy(t, env, namespace, "", func(px *v1alpha1.Proxy) {
		px.Spec.Mode, px.Spec.External = v1alpha1.ModeExternal, &v1alpha1.External{Host: "203.0.113.5"}
		px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "login"}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	labelled := map[string]string{v1alpha1.LabelProxyCredentials: "true"}
	secret := func(labels map[string]string, data map[string]string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "login", Labels: labels}, StringData: data}
	}
	both := map[string]string{"username": "me", "password": "hunter2"}
	is := func(reason, mentions string) {
		t.Helper()
		now := waitReason(t, env, px, v1alpha1.ConditionHealthy, reason)
		healthy := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionHealthy)
		ready := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady)
		for _, message := range []string{healthy.Message, ready.Message} {
			if !contains(message, "spec.credentialsSecretRef") || !contains(message, mentions) {
				t.Errorf("the message does not name the field or %s: %s", mentions, message)
			}
		}
		if healthy.Status == metav1.ConditionTrue || ready.Status == metav1.ConditionTrue || now.Status.Phase != v1alpha1.PhasePending || len(now.Finalizers) != 0 {
			t.Errorf("phase %s, finalizers %v, Ready %+v", now.Status.Phase, now.Finalizers, ready)
		}
		if _, ok := engine.target(px.UID); ok {
			t.Error("it is probed without credentials")
		}
	}
	works := func() {
		t.Helper()
		waitFor(t, "it to be probed", func() bool {
			target, ok := engine.target(px.UID)
			return ok && target.Credentials != nil && target.RequireAuth
		})
		engine.judge(px, good)
		now := waitReason(t, env, px, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
		if now.Status.Phase != v1alpha1.PhaseReady || len(now.Finalizers) != 0 {
			t.Errorf("phase %s, finalizers %v", now.Status.Phase, now.Finalizers)
		}
	}

	is(v1alpha1.ReasonCredentialsNotFound, v1alpha1.LabelProxyCredentials+"=true")
	must(env.Client.Create(t.Context(), secret(nil, both)))
	// Nobody sees it. A Proxy that comes later is handled later.
	marker := newProxy(t, env, namespace, "none", func(px *v1alpha1.Proxy) { px.Name = "marker" })
	waitReason(t, env, marker, v1alpha1.ConditionAccepted, v1alpha1.ReasonClassNotFound)
	is(v1alpha1.ReasonCredentialsNotFound, v1alpha1.LabelProxyCredentials+"=true")
	must(env.Client.Delete(t.Context(), secret(nil, nil)))
	must(env.Client.Create(t.Context(), secret(labelled, map[string]string{"username": "me"})))
	is(v1alpha1.ReasonCredentialsInvalid, "password")
	must(env.Client.Update(t.Context(), secret(labelled, both)))
	works()

	// While it works, the label goes, and the Secret.
	must(env.Client.Update(t.Context(), secret(nil, both)))
	is(v1alpha1.ReasonCredentialsNotFound, v1alpha1.LabelProxyCredentials+"=true")
	must(env.Client.Update(t.Context(), secret(labelled, both)))
	works()
	must(env.Client.Delete(t.Context(), secret(nil, nil)))
	is(v1alpha1.ReasonCredentialsNotFound, "login")

	// It goes at once, by nobody's leave.
	must(env.Client.Delete(t.Context(), px.DeepCopy()))
	if exists(t, env, px) {
		t.Error("it is still there")
	}
}
