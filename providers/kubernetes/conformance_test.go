package kubernetes

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
	"crawl.example.com/egress-proxies-operator/providers/providertest"
)

func TestConformance(t *testing.T) {
	env := testenv.New(t)
	namespace := env.Namespace(t)
	kubelettest.Run(t, env.Config, namespace)
	valid := func() v1alpha1.ProxySpec { return newRequest(namespace, "", nil).Spec }
	invalid := func(change func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec {
		spec := valid()
		change(&spec)
		return spec
	}
	ticker := time.NewTicker(20 * time.Millisecond)
	t.Cleanup(ticker.Stop)
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		return providertest.Harness{
			Factory:   NewFactory(),
			Runtime:   providers.Runtime{ClusterID: namespace, Client: env.Client, Reader: env.Client, Clock: clock.RealClock{}},
			Namespace: namespace,
			Class: func(name string) *v1alpha1.ProviderClass {
				class := newClass(nil)
				class.ObjectMeta = metav1.ObjectMeta{Name: namespace + "-" + name, UID: types.UID(name), Generation: 1}
				return class
			},
			Spec: valid,
			Invalid: map[string]v1alpha1.ProxySpec{
				"spec.placement.machineType": invalid(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{MachineType: "big"} }),
				"spec.placement.image":       invalid(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Image: "x"} }),
				"spec.placement.zone":        invalid(func(s *v1alpha1.ProxySpec) { s.Placement = &v1alpha1.Placement{Zone: "not a label"} }),
				"spec.cloudInit":             invalid(func(s *v1alpha1.ProxySpec) { s.CloudInit = &v1alpha1.CloudInit{Inline: "x"} }),
			},
			Tick:     func() { <-ticker.C },
			Patience: int(patience / (20 * time.Millisecond)),
		}
	})
}
