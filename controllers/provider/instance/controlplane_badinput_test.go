package instance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// thirdParty is a provider type that the schema knows nothing of.
const thirdParty = v1alpha1.ProviderType("clouds.example/fake")

// secretLimit is how much user data the provider takes in these tests, in bytes.
const secretLimit = 64

// badInput is something that a user got wrong.
type badInput struct {
	behaviour fake.Behaviour
	// before happens before the Proxy is stored, which change makes wrong.
	before func(*together)
	change func(*together, *v1alpha1.Proxy)
	// condition must be false, with a reason, and mention what is wrong.
	condition, reason string
	mentions          []string
	phase             v1alpha1.ProxyPhase
	// creates is how often the provider may be asked to create.
	creates int
	// mend puts it right.
	mend func(*together, *v1alpha1.Proxy)
	// within is how soon that must be noticed; 0 means at once, by an event.
	within time.Duration
}

func userDataOf(secret, key string) *v1alpha1.CloudInit {
	return &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: secret, Key: key}}
}

// secret stores a labelled Secret with user data, or changes it.
func (s *together) secret(name, key, data string, labelled bool) {
	s.bed.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	err := s.client.Get(s.bed.t.Context(), client.ObjectKeyFromObject(secret), secret)
	s.must(client.IgnoreNotFound(err))
	secret.Labels, secret.Data = nil, map[string][]byte{key: []byte(data)}
	if labelled {
		secret.Labels = map[string]string{v1alpha1.LabelCloudInit: "true"}
	}
	if err == nil {
		s.must(s.client.Update(s.bed.t.Context(), secret))
		return
	}
	s.must(s.client.Create(s.bed.t.Context(), secret))
}

func badInputs() map[string]badInput {
	fromSecret := func(_ *together, px *v1alpha1.Proxy) { px.Spec.CloudInit = userDataOf("user-data", "data") }
	sound := func(s *together, _ *v1alpha1.Proxy) { s.secret("user-data", "data", "#cloud-config", true) }
	return map[string]badInput{
		"unknown class": {
			change:    func(s *together, px *v1alpha1.Proxy) { px.Spec.Provider = s.class.Name + "-2" },
			condition: v1alpha1.ConditionAccepted, reason: v1alpha1.ReasonClassNotFound, mentions: []string{"spec.provider", "-2"},
			phase: v1alpha1.PhasePending,
			mend: func(s *together, px *v1alpha1.Proxy) {
				class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: px.Spec.Provider}, Spec: s.class.Spec}
				s.must(s.client.Create(s.bed.t.Context(), class))
			},
		},
		"class without what its type needs": {
			before: func(s *together) {
				s.cloud.Reject(field.ErrorList{field.Required(field.NewPath("spec", "parametersRef"), "names the account")})
			},
			condition: v1alpha1.ConditionAccepted, reason: v1alpha1.ReasonClassNotAccepted, mentions: []string{"spec.parametersRef", "names the account"},
			phase: v1alpha1.PhasePending,
			mend: func(s *together, _ *v1alpha1.Proxy) {
				s.cloud.Reject(nil)
				s.changeClass(func(class *v1alpha1.ProviderClass) {
					class.Spec.ParametersRef = &v1alpha1.TypedRef{Group: "clouds.example", Kind: "Account", Name: "main"}
				})
			},
		},
		"namespace that the class does not admit": {
			before: func(s *together) {
				s.changeClass(func(class *v1alpha1.ProviderClass) {
					class.Spec.AllowedNamespaces = v1alpha1.NamespaceAccess{
						From: v1alpha1.NamespacesFromSelector, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}},
					}
				})
			},
			condition: v1alpha1.ConditionAccepted, reason: v1alpha1.ReasonNamespaceNotAllowed, mentions: []string{"spec.allowedNamespaces.selector"},
			phase: v1alpha1.PhasePending,
			mend: func(s *together, _ *v1alpha1.Proxy) {
				s.changeClass(func(class *v1alpha1.ProviderClass) {
					class.Spec.AllowedNamespaces = v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll}
				})
			},
		},
		"user data where the class denies it": {
			before: func(s *together) {
				s.changeClass(func(class *v1alpha1.ProviderClass) { class.Spec.UserCloudInit = v1alpha1.UserCloudInitDenied })
			},
			change:    func(_ *together, px *v1alpha1.Proxy) { px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: "x"} },
			condition: v1alpha1.ConditionAccepted, reason: v1alpha1.ReasonCloudInitDenied, mentions: []string{"spec.cloudInit"},
			phase: v1alpha1.PhaseFailed,
			mend: func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.CloudInit = nil })
			},
		},
		"missing zone": {
			behaviour: fake.Behaviour{NeedsZone: true},
			condition: v1alpha1.ConditionProvisioned, reason: v1alpha1.ReasonInvalidSpec, mentions: []string{"spec.placement.zone"},
			phase: v1alpha1.PhaseFailed,
			mend: func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Zone: "a"} })
			},
		},
		"zone that does not exist": {
			behaviour: fake.Behaviour{Zones: []string{"a", "b"}},
			change:    func(_ *together, px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Zone: "c"} },
			condition: v1alpha1.ConditionProvisioned, reason: v1alpha1.ReasonInvalidSpec, mentions: []string{"spec.placement.zone", `"c"`},
			phase: v1alpha1.PhaseFailed,
			mend: func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.Placement.Zone = "b" })
			},
		},
		"too much user data": {
			behaviour: fake.Behaviour{MaxUserData: secretLimit},
			change: func(_ *together, px *v1alpha1.Proxy) {
				px.Spec.CloudInit = &v1alpha1.CloudInit{Inline: strings.Repeat("x", secretLimit+1)}
			},
			condition: v1alpha1.ConditionProvisioned, reason: v1alpha1.ReasonInvalidSpec, mentions: []string{"spec.cloudInit", fmt.Sprint(secretLimit)},
			phase: v1alpha1.PhaseFailed,
			mend: func(s *together, px *v1alpha1.Proxy) {
				s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.CloudInit.Inline = "x" })
			},
		},
		"too much user data in the Secret": {
			behaviour: fake.Behaviour{MaxUserData: secretLimit},
			before:    func(s *together) { s.secret("user-data", "data", strings.Repeat("x", secretLimit+1), true) },
			change:    fromSecret,
			condition: v1alpha1.ConditionProvisioned, reason: v1alpha1.ReasonInvalidSpec, mentions: []string{"spec.cloudInit", fmt.Sprint(secretLimit)},
			phase: v1alpha1.PhaseFailed,
			mend:  sound,
		},
		"no Secret": {
			change:    fromSecret,
			condition: v1alpha1.ConditionCloudInitReady, reason: v1alpha1.ReasonCloudInitError, mentions: []string{"spec.cloudInit.secretKeyRef", "user-data", v1alpha1.LabelCloudInit + "=true"},
			phase: v1alpha1.PhaseProvisioning,
			mend:  sound,
		},
		"Secret without label": {
			before:    func(s *together) { s.secret("user-data", "data", "#cloud-config", false) },
			change:    fromSecret,
			condition: v1alpha1.ConditionCloudInitReady, reason: v1alpha1.ReasonCloudInitError, mentions: []string{"spec.cloudInit.secretKeyRef", "user-data", v1alpha1.LabelCloudInit + "=true"},
			phase: v1alpha1.PhaseProvisioning,
			mend:  sound,
		},
		"Secret without the key": {
			before:    func(s *together) { s.secret("user-data", "other", "#cloud-config", true) },
			change:    fromSecret,
			condition: v1alpha1.ConditionCloudInitReady, reason: v1alpha1.ReasonCloudInitError, mentions: []string{"spec.cloudInit.secretKeyRef.key", "user-data", "data"},
			phase: v1alpha1.PhaseProvisioning,
			mend:  sound,
		},
		"no credentials": {
			change: func(_ *together, px *v1alpha1.Proxy) {
				px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "login"}
			},
			condition: v1alpha1.ConditionProvisioned, reason: v1alpha1.ReasonCredentialsNotFound, mentions: []string{"spec.credentialsSecretRef", "login", v1alpha1.LabelProxyCredentials + "=true"},
			phase: v1alpha1.PhaseProvisioning,
			mend: func(s *together, _ *v1alpha1.Proxy) {
				s.must(s.client.Create(s.bed.t.Context(), &corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
					StringData: map[string]string{"username": "u", "password": "p"},
				}))
			},
		},
		"name held by another owner": {
			change: func(s *together, px *v1alpha1.Proxy) {
				s.cloud.Hook(fake.MethodCreate, func(call fake.Call) {
					s.cloud.Hook(fake.MethodCreate, nil)
					s.cloud.Plant(s.class.Name, providers.Instance{
						Ref: providers.Ref{Name: call.Name}, Owner: providers.Owner{ClusterID: "cluster", UID: "another"}, State: providers.StateRunning,
					})
				})
			},
			condition: v1alpha1.ConditionProvisioned, reason: v1alpha1.ReasonNameCollision, mentions: []string{"another owner"},
			phase: v1alpha1.PhaseFailed, creates: 1,
			mend: func(s *together, px *v1alpha1.Proxy) {
				s.cloud.Remove(providers.InstanceName("cluster", px.Name, px.UID))
			},
			within: time.Hour,
		},
		"credentials of the class that are refused": {
			before: func(s *together) { s.cloud.Down(providers.NewError(providers.Auth, "", "", nil)) },
			// The provider is not known to have said anything about this Proxy.
			condition: v1alpha1.ConditionReady, reason: v1alpha1.ReasonNotProvisioned, mentions: []string{v1alpha1.ReasonAuthFailed, "credentials"},
			phase: v1alpha1.PhaseProvisioning,
			mend:  func(s *together, _ *v1alpha1.Proxy) { s.cloud.Down(nil) },
			// The next check of the class wakes them.
			within: 5 * time.Minute,
		},
	}
}

// TestBadInput: a condition says what is wrong and where, the phase is Failed only where waiting cannot help, nothing is
// tried over and over, and once it is put right the Proxy recovers by itself.
func TestBadInput(t *testing.T) {
	for name, c := range badInputs() {
		t.Run(name, func(t *testing.T) {
			s := newTogether(t, thirdParty, c.behaviour)
			if c.before != nil {
				c.before(s)
			}
			px := s.asked("px", func(px *v1alpha1.Proxy) {
				if c.change != nil {
					c.change(s, px)
				}
			})
			s.queue.run("the condition", 10*time.Minute, s.says(px, c.condition, c.reason))
			s.queue.run("", 30*time.Minute, nil)

			now := s.get(px)
			condition := meta.FindStatusCondition(now.Status.Conditions, c.condition)
			if condition == nil || condition.Status != metav1.ConditionFalse || condition.Reason != c.reason {
				t.Fatalf("%s is %+v", c.condition, condition)
			}
			for _, text := range c.mentions {
				if !strings.Contains(condition.Message, text) {
					t.Errorf("the message does not mention %q: %s", text, condition.Message)
				}
			}
			if now.Status.Phase != c.phase {
				t.Errorf("phase %s, want %s", now.Status.Phase, c.phase)
			}
			// Ready, which is what people look at, says why too.
			if ready := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady); ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, c.mentions[0]) {
				t.Errorf("Ready is %+v, and %s has %q", ready, c.condition, condition.Message)
			}
			if n := s.cloud.Count(fake.MethodCreate); n != c.creates {
				t.Errorf("%d Creates, want %d", n, c.creates)
			}
			if c.creates == 0 && c.reason != v1alpha1.ReasonNotProvisioned && len(now.Finalizers) != 0 {
				t.Errorf("finalizers %v, and nothing was ever tried", now.Finalizers)
			}

			// An hour later.
			reconciles := s.reconciles[inProvider] + s.reconciles[inCore]
			s.queue.run("", time.Hour, nil)
			if after := s.get(px); after.ResourceVersion != now.ResourceVersion {
				t.Errorf("written although nothing changed: %+v, then %+v", now.Status, after.Status)
			}
			if n := s.reconciles[inProvider] + s.reconciles[inCore] - reconciles; n > 70 {
				t.Errorf("%d reconciles in an hour", n)
			}

			c.mend(s, px)
			within := c.within
			if within == 0 {
				// Less than any poll: only an event explains it.
				within = time.Minute
			}
			s.queue.run("recovery", within, s.works(px))
			s.wantInstances(1)
		})
	}
}
