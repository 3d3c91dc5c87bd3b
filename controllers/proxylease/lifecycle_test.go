package proxylease

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// leaseUser is a crawler with the rights of the role lease-user and no others, as the project delivers it.
func (f *fleet) leaseUser() client.Client {
	f.t.Helper()
	root, err := testenv.RepositoryRoot()
	if err != nil {
		f.t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(root, "config", "rbac", "user_roles.yaml"))
	if err != nil {
		f.t.Fatal(err)
	}
	var rules []rbacv1.PolicyRule
	for documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), len(data)); ; {
		role := &rbacv1.ClusterRole{}
		if err := documents.Decode(role); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			f.t.Fatal(err)
		}
		if role.Name == "egress-proxies-operator-lease-user" {
			rules = role.Rules
		}
	}
	name := "crawler-of-" + f.ns
	for _, o := range []client.Object{
		&rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "lease-user"}, Rules: rules},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "lease-user"},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "lease-user"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
		},
	} {
		if err := f.Client.Create(f.t.Context(), o); err != nil {
			f.t.Fatal(err)
		}
	}
	user, err := client.New(f.AddUser(f.t, name), client.Options{Scheme: f.Client.Scheme()})
	if err != nil {
		f.t.Fatal(err)
	}
	eventually(f.t, "the role has effect", func() string {
		if err := user.List(f.t.Context(), &v1alpha1.ProxyLeaseList{}, client.InNamespace(f.ns)); err != nil {
			return err.Error()
		}
		return ""
	})
	return user
}

func TestL24_AHolderCannotChangeWhatWasGranted(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	c := f.start()
	user := f.leaseUser()
	byObject := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "mine"},
		Spec: v1alpha1.ProxyLeaseSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "eu"}}, Holder: "crawler", TTLSeconds: 600, Targets: []string{"x.example"},
		},
	}
	if err := user.Create(t.Context(), byObject); err != nil {
		t.Fatalf("a lease user cannot lease: %v", err)
	}
	f.awaitPhase("mine", v1alpha1.LeaseBound)
	byHTTP := c.acquire(201, `{"target":"x.example","ttlSeconds":600}`)
	for _, name := range []string{"mine", byHTTP.name()} {
		before := f.get(name)
		patch := func(body string) error {
			l := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}}
			return user.Patch(t.Context(), l, client.RawPatch(types.MergePatchType, []byte(body)))
		}
		for _, spec := range []string{
			`{"proxyName":"b"}`, `{"selector":null,"proxyName":"b"}`, `{"selector":{"matchLabels":{"geo":"us"}}}`, `{"selector":null,"poolRef":{"name":"p"}}`,
			`{"mode":"Exclusive"}`, `{"holder":"another"}`, `{"holder":null}`, `{"ttlSeconds":86400}`, `{"ttlSeconds":null}`, `{"targets":["y.example"]}`, `{"targets":null}`,
			`{"waitSeconds":1}`, `{"ttlSecondsAfterFinished":604800}`, `{"excludedProxyNames":["a"]}`, `{"onProxyFailure":"Revoke"}`,
			`{"grant":{"proxyName":"b","proxyUID":"u","epoch":9,"seq":9,"expireTime":"2099-01-01T00:00:00.000000Z"}}`,
			`{"grant":{"expireTime":"2099-01-01T00:00:00.000000Z"}}`,
		} {
			if err := patch(`{"spec":` + spec + `}`); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				t.Errorf("%s: spec %s: %v", name, spec, err)
			}
		}
		if before.Spec.Grant != nil {
			if err := patch(`{"spec":{"grant":null}}`); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
				t.Errorf("taking the grant away: %v", err)
			}
		}
		l := f.get(name)
		l.Status.ProxyRef = &v1alpha1.BoundProxy{Namespace: f.ns, Name: "b", UID: f.getProxy("b").UID}
		l.Status.ExpireTime = new(metav1.NewMicroTime(time.Now().Add(24 * time.Hour)))
		l.Status.Phase = v1alpha1.LeaseBound
		if err := user.Status().Update(t.Context(), l); !apierrors.IsForbidden(err) {
			t.Errorf("%s: writing the status: %v", name, err)
		}
		// Beside the subresource a status is not written at all.
		if err := patch(`{"status":{"phase":"Bound","expireTime":"2099-01-01T00:00:00.000000Z","proxyRef":{"name":"b"}}}`); err != nil {
			t.Errorf("%s: a patch without effect: %v", name, err)
		}
		if after := f.get(name); !apiequality.Semantic.DeepEqual(after.Spec, before.Spec) || !apiequality.Semantic.DeepEqual(after.Status, before.Status) {
			t.Errorf("%s changed from %+v to %+v", name, before, after)
		}
		if err := patch(`{"spec":{"renewTime":"2030-01-01T00:00:00.000000Z","reports":[{"target":"y.example","result":"ok"}]}}`); err != nil {
			t.Errorf("%s: what a holder may do: %v", name, err)
		}
	}
	status, body := c.call(http.MethodGet, "/v1/leases/"+byHTTP.LeaseID, "")
	if got := decode[httpLease](t, body); status != 200 || got.Proxy.ID != byHTTP.Proxy.ID {
		t.Fatalf("%d %s", status, body)
	}
}

func TestL25_ALeaseGoesAwayWithThePodThatOwnsIt(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	f.start()
	user := f.leaseUser()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "crawler"},
		Spec: corev1.PodSpec{
			AutomountServiceAccountToken: new(false), TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "crawler", Image: "crawler"}},
		},
	}
	if err := f.Client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "default"}}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if err := f.Client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	lease := &v1alpha1.ProxyLease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.ns, Name: "owned",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: v1alpha1.ProxyLeaseSpec{Selector: &metav1.LabelSelector{}, Holder: "crawler", TTLSeconds: 86400},
	}
	if err := user.Create(t.Context(), lease); err != nil {
		t.Fatalf("a crawler cannot make a lease that its Pod owns: %v", err)
	}
	f.awaitPhase("owned", v1alpha1.LeaseBound)
	f.lease("next")
	f.awaitPhase("next", v1alpha1.LeasePending)
	f.ControllerManager(t)
	if err := f.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	f.awaitPhase("next", v1alpha1.LeaseBound)
	if l := f.get("owned"); l != nil {
		t.Fatalf("the lease is there: %+v", l)
	}
}

func TestL27_ANamespaceWithBoundLeasesCanBeDeleted(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	f.proxy("b")
	c := f.start()
	f.lease("by-object")
	f.lease("exclusive", exclusiveLease)
	f.lease("waits", func(l *v1alpha1.ProxyLease) {
		l.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "moon"}}
	})
	f.awaitPhase("by-object", v1alpha1.LeaseBound)
	f.awaitPhase("exclusive", v1alpha1.LeaseBound)
	f.awaitPhase("waits", v1alpha1.LeasePending)
	c.acquire(201, `{}`)
	for _, l := range f.leases() {
		if len(l.Finalizers) != 0 {
			t.Fatalf("%s has finalizers: %v", l.Name, l.Finalizers)
		}
	}
	f.ControllerManager(t)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: f.ns}}
	if err := f.Client.Delete(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace is gone", func() string {
		err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(namespace), namespace)
		if apierrors.IsNotFound(err) {
			return ""
		}
		return fmt.Sprintf("%v %+v", err, namespace.Status)
	})
	eventually(t, "nothing is waited for or held", func() string {
		if n := c.allocator.Waiting(); n != 0 {
			return fmt.Sprintf("%d wait", n)
		}
		return ""
	})
}

func TestL26_FinishedLeasesAreBoundedAndTheBrakeWorks(t *testing.T) {
	const perNamespace, limit = 20, 100
	f := newFleet(t)
	f.proxy("a")
	c := f.start(withOptions(func(o *leasing.Options) { o.MaxFinishedPerNamespace, o.MaxLeases = perNamespace, limit }))
	follower := f.start(following, withOptions(func(o *leasing.Options) { o.MaxLeases = limit }))
	// Leases that end at once and want to be kept for a week.
	for i := range 150 {
		f.lease(fmt.Sprint("short-", i), func(l *v1alpha1.ProxyLease) {
			l.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "moon"}}
			l.Spec.WaitSeconds, l.Spec.TTLSecondsAfterFinished = new(int32(0)), new(int32(604800))
		})
	}
	eventually(t, "only so many are kept", func() string {
		n := 0
		for _, l := range f.leases() {
			if l.Status.Phase != v1alpha1.LeaseFailed {
				return l.Name + " has not ended"
			}
			n++
		}
		if n > perNamespace {
			return fmt.Sprintf("%d are there", n)
		}
		return ""
	})
	if n := len(f.leases()); n != perNamespace {
		t.Fatalf("%d are there", n)
	}
	// Live leases pull the brake, after the finished ones have made room.
	var held []httpLease
	for {
		status, body := c.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":900}`)
		if status == 201 {
			if held = append(held, decode[httpLease](t, body)); len(held) > limit {
				t.Fatal("the brake does not work")
			}
			continue
		}
		if p := decode[problem](t, body); status != 503 || p.Code != wire.CodeTooManyLeases {
			t.Fatalf("%d %s", status, body)
		}
		if len(held) >= limit {
			break
		}
		tick(t, 20*time.Millisecond) // finished ones are being deleted
	}
	if n := len(f.leases()); n != limit {
		t.Fatalf("%d objects", n)
	}
	eventually(t, "a replica that does not lead refuses, too", func() string {
		status, body := follower.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":900}`)
		if p := decode[problem](t, body); status != 503 || p.Code != wire.CodeTooManyLeases {
			return fmt.Sprintf("%d %s", status, body)
		}
		return ""
	})
	for _, lease := range held[:limit/10] {
		if status, body := c.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
			t.Fatalf("release: %d %s", status, body)
		}
	}
	for _, replica := range []*core{c, follower} {
		eventually(t, "leases are granted again", func() string {
			if status, body := replica.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":900}`); status != 201 {
				return string(body)
			}
			return ""
		})
	}
}
