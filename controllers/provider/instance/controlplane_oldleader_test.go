package instance

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// A leader that was held up and goes on knows an old specification or an old Secret, while the provider already has what
// its successor made for the new one, or what is to stay. It must leave that alone.
func TestA9_AnOldLeaderLeavesWhatItsSuccessorMade(t *testing.T) {
	port := func(s *bed, px *v1alpha1.Proxy) {
		px.Spec.Port = 8888
		s.must(s.client.Update(t.Context(), px))
	}
	for name, test := range map[string]struct {
		with   func(*v1alpha1.Proxy)
		before func(*bed, *v1alpha1.Proxy)
		change func(*bed, *v1alpha1.Proxy)
		// stays tells that the change replaces nothing.
		stays bool
		// old is the kind of which the old leader knows the version before the change.
		old string
	}{
		"specification": {change: port, old: "Proxy"},
		"replace policy": {
			before: port, stays: true, old: "Proxy",
			change: func(s *bed, px *v1alpha1.Proxy) {
				px.Spec.ReplacePolicy = v1alpha1.ReplaceOnDelete
				s.must(s.client.Update(t.Context(), px))
			},
		},
		"back again": {
			before: port, stays: true, old: "Proxy",
			change: func(s *bed, px *v1alpha1.Proxy) {
				px.Spec.Port = 3128
				s.must(s.client.Update(t.Context(), px))
			},
		},
		"user data": {
			with: func(px *v1alpha1.Proxy) {
				px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "s", Key: v1alpha1.CredentialsUsername}}
			},
			change: rotateSecret, old: "Secret",
		},
		"credentials": {
			with:   func(px *v1alpha1.Proxy) { px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "s"} },
			change: rotateSecret, old: "Secret",
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t, fake.Behaviour{})
			s.must(s.client.Create(t.Context(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "s", Labels: map[string]string{v1alpha1.LabelCloudInit: "true", v1alpha1.LabelProxyCredentials: "true"}},
				Data:       map[string][]byte{v1alpha1.CredentialsUsername: []byte("old"), v1alpha1.CredentialsPassword: []byte("old")},
			}))
			if test.with == nil {
				test.with = func(*v1alpha1.Proxy) {}
			}
			px := s.running("px", test.with)
			first := px.Status.Instance.ID
			if test.before != nil {
				test.before(s, px)
			}
			known := map[string]client.Object{"Proxy": s.get(px), "Secret": s.secret()}
			test.change(s, px)
			if !test.stays {
				s.run(px, time.Hour, func() bool { return s.provisioned(px)() && s.get(px).Status.Instance.ID != first })
			}
			want := s.cloud.Instances()[0]

			old := s.newReconciler(interceptor.NewClient(s.client, interceptor.Funcs{
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
					if kindOf(obj) == test.old {
						copyInto(known[test.old], obj)
						return nil
					}
					return c.Get(ctx, key, obj, opts...)
				},
			}))
			for range 3 {
				result, err := old.Reconcile(t.Context(), requestFor(px))
				if err != nil || result.RequeueAfter == 0 {
					t.Errorf("the old leader: %+v, %v, want another look", result, err)
				}
				s.clock.Step(5 * time.Second)
			}
			if got := s.cloud.Instances(); len(got) != 1 || got[0].ID != want.ID || got[0].State != want.State {
				t.Errorf("the instances are %+v, want %+v", got, want)
			}
		})
	}
}

func (s *bed) secret() *corev1.Secret {
	s.t.Helper()
	secret := &corev1.Secret{}
	s.must(s.client.Get(s.t.Context(), client.ObjectKey{Namespace: s.namespace, Name: "s"}, secret))
	return secret
}

func rotateSecret(s *bed, _ *v1alpha1.Proxy) {
	secret := s.secret()
	secret.Data[v1alpha1.CredentialsUsername], secret.Data[v1alpha1.CredentialsPassword] = []byte("new"), []byte("new")
	s.must(s.client.Update(s.t.Context(), secret))
}
