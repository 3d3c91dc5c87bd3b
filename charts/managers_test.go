package charts_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers/kubernetes/kubelettest"
)

// The real binary with the chart's arguments, roles and policies: a right that is missing shows here.
func TestA44_ManagersRunWithTheirRoles(t *testing.T) {
	env := installed(t)
	ns := env.Namespace(t)
	kubelettest.Run(t, env.Config, ns)
	binary := testenv.BuildOperator(t)
	all := render(t, "--set", "watchNamespaces={"+ns+"}")
	config, _, _ := unstructured.NestedString(find(t, all, "ConfigMap", "providers-config").Object, "data", "providers.yaml")
	core := startManager(t, binary, env.Config, coreUser, arguments(t, all, "controller-manager"), config)
	provider := startManager(t, binary, env.Config, providerUser, arguments(t, all, "provider-kubernetes"), config)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("core:\n%s\nprovider:\n%s", core.Tail(), provider.Tail())
		}
	})

	class := &v1alpha1.ProviderClass{}
	eventually(t, "core has made the class and the provider has taken it", func() bool {
		return env.Client.Get(t.Context(), client.ObjectKey{Name: "kubernetes"}, class) == nil &&
			meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionAccepted) &&
			meta.IsStatusConditionTrue(class.Status.Conditions, v1alpha1.ConditionReady)
	})
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "credentials", Labels: map[string]string{v1alpha1.LabelProxyCredentials: "true"}},
		Data:       map[string][]byte{"username": []byte("u"), "password": []byte("p")},
	}
	must(t, env.Client.Create(t.Context(), secret))
	pool := newPool(ns)
	pool.Spec.Replicas = new(int32(2))
	pool.Spec.Template.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: secret.Name}
	must(t, env.Client.Create(t.Context(), pool))
	must(t, env.Client.Create(t.Context(), newLease(ns, "waiting")))
	members := &v1alpha1.ProxyList{}
	eventually(t, "the pool's proxies have addresses", func() bool {
		must(t, env.Client.List(t.Context(), members, client.InNamespace(ns)))
		with := 0
		for _, px := range members.Items {
			if px.Status.Instance != nil && len(px.Status.Instance.Addresses) > 0 {
				with++
			}
		}
		return with == 2
	})
	eventually(t, "the lease is seen", func() bool {
		lease := &v1alpha1.ProxyLease{}
		must(t, env.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "waiting"}, lease))
		return meta.FindStatusCondition(lease.Status.Conditions, v1alpha1.ConditionBound) != nil
	})
	for name, m := range map[string]*running{"core": core, "provider": provider} {
		eventually(t, name+" is ready", m.ready)
	}
	must(t, env.Client.Delete(t.Context(), pool, client.PropagationPolicy(metav1.DeletePropagationOrphan)))
	for i := range members.Items {
		must(t, client.IgnoreNotFound(env.Client.Delete(t.Context(), &members.Items[i])))
	}
	eventually(t, "the proxies and their pods are gone", func() bool {
		pods := &corev1.PodList{}
		must(t, env.Client.List(t.Context(), pods, client.InNamespace(ns)))
		must(t, env.Client.List(t.Context(), members, client.InNamespace(ns)))
		return len(pods.Items)+len(members.Items) == 0
	})
	for name, m := range map[string]*running{"core": core, "provider": provider} {
		for line := range strings.Lines(m.Output()) {
			if strings.Contains(line, "forbidden") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}

// running is a manager process.
type running struct {
	*testenv.Process
	// probes and, of core, api are where it listens.
	probes, api string
}

// apiToken is core's token for its HTTP API.
const apiToken = "0123456789abcdef0123456789abcdef"

func startManager(t *testing.T, binary string, config *rest.Config, user string, args []string, providersConfig string) *running {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := testenv.Kubeconfig(t, config, func(u *clientcmdapi.AuthInfo) {
		u.Impersonate = user
		u.ImpersonateGroups = []string{"system:authenticated", "system:serviceaccounts"}
	})
	// What the pod mounts is here.
	must(t, os.WriteFile(filepath.Join(dir, "providers.yaml"), []byte(providersConfig), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "token"), []byte(apiToken), 0o600))
	for i := range args {
		args[i] = strings.NewReplacer("/etc/proxy-operator/providers", dir, "/etc/proxy-operator/api-token", dir).Replace(args[i])
	}
	m := &running{probes: freeAddress(t)}
	args = append(args, "--kubeconfig="+kubeconfig, "--leader-election-namespace="+namespace, "--metrics-bind-address=0", "--health-probe-bind-address="+m.probes)
	if args[0] == "core" {
		m.api = freeAddress(t)
		args = append(args, "--api-bind-address="+m.api)
	}
	var err error
	m.Process, err = testenv.StartProcess(binary, args, []string{"POD_NAMESPACE=" + namespace})
	must(t, err)
	t.Cleanup(func() {
		m.Signal(syscall.SIGTERM)
		if err := m.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", args[0], err, m.Tail())
		}
	})
	return m
}

func freeAddress(t *testing.T) string {
	t.Helper()
	address, err := testenv.FreeAddress()
	must(t, err)
	return address
}

func (m *running) ready() bool {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, fmt.Sprintf("http://%s/readyz", m.probes), nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}
