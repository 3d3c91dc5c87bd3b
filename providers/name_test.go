package providers_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

func TestInstanceName_IsAnRFC1035LabelOfTheUID(t *testing.T) {
	for _, name := range []string{"a", "demo-1", "1.2.3", strings.Repeat("x", 63), "a.b", strings.Repeat("-", 40), "", "Ünïcode"} {
		for _, uid := range []types.UID{"u1", "u2"} {
			got := providers.InstanceName("cluster", name, uid)
			if problems := validation.IsDNS1035Label(got); len(problems) > 0 {
				t.Errorf("%q: %v", got, problems)
			}
		}
		if providers.InstanceName("cluster", name, "u1") == providers.InstanceName("cluster", name, "u2") {
			t.Errorf("%q: two UIDs give one name", name)
		}
	}
	if providers.InstanceName("a", "px", "u") == providers.InstanceName("b", "px", "u") {
		t.Error("two clusters give one name")
	}
}

func TestInstanceHash(t *testing.T) {
	spec := func(change ...func(*v1alpha1.ProxySpec)) *v1alpha1.ProxySpec {
		s := &v1alpha1.ProxySpec{}
		s.Port = 3128
		for _, f := range change {
			f(s)
		}
		return s
	}
	base := providers.InstanceHash("u", spec(), nil, "")
	for name, other := range map[string]string{
		"port":      providers.InstanceHash("u", spec(func(s *v1alpha1.ProxySpec) { s.Port = 3129 }), nil, ""),
		"placement": providers.InstanceHash("u", spec(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Zone: "a"} }), nil, ""),
		"user data": providers.InstanceHash("u", spec(), []byte("x"), ""),
		"password":  providers.InstanceHash("u", spec(), nil, "uid/1"),
		"UID":       providers.InstanceHash("v", spec(), nil, ""),
	} {
		if !providers.HashDiffers(base, other) {
			t.Errorf("%s does not change the hash", name)
		}
	}
	if providers.HashDiffers(base, providers.InstanceHash("u", spec(func(s *v1alpha1.ProxySpec) { s.EgressGroup = "g" }), nil, "")) {
		t.Error("the egress group changes the hash")
	}
	for _, other := range []string{"", "v0-0000"} {
		if providers.HashDiffers(base, other) {
			t.Errorf("%q differs: an unknown hash and one of another version never do", other)
		}
	}
}
