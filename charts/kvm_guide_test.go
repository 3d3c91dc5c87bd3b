package charts_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// onHosts marks blocks of docs/kvm-provider.md that are carried out on a host, or need one.
var onHosts = regexp.MustCompile(`(?m)^(apt-get|useradd|virsh|mkdir -p /etc|for key in|ssh -N) `)

// aroundKvm stands before the commands: what needs a host or a manager does nothing, and helm writes down what it is asked.
const aroundKvm = `set -euo pipefail
mkdir -p ~/.ssh
ssh-keyscan() { echo "${*: -1} $(cut -d' ' -f1,2 ~/.ssh/proxy-operator_ed25519.pub)"; }
helm() { printf '%s\0' "$@" >> "$OUT"; printf '\n' >> "$OUT"; }
`

// kvmWalk is the guides of kvm and kvm2 as a person walks them.
type kvmWalk struct {
	t        *testing.T
	env      *testenv.Env
	dir, out string
}

// commands are the blocks of a guide that are carried out at the desk, in their order, and the files that it shows.
func (w *kvmWalk) commands(guide string) (commands []string) {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(root(w.t), "docs", guide))
	must(w.t, err)
	for _, block := range fence.FindAllStringSubmatch(string(text), -1) {
		if block[1] == "sh" {
			if !onHosts.MatchString(block[2]) {
				commands = append(commands, block[2])
			}
			continue
		}
		first, rest, _ := strings.Cut(block[2], "\n")
		path, _, _ := strings.Cut(strings.TrimPrefix(first, "# "), ",")
		must(w.t, os.MkdirAll(filepath.Dir(filepath.Join(w.dir, path)), 0o700))
		must(w.t, os.WriteFile(filepath.Join(w.dir, path), []byte(rest), 0o600))
	}
	return commands
}

func (w *kvmWalk) run(commands ...string) {
	w.t.Helper()
	carryOut(w.t, w.env, w.dir, aroundKvm+strings.Join(commands, "\n"), "HOME="+filepath.Join(w.dir, "home"), "EDITOR=true", "OUT="+w.out)
}

// managers are the provider managers that the last helm command leaves.
func (w *kvmWalk) managers() (names []string) {
	w.t.Helper()
	text, err := os.ReadFile(w.out)
	must(w.t, err)
	lines := strings.Split(strings.TrimSuffix(string(text), "\x00\n"), "\x00\n")
	for _, object := range rendered(w.t, w.dir, strings.Split(lines[len(lines)-1], "\x00")) {
		if object.GetKind() == "Deployment" && strings.Contains(object.GetName(), "-provider-kvm") {
			names = append(names, object.GetName())
		}
	}
	return names
}

// fits checks that what the guide has made of a class and a Proxy belongs together.
func (w *kvmWalk) fits(className, proxyName, clients string) {
	w.t.Helper()
	class, px := get(w.t, w.env, className, &v1alpha1.ProviderClass{}), get(w.t, w.env, proxyName, &v1alpha1.Proxy{})
	selector, err := metav1.LabelSelectorAsSelector(class.Spec.AllowedNamespaces.Selector)
	must(w.t, err)
	if home := get(w.t, w.env, "default", &corev1.Namespace{}); !selector.Matches(labels.Set(home.Labels)) {
		w.t.Errorf("%s admits %s, the namespace has %v", className, selector, home.Labels)
	}
	block := class.Spec.KVM
	if block == nil {
		block = class.Spec.KVM2
	}
	secret := &corev1.Secret{}
	must(w.t, w.env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: "kvm-ssh"}, secret))
	for _, file := range []string{block.SSHKeyFile, block.KnownHostsFile} {
		if len(secret.Data[filepath.Base(file)]) == 0 {
			w.t.Errorf("the Secret has no %s", file)
		}
	}
	for _, host := range block.Hosts {
		if !strings.Contains(string(secret.Data["known_hosts"]), host.Address+" ") {
			w.t.Errorf("the key of %s was not fetched", host.Address)
		}
		if host.User != "proxy-operator" || host.Pool != "" || host.Bridge != "br0" {
			w.t.Errorf("the guide prepares no host like %+v", host)
		}
	}
	if px.Spec.Provider != className || px.Spec.Placement.Image != block.Images[0].Name || px.Spec.Placement.Zone != block.Hosts[0].Name {
		w.t.Errorf("%s is not one of %s: %+v", proxyName, className, px.Spec.Placement)
	}
	conf, err := squidtest.FromCloudConfig(px.Spec.CloudInit.Inline)
	must(w.t, err)
	if !strings.Contains(conf, "acl clients src "+clients+"\n") || strings.Contains(conf, "203.0.113") {
		w.t.Errorf("Squid's clients are others:\n%s", conf)
	}
}

// TestKvmGuide_Walk walks the guides of kvm and kvm2 on a real API server, with a real kubectl, but for what is done on hosts:
// every command is carried out, what it makes fits together, and at the end nothing of it is left.
func TestKvmGuide_Walk(t *testing.T) {
	component(t, "kubectl")
	w := &kvmWalk{t: t, env: testenv.New(t), dir: t.TempDir(), out: filepath.Join(t.TempDir(), "helm")}
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if err := w.env.Client.Create(t.Context(), system); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	likeTheRepository(t, w.dir)
	makefile, err := os.ReadFile(filepath.Join(root(t), "Makefile"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(w.dir, "Makefile"), makefile, 0o600))

	commands := w.commands("kvm-provider.md")
	names := strings.Replace(commands[0], "CLIENTS=203.0.113.0/24", "CLIENTS=198.51.100.0/24,192.0.2.7", 1)
	i := slices.IndexFunc(commands, func(s string) bool { return strings.HasPrefix(s, "kubectl delete") })
	if i < 0 {
		t.Fatal("the guide takes nothing away")
	}
	w.run(append([]string{names}, commands[1:i]...)...)
	w.fits("kvm-home", "proxy-kvm-sample", "198.51.100.0/24 192.0.2.7")
	if got := w.managers(); !slices.Equal(got, []string{release + "-provider-kvm"}) {
		t.Errorf("helm installs %v", got)
	}
	px, pool := get(t, w.env, "proxy-kvm-sample", &v1alpha1.Proxy{}), get(t, w.env, "crawlers-kvm", &v1alpha1.ProxyPool{})
	ref := pool.Spec.Template.Spec.CloudInit.SecretKeyRef
	if secret := get(t, w.env, ref.Name, &corev1.Secret{}); secret.Labels[v1alpha1.LabelCloudInit] != "true" || string(secret.Data[ref.Key]) != px.Spec.CloudInit.Inline {
		t.Errorf("the pool's user data are not those of the Proxy: %v", secret.Labels)
	}
	names = strings.SplitAfter(names, "\nssh-keygen")[0]
	variables := strings.TrimSuffix(names, "ssh-keygen")
	w.run(append([]string{variables}, w.commands("kvm2-provider.md")...)...)
	w.run(variables, "kubectl apply -k my-kvm2", "kubectl apply -f my-kvm/secret.yaml")
	w.fits("kvm2-home", "proxy-kvm2-sample", "198.51.100.0/24 192.0.2.7")
	if got := w.managers(); !slices.Equal(got, []string{release + "-provider-kvm2"}) {
		t.Errorf("helm installs %v", got)
	}
	for _, kind := range []string{"kvm", "kvm2"} {
		deployment := &appsv1.Deployment{}
		must(t, w.env.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: release + "-provider-" + kind}, deployment))
		if image := deployment.Spec.Template.Spec.Containers[0].Image; !strings.HasPrefix(image, "registry.example/") {
			t.Errorf("the image is %s", image)
		}
	}

	w.run(variables, "kubectl delete -f my-kvm/secret.yaml", "kubectl delete px proxy-kvm2-sample", "kubectl delete pxc kvm2-home", "kubectl delete -k my-kvm2")
	w.run(append([]string{variables}, commands[i:]...)...)
	w.run("kubectl delete -k my-kvm")
	if got := w.managers(); len(got) > 0 {
		t.Errorf("helm leaves %v", got)
	}
	for _, object := range []client.Object{
		&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pool.Name}},
		&v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: px.Name}},
		&v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: px.Spec.Provider}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: ref.Name}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "kvm-ssh"}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: release + "-provider-kvm"}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: release + "-provider-kvm"}},
	} {
		if err := w.env.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); !apierrors.IsNotFound(err) {
			t.Errorf("%T %s: %v, want it gone", object, object.GetName(), err)
		}
	}
	if home := get(t, w.env, "default", &corev1.Namespace{}); home.Labels["egress-kvm"] != "" {
		t.Errorf("the namespace is still labelled %v", home.Labels)
	}
}
