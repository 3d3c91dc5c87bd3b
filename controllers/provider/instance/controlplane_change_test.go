package instance

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

func TestA7_OneSpuriousNotFoundChangesNothing(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px")
	s.cloud.Miss(1)
	s.run(px, time.Minute, nil)
	now := s.get(px)
	if !s.provisioned(px)() || len(now.Status.Instance.Addresses) != 1 || now.Status.Instance.ID != px.Status.Instance.ID {
		t.Errorf("got %+v", now.Status)
	}
	s.cloud.Remove(now.Status.Instance.Name)
	s.run(px, time.Hour, func() bool {
		i := s.get(px).Status.Instance
		return s.provisioned(px)() && i.ID != px.Status.Instance.ID
	})
	s.wantInstances(1)
}

func TestA18_AnotherSpecificationReplacesTheInstance(t *testing.T) {
	s := newBed(t, fake.Behaviour{Start: 5 * time.Second, Stop: 20 * time.Second})
	px := s.running("px")
	first := *px.Status.Instance
	px.Spec.Port = 8888
	s.must(s.client.Update(t.Context(), px))
	cleared := false
	s.run(px, time.Hour, func() bool {
		i := s.get(px).Status.Instance
		if i.State == string(providers.StateTerminating) {
			cleared = cleared || len(i.Addresses) == 0
			if len(i.Addresses) > 0 {
				t.Errorf("terminating with address %v", i.Addresses)
			}
		}
		if len(s.cloud.Instances()) > 1 {
			t.Fatal("two instances at once")
		}
		return s.provisioned(px)() && i.ID != first.ID
	})
	if !cleared {
		t.Error("the address was never cleared")
	}
	if now := s.get(px).Status.Instance; now.Name != first.Name || now.Hash == first.Hash {
		t.Errorf("got %+v after %+v", now, first)
	}
	if request, _ := s.cloud.Request(first.Name); request.Spec.Port != 8888 {
		t.Errorf("made with port %d", request.Spec.Port)
	}
}

func TestA18_OnDeleteOnlyReports(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px", func(px *v1alpha1.Proxy) { px.Spec.ReplacePolicy = v1alpha1.ReplaceOnDelete })
	px.Spec.Port = 8888
	s.must(s.client.Update(t.Context(), px))
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonSpecChanged {
		t.Errorf("UpToDate is %+v", c)
	}
	if now := s.get(px).Status.Instance; now.ID != px.Status.Instance.ID || !s.provisioned(px)() {
		t.Errorf("got %+v", now)
	}
	if n := s.cloud.Count(fake.MethodDelete); n != 0 {
		t.Errorf("%d Deletes", n)
	}
}

func TestA19_CloudInitFromASecret(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: "user-data"},
		StringData: map[string]string{"data": "#cloud-config 1"},
	}
	px := s.proxy("px", func(px *v1alpha1.Proxy) {
		px.Spec.CloudInit = &v1alpha1.CloudInit{SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "user-data", Key: "data"}}
	})
	label := func(value map[string]string) {
		t.Helper()
		s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret))
		secret.Labels = value
		s.must(s.client.Update(t.Context(), secret))
	}
	labelled := map[string]string{v1alpha1.LabelCloudInit: "true"}

	// There is no Secret: no call, no finalizer.
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionCloudInitReady); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonCloudInitError {
		t.Errorf("CloudInitReady is %+v", c)
	}
	if c := s.condition(px, v1alpha1.ConditionProvisioned); c.Reason != v1alpha1.ReasonCloudInitError {
		t.Errorf("Provisioned is %+v", c)
	}
	if len(s.cloud.Calls()) != 0 || len(s.get(px).Finalizers) != 0 {
		t.Error("calls or finalizers before the user data is there")
	}

	// It appears.
	s.must(s.client.Create(t.Context(), secret))
	label(labelled)
	s.run(px, time.Hour, s.provisioned(px))
	first := s.get(px).Status.Instance
	if request, _ := s.cloud.Request(first.Name); string(request.UserData) != "#cloud-config 1" {
		t.Errorf("made with %q", request.UserData)
	}

	// It loses its label, then its key, then it is gone: nothing is deleted.
	untouched := func(what string) {
		t.Helper()
		s.run(px, 20*time.Minute, nil)
		if now := s.get(px).Status.Instance; now.ID != first.ID || len(now.Addresses) == 0 || !s.provisioned(px)() {
			t.Errorf("%s: got %+v", what, now)
		}
		if c := s.condition(px, v1alpha1.ConditionCloudInitReady); c.Reason != v1alpha1.ReasonCloudInitError {
			t.Errorf("%s: CloudInitReady is %+v", what, c)
		}
		if n := s.cloud.Count(fake.MethodDelete); n != 0 {
			t.Errorf("%s: %d Deletes", what, n)
		}
	}
	label(nil)
	untouched("without label")
	label(labelled)
	secret.Data = map[string][]byte{"other": nil}
	s.must(s.client.Update(t.Context(), secret))
	untouched("without key")
	s.must(s.client.Delete(t.Context(), secret))
	untouched("without Secret")

	// It comes back with other content, which replaces.
	secret.ResourceVersion, secret.UID, secret.Data = "", "", map[string][]byte{"data": []byte("#cloud-config 2")}
	secret.Labels = labelled
	s.must(s.client.Create(t.Context(), secret))
	s.run(px, time.Hour, func() bool { return s.provisioned(px)() && s.get(px).Status.Instance.ID != first.ID })
	if c := s.condition(px, v1alpha1.ConditionCloudInitReady); c.Status != metav1.ConditionTrue {
		t.Errorf("CloudInitReady is %+v", c)
	}
}

func TestA31_InvalidSpecNamesTheFieldAndRecovers(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.proxy("px", func(px *v1alpha1.Proxy) { px.Spec.Placement = &v1alpha1.Placement{Image: fake.InvalidImage} })
	s.run(px, 20*time.Minute, nil)
	c := s.condition(px, v1alpha1.ConditionProvisioned)
	if c.Reason != v1alpha1.ReasonInvalidSpec || c.Message == "" || c.Message[:len("spec.placement.image")] != "spec.placement.image" {
		t.Errorf("Provisioned is %+v", c)
	}
	now := s.get(px)
	if len(now.Finalizers) != 0 || len(s.cloud.Calls()) != 0 {
		t.Errorf("finalizers %v, calls %v", now.Finalizers, s.cloud.Calls())
	}
	now.Spec.Placement.Image = "debian"
	s.must(s.client.Update(t.Context(), now))
	s.run(px, time.Hour, s.provisioned(px))

	// Another invalid one leaves what runs alone.
	id := s.get(px).Status.Instance.ID
	now = s.get(px)
	now.Spec.Placement.Image = fake.InvalidImage
	s.must(s.client.Update(t.Context(), now))
	s.run(px, 20*time.Minute, nil)
	if c := s.condition(px, v1alpha1.ConditionUpToDate); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInvalidSpec {
		t.Errorf("UpToDate is %+v", c)
	}
	if now := s.get(px).Status.Instance; now.ID != id || !s.provisioned(px)() {
		t.Errorf("got %+v", now)
	}
}

// TestCredentialsAreWhatAnInstanceIsMadeFrom: another password replaces the instance, and a refused one is tried again as
// soon as the Secret is mended.
func TestCredentialsAreWhatAnInstanceIsMadeFrom(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: "login", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"},
	}}
	secret.StringData = map[string]string{"username": "u", "password": "first"}
	s.must(s.client.Create(t.Context(), secret))
	s.cloud.Fail(fake.MethodCreate, providers.InvalidField("spec.credentialsSecretRef", "the password is refused"))
	px := s.proxy("px", func(px *v1alpha1.Proxy) { px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "login"} })
	s.run(px, 20*time.Minute, func() bool {
		return s.condition(px, v1alpha1.ConditionProvisioned).Reason == v1alpha1.ReasonInvalidSpec
	})

	change := func(password string) {
		secret.StringData = map[string]string{"password": password}
		s.must(s.client.Update(t.Context(), secret))
	}
	password := func() string {
		request, ok := s.cloud.Request(providers.InstanceName("cluster", px.Name, px.UID))
		if !ok || request.Credentials == nil {
			return ""
		}
		return request.Credentials.Password
	}
	change("second")
	s.run(px, 20*time.Minute, s.provisioned(px))
	if got := password(); got != "second" {
		t.Errorf("made with %q after the Secret was mended, want the new password", got)
	}
	change("third")
	s.run(px, 20*time.Minute, func() bool { return password() == "third" && s.provisioned(px)() })
	s.wantInstances(1)
}

// TestPortStaysUntilTheReplacement: while a changed port waits for its turn, the endpoint is that of the instance that runs.
func TestPortStaysUntilTheReplacement(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	px := s.running("px", onDeletePolicy)
	now := s.get(px)
	now.Spec.Port = 8080
	s.must(s.client.Update(t.Context(), now))
	s.run(px, time.Hour, nil)
	if got := s.get(px).EndpointPort(); got != 3128 {
		t.Errorf("the endpoint is at port %d although the instance still listens on 3128", got)
	}
	now = s.get(px)
	now.Spec.ReplacePolicy = v1alpha1.ReplaceAutomatic
	s.must(s.client.Update(t.Context(), now))
	s.run(px, time.Hour, func() bool { return s.provisioned(px)() && s.get(px).EndpointPort() == 8080 })
	s.wantInstances(1)
}

func onDeletePolicy(px *v1alpha1.Proxy) { px.Spec.ReplacePolicy = v1alpha1.ReplaceOnDelete }
