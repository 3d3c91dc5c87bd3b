package charts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/squidtest"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// get reads an object of the namespace default.
func get[T client.Object](t *testing.T, env *testenv.Env, name string, into T) T {
	t.Helper()
	key := client.ObjectKey{Namespace: "default", Name: name}
	switch client.Object(into).(type) {
	case *corev1.Namespace, *v1alpha1.ProviderClass:
		key.Namespace = ""
	}
	must(t, env.Client.Get(t.Context(), key, into))
	return into
}

// TestGcpGuide_Walk walks the guide from top to bottom on a real API server, with a real kubectl: every command is carried out,
// its pieces fit together, and at the end nothing of it is left.
func TestGcpGuide_Walk(t *testing.T) {
	component(t, "kubectl")
	env := testenv.New(t)
	w := newWalk(t, env)
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := env.Client.Create(t.Context(), system); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	way, back := w.parts()
	// Other clients than the guide's own show where they have to go.
	const clients = "198.51.100.0/24,192.0.2.7"
	way[0] = strings.Replace(way[0], "CLIENTS=203.0.113.0/24", "CLIENTS="+clients, 1)
	w.run(way)

	class := get(t, env, "gcp-eu", &v1alpha1.ProviderClass{})
	w.part("the namespace is admitted", func(t *testing.T) {
		selector, err := metav1.LabelSelectorAsSelector(class.Spec.AllowedNamespaces.Selector)
		must(t, err)
		if home := get(t, env, "default", &corev1.Namespace{}); !selector.Matches(labels.Set(home.Labels)) {
			t.Errorf("the class admits %s, the namespace has %v", selector, home.Labels)
		}
	})
	account := "egress-proxies@" + class.Spec.GCP.Project + ".iam.gserviceaccount.com"
	px := get(t, env, "proxy-gcp-sample", &v1alpha1.Proxy{})
	w.part("the network is that of the class, and open for the clients alone", func(t *testing.T) {
		subnet, rule := w.one("subnets", "create"), w.one("firewall-rules", "create")
		region := w.flag(subnet, "region")
		if w.one("networks", "create", "--subnet-mode=custom")[4] != class.Spec.GCP.Network || subnet[5] != class.Spec.GCP.Subnetwork {
			t.Errorf("%v is not the network of %+v", subnet, class.Spec.GCP)
		}
		for _, zone := range class.Spec.GCP.Zones {
			if !strings.HasPrefix(zone, region+"-") {
				t.Errorf("zone %s is not in %s", zone, region)
			}
		}
		if w.flag(rule, "network") != class.Spec.GCP.Network || w.flag(rule, "target-tags") != class.Spec.GCP.NetworkTag ||
			w.flag(rule, "allow") != fmt.Sprint("tcp:", px.Spec.Port) || w.flag(rule, "source-ranges") != clients {
			t.Errorf("the rule %v does not fit", rule)
		}
		conf, err := squidtest.FromCloudConfig(px.Spec.CloudInit.Inline)
		must(t, err)
		if !strings.Contains(conf, "acl clients src "+strings.ReplaceAll(clients, ",", " ")+"\n") || strings.Contains(conf, "203.0.113") {
			t.Errorf("Squid's clients are not those of the firewall:\n%s", conf)
		}
	})
	w.part("the pool has the user data of the proxy", func(t *testing.T) {
		pool := get(t, env, "crawlers-gcp", &v1alpha1.ProxyPool{})
		ref := pool.Spec.Template.Spec.CloudInit.SecretKeyRef
		secret := get(t, env, ref.Name, &corev1.Secret{})
		if secret.Labels[v1alpha1.LabelCloudInit] != "true" || string(secret.Data[ref.Key]) != px.Spec.CloudInit.Inline {
			t.Errorf("the Secret has the labels %v and under %s\n%s", secret.Labels, ref.Key, secret.Data[ref.Key])
		}
		if pool.Spec.Template.Spec.Provider != class.Name || px.Spec.Provider != class.Name {
			t.Errorf("%s and %s use other classes", pool.Name, px.Name)
		}
	})
	w.part("the account is that of the manager", func(t *testing.T) {
		if name := w.one("service-accounts", "create")[4]; !strings.HasPrefix(account, name+"@") {
			t.Errorf("the account is called %s", name)
		}
		onGKE := w.one("service-accounts", "add-iam-policy-binding", "--member=serviceAccount:"+class.Spec.GCP.Project+".svc.id.goog["+namespace+"/"+gcpManager+"]")
		elsewhere := w.one("service-accounts", "add-iam-policy-binding", "--member=principal://iam.googleapis.com/projects/"+projectNumber+
			"/locations/global/workloadIdentityPools/egress/subject/system:serviceaccount:"+namespace+":"+gcpManager)
		for _, binding := range [][]string{onGKE, elsewhere} {
			if w.flag(binding, "role") != "roles/iam.workloadIdentityUser" || binding[4] != account {
				t.Errorf("%v", binding)
			}
		}
		if w.one("projects", "add-iam-policy-binding", "--member=serviceAccount:"+account)[3] != class.Spec.GCP.Project {
			t.Error("the account has its role in another project")
		}
		if issuer := w.flag(w.one("providers", "create-oidc"), "issuer-uri"); !strings.HasPrefix(issuer, "https://") || strings.ContainsAny(issuer, `"{,`) {
			t.Errorf("the issuer of the cluster is %q", issuer)
		}
	})
	w.part("helm installs a manager with it", func(t *testing.T) {
		w.federation(managerPod(t, w.managerOf(w.helm[0])))
		must(t, os.WriteFile(filepath.Join(w.dir, "values-gcp.yaml"), []byte(w.files["values-gcp.yaml on GKE"]), 0o600))
		pods := find(t, w.managerOf(w.helm[0]), "ServiceAccount", gcpManager)
		if got := pods.GetAnnotations()["iam.gke.io/gcp-service-account"]; got != account {
			t.Errorf("on GKE the manager acts as %q", got)
		}
	})
	w.part("kustomize installs it too", func(t *testing.T) {
		deployment, pods := &appsv1.Deployment{}, &corev1.ServiceAccount{}
		key := client.ObjectKey{Namespace: namespace, Name: gcpManager}
		must(t, env.Client.Get(t.Context(), key, deployment))
		must(t, env.Client.Get(t.Context(), key, pods))
		if image := deployment.Spec.Template.Spec.Containers[0].Image; !strings.HasPrefix(image, "registry.example/") {
			t.Errorf("the image is %s", image)
		}
		if got := pods.Annotations["iam.gke.io/gcp-service-account"]; got != account {
			t.Errorf("the manager acts as %q", got)
		}
	})

	w.run(back)
	for _, object := range w.managerOf(w.helm[1]) {
		if object.GetName() == gcpManager && object.GetKind() == "Deployment" {
			t.Error("helm leaves the manager")
		}
	}
	for _, object := range []client.Object{
		&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Name: "crawlers-gcp"}}, &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Name: px.Name}},
		&v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: class.Name}}, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "squid-gcp"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: gcpManager}}, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: gcpManager}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gcp-federation"}},
	} {
		switch object.(type) {
		case *v1alpha1.ProviderClass, *rbacv1.ClusterRoleBinding, *appsv1.Deployment, *corev1.ConfigMap:
		default:
			object.SetNamespace("default")
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s: %v, want it gone", object, object.GetName(), err)
		}
	}
	if home := get(t, env, "default", &corev1.Namespace{}); home.Labels["egress-gcp"] != "" {
		t.Errorf("the namespace is still labelled %v", home.Labels)
	}
	w.everythingGoes()
	w.part("gcloud takes the commands", func(*testing.T) { w.lint() })
}
