package gcp

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

const (
	testProject = "demo-project"
	testToken   = "token-that-nobody-must-see"
	testImage   = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64"
	zoneA       = "europe-west3-a"
	zoneB       = "europe-west3-b"
	zoneC       = "us-central1-a"
)

// newClass makes a class with three zones in two regions.
func newClass(name string, change ...func(*v1alpha1.ProviderClassSpec)) *v1alpha1.ProviderClass {
	class := &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec: v1alpha1.ProviderClassSpec{
			Type: v1alpha1.ProviderGCP, GCP: &v1alpha1.GCPClass{Project: testProject, Zones: []string{zoneA, zoneB, zoneC}},
		},
	}
	for _, f := range change {
		f(&class.Spec)
	}
	return class
}

func newSpec(change ...func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec {
	spec := v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{
		Placement: &v1alpha1.Placement{MachineType: "e2-micro", Image: testImage}, Port: 3128,
	}}
	for _, f := range change {
		f(&spec)
	}
	return spec
}

func inZone(zone string) func(*v1alpha1.ProxySpec) {
	return func(s *v1alpha1.ProxySpec) { s.Placement.Zone = zone }
}

// newRequest asks for an instance in a zone.
func newRequest(name, zone string, change ...func(*v1alpha1.ProxySpec)) providers.CreateRequest {
	spec := newSpec(change...)
	owner := providers.Owner{ClusterID: "cluster", Namespace: "default", Name: name, UID: types.UID("uid-of-" + name)}
	return providers.CreateRequest{
		Name: providers.InstanceName("cluster", name, owner.UID), Owner: owner, Zone: zone, Hash: providers.InstanceHash(owner.UID, &spec, nil, ""),
		Attempt: "1700000000-1", Spec: spec,
	}
}

func refOf(req providers.CreateRequest) providers.Ref {
	return providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone}
}

// useAccount makes a service account whose key file is the Application Default Credentials, and no others can be found.
func useAccount(t *testing.T) *computetest.ServiceAccount {
	t.Helper()
	computetest.Isolate(t)
	account := computetest.NewServiceAccount(t, testToken)
	file := filepath.Join(t.TempDir(), "key.json")
	account.WriteFile(file)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	return account
}

// rig is a server, credentials and a provider of class a.
type rig struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	*computetest.Server
	adc *computetest.ServiceAccount
	*Provider
}

func newRig(t *testing.T, change ...func(*v1alpha1.ProviderClassSpec)) *rig {
	t.Helper()
	r := &rig{t: t, clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), adc: useAccount(t)}
	r.Server = computetest.New(t, computetest.Options{Clock: r.clock, Token: testToken, Projects: []string{testProject}})
	r.Provider = openProvider(t, r.URL, r.clock, newClass("a", change...))
	return r
}

func openProvider(t *testing.T, endpoint string, c clock.WithTicker, class *v1alpha1.ProviderClass) *Provider {
	t.Helper()
	p, err := (&Factory{Endpoint: endpoint}).Open(t.Context(), class, providers.Runtime{ClusterID: "cluster", Clock: c, Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p.(*Provider)
}

// create is Create, which must be accepted; the reference has what the operator would know then.
func (r *rig) create(req providers.CreateRequest) providers.Ref {
	r.t.Helper()
	receipt, err := r.Create(r.t.Context(), req)
	if err != nil {
		r.t.Fatalf("create: %v", providers.RawText(err))
	}
	ref := refOf(req)
	ref.Operation = receipt.Operation
	return ref
}

// runs lets an instance come up.
func (r *rig) runs(ref providers.Ref) providers.Instance {
	r.t.Helper()
	r.clock.Step(time.Minute)
	i, err := r.Get(r.t.Context(), ref)
	if err != nil || i.State != providers.StateRunning || len(i.Addresses) == 0 {
		r.t.Fatalf("got %+v, %v; want it to run", i, err)
	}
	return i
}

// look is Get, also when the test is over.
func (r *rig) look(ref providers.Ref) (providers.Instance, error) {
	return r.Get(context.Background(), ref)
}
