package kubernetes

import (
	"context"
	"os"
	"sync"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/manager"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
)

const testCluster = "test-cluster"

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

func newClass(change func(*v1alpha1.ProviderClassSpec)) *v1alpha1.ProviderClass {
	class := &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", UID: "class-uid", Generation: 1},
		Spec: v1alpha1.ProviderClassSpec{
			Type:              v1alpha1.ProviderKubernetes,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	if change != nil {
		change(&class.Spec)
	}
	return class
}

func newRequest(namespace string, uid types.UID, change func(*providers.CreateRequest)) providers.CreateRequest {
	req := providers.CreateRequest{
		Name:   providers.InstanceName(testCluster, "px", uid),
		Owner:  providers.Owner{ClusterID: testCluster, Namespace: namespace, Name: "px", UID: uid},
		Hash:   "v1-0123",
		Labels: map[string]string{"geo": "local", v1alpha1.LabelPool: "demo", v1alpha1.GroupName + "/made-up": "x"},
		Spec:   v1alpha1.ProxySpec{Mode: v1alpha1.ModeManaged, ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Port: 3128}},
	}
	if change != nil {
		change(&req)
	}
	return req
}

func refOf(req providers.CreateRequest) providers.Ref {
	return providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone}
}

// fakeCluster is an API server in memory that allows everything, and calls that a test changes.
type fakeCluster struct{ client.WithWatch }

// scheme is shared, since making one takes longer than most tests here.
var scheme = sync.OnceValue(manager.Scheme)

func newFakeCluster(calls interceptor.Funcs) *fakeCluster {
	if calls.Create == nil {
		calls.Create = allowReviews
	}
	return &fakeCluster{interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme()).Build(), calls)}
}

func allowReviews(ctx context.Context, c client.WithWatch, object client.Object, opts ...client.CreateOption) error {
	if review, ok := object.(*authorizationv1.SelfSubjectAccessReview); ok {
		review.Status.Allowed = true
		return nil
	}
	return c.Create(ctx, object, opts...)
}

func (f *fakeCluster) open(t *testing.T, class *v1alpha1.ProviderClass) providers.Provider {
	t.Helper()
	return open(t, providers.Runtime{Client: f, Reader: f}, class)
}

func open(t *testing.T, rt providers.Runtime, class *v1alpha1.ProviderClass) providers.Provider {
	t.Helper()
	rt.ClusterID, rt.Clock = testCluster, clocktesting.NewFakeClock(metav1.Now().Time)
	provider, err := NewFactory().Open(t.Context(), class, rt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = provider.Close() })
	return provider
}
