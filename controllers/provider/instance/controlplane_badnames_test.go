package instance

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// TestBadInput_RefusedByTheSchema: the answer names the field, and says what is right.
func TestBadInput_RefusedByTheSchema(t *testing.T) {
	s := newBed(t, fake.Behaviour{})
	named := func(name string) *v1alpha1.Proxy {
		px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
		px.Spec.Provider = s.class.Name
		return px
	}
	provider := func(name string) *v1alpha1.Proxy {
		px := named("px")
		px.Spec.Provider = name
		return px
	}
	class := func(name string) *v1alpha1.ProviderClass {
		return &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s.class.Spec}
	}
	for name, c := range map[string]struct {
		obj      client.Object
		mentions []string
	}{
		"Proxy, 64 characters":       {named(strings.Repeat("a", 64)), []string{"metadata.name", "at most 63 characters"}},
		"Proxy, 253 characters":      {named(strings.Repeat("a", 253)), []string{"metadata.name", "at most 63 characters"}},
		"Proxy, 254 characters":      {named(strings.Repeat("a", 254)), []string{"metadata.name", "no more than 253"}},
		"Proxy, upper case":          {named("Proxy"), []string{"metadata.name", "RFC 1123", "lower case"}},
		"Proxy, underscore":          {named("a_b"), []string{"metadata.name", "RFC 1123"}},
		"Proxy, dot at the end":      {named("a."), []string{"metadata.name", "RFC 1123"}},
		"Proxy, slash":               {named("a/b"), []string{"metadata.name"}},
		"class, 253 characters":      {class(strings.Repeat("a", 253)), []string{"metadata.name", "at most 63 characters"}},
		"class, upper case":          {class("Class"), []string{"metadata.name", "RFC 1123"}},
		"provider, 64 characters":    {provider(strings.Repeat("a", 64)), []string{"spec.provider", "63"}},
		"provider, upper case":       {provider("Class"), []string{"spec.provider", "name of a ProviderClass"}},
		"provider, of another kind":  {provider("ns/class"), []string{"spec.provider", "name of a ProviderClass"}},
		"class with two blocks":      {twoBlocks(), []string{"spec.kvm", "forbidden otherwise"}},
		"class with a foreign block": {foreignBlock(), []string{"spec.gcp", "forbidden otherwise"}},
		"class without its block":    {withoutBlock(), []string{"spec.gcp", "required when type is gcp"}},
		"third party with a block":   {thirdPartyBlock(), []string{"spec.gcp", "forbidden otherwise"}},
		"known type, parametersRef":  {knownWithParameters(), []string{"spec.parametersRef", "domain-prefixed"}},
		"type without a domain":      {typed("fake"), []string{"spec.type", "domain-prefixed"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := s.client.Create(t.Context(), c.obj)
			if err == nil {
				s.must(s.client.Delete(t.Context(), c.obj))
				t.Fatal("accepted")
			}
			for _, text := range c.mentions {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("the message does not mention %q: %v", text, err)
				}
			}
		})
	}
}

func typed(kind v1alpha1.ProviderType) *v1alpha1.ProviderClass {
	return &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: v1alpha1.ProviderClassSpec{
		Type: kind, AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
	}}
}

func withoutBlock() *v1alpha1.ProviderClass { return typed(v1alpha1.ProviderGCP) }

func foreignBlock() *v1alpha1.ProviderClass {
	class := typed(v1alpha1.ProviderKubernetes)
	class.Spec.GCP = &v1alpha1.GCPClass{Project: "my-project"}
	return class
}

func thirdPartyBlock() *v1alpha1.ProviderClass {
	class := typed(thirdParty)
	class.Spec.GCP = &v1alpha1.GCPClass{Project: "my-project"}
	return class
}

func knownWithParameters() *v1alpha1.ProviderClass {
	class := typed(v1alpha1.ProviderKubernetes)
	class.Spec.ParametersRef = &v1alpha1.TypedRef{Group: "clouds.example", Kind: "Account", Name: "main"}
	return class
}

func twoBlocks() *v1alpha1.ProviderClass {
	class := typed(v1alpha1.ProviderGCP)
	class.Spec.GCP = &v1alpha1.GCPClass{Project: "my-project"}
	class.Spec.KVM = &v1alpha1.LibvirtClass{
		SSHKeyFile: "/etc/proxy-operator/kvm/id", InsecureIgnoreHostKey: new(true),
		Hosts:        []v1alpha1.LibvirtHost{{Name: "a", Address: "a.example", User: "u"}},
		MachineTypes: []v1alpha1.LibvirtMachineType{{Name: "s", CPUs: 1, Memory: resource.MustParse("1Gi")}},
	}
	return class
}

// TestBadInput_AbsurdNames: whatever the API server lets through lives a whole life, under an instance name of its own that
// every provider takes.
func TestBadInput_AbsurdNames(t *testing.T) {
	legal := regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	s := newTogether(t, v1alpha1.ProviderKubernetes, fake.Behaviour{Start: 5 * time.Second, Stop: 5 * time.Second})
	names := []string{
		strings.Repeat("a", 63), strings.Repeat("a", 62) + "b", strings.Repeat("0", 63), "0", "1.2.3.4", "a.b", "a-b", "a--b",
		strings.Repeat("a.", 31) + "a", strings.Repeat("a-", 31) + "a", "xn--bcher-kva.example", "default", "null", "true",
	}
	all := map[string]*v1alpha1.Proxy{}
	for _, name := range names {
		all[name] = s.asked(name, nil)
	}
	ready := func(px *v1alpha1.Proxy) bool { return px.Status.Phase == v1alpha1.PhaseReady }
	s.queue.run("all work", time.Hour, func() bool { return s.every(ready) })
	s.wantInstances(len(names))
	for name, px := range all {
		if i := s.get(px).Status.Instance; !legal.MatchString(i.Name) {
			t.Errorf("%s has the instance name %s", name, i.Name)
		}
		s.changes(px, func(px *v1alpha1.Proxy) { px.Spec.Port = 8080 })
	}
	s.queue.run("all are replaced", 6*time.Hour, func() bool {
		return s.every(func(px *v1alpha1.Proxy) bool { return ready(px) && px.EndpointPort() == 8080 })
	})
	for _, px := range all {
		s.must(s.client.Delete(t.Context(), px))
	}
	s.queue.run("all are gone", time.Hour, func() bool { return len(s.known()) == 0 })
	s.wantInstances(0)
}
