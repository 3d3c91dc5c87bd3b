// Package providertest is the conformance suite of the provider contract: what every provider must do, whatever is behind
// it. A provider's own tests call Run with a Harness that says how to reach it.
package providertest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// Harness says how to reach a provider under test. What it makes must come to run by itself while Tick is called.
type Harness struct {
	Factory providers.Factory
	Runtime providers.Runtime
	// Class makes a valid class. Different names are different classes; the same name is the same class.
	Class func(name string) *v1alpha1.ProviderClass
	// Namespace of the owners; "" means default.
	Namespace string
	// Spec makes a valid specification.
	Spec func() v1alpha1.ProxySpec
	// Invalid are specifications that ValidateSpec must refuse, by the field that it must name.
	Invalid map[string]v1alpha1.ProxySpec
	// UserData for the instances; nil where the provider takes none.
	UserData []byte
	// Tick lets some time pass: it moves a fake clock or waits a moment.
	Tick func()
	// Patience is how many ticks a start or a deletion may take.
	Patience int
}

// bench is an opened provider with what the tests need around it.
type bench struct {
	Harness
	providers.Provider
}

func (h Harness) open(t *testing.T, class string) bench {
	t.Helper()
	p, err := h.Factory.Open(t.Context(), h.Class(class), h.Runtime)
	if err != nil {
		t.Fatalf("open class %s: %v", class, err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return bench{h, p}
}

// request makes a request for an instance that no other test has.
func (b bench) request(t *testing.T, proxy string) providers.CreateRequest {
	t.Helper()
	namespace := b.Namespace
	if namespace == "" {
		namespace = "default"
	}
	uid := uuid.NewUUID()
	owner := providers.Owner{ClusterID: b.Runtime.ClusterID, Namespace: namespace, Name: proxy, UID: uid}
	spec := b.Spec()
	zone, err := b.Place(&spec, nil)
	if err != nil {
		t.Fatalf("place: %v", err)
	}
	return providers.CreateRequest{
		Name: providers.InstanceName(owner.ClusterID, proxy, uid), Owner: owner, Zone: zone,
		Hash: providers.InstanceHash(uid, &spec, b.UserData, ""), Spec: spec, UserData: b.UserData,
	}
}

func refOf(req providers.CreateRequest) providers.Ref {
	return providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone}
}

// create asks for an instance and takes it away after the test.
func (b bench) create(t *testing.T, req providers.CreateRequest) {
	t.Helper()
	if _, err := b.Create(t.Context(), req); err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		// The test's own context is over by now.
		if err := b.Delete(context.Background(), refOf(req)); err != nil && !providers.IsNotFound(err) {
			t.Errorf("delete after the test: %v", err)
		}
	})
}

// eventually ticks until a condition holds.
func (b bench) eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for range b.Patience {
		if holds() {
			return
		}
		b.Tick()
	}
	t.Fatalf("%s: not within %d ticks", what, b.Patience)
}

// appears waits until Get finds the instance.
func (b bench) appears(t *testing.T, ref providers.Ref) (found providers.Instance) {
	t.Helper()
	b.eventually(t, "Get finds "+ref.Name, func() bool {
		i, err := b.Get(t.Context(), ref)
		if err != nil && !providers.IsNotFound(err) {
			t.Fatalf("get: %v", err)
		}
		found = i
		return err == nil
	})
	return found
}

// runs waits until the instance runs and has an address.
func (b bench) runs(t *testing.T, ref providers.Ref) (running providers.Instance) {
	t.Helper()
	b.eventually(t, ref.Name+" runs", func() bool {
		i, err := b.Get(t.Context(), ref)
		if err != nil && !providers.IsNotFound(err) {
			t.Fatalf("get: %v", err)
		}
		running = i
		return err == nil && i.State == providers.StateRunning && len(i.Addresses) > 0
	})
	return running
}

// goes waits until Get says NotFound.
func (b bench) goes(t *testing.T, ref providers.Ref) {
	t.Helper()
	b.eventually(t, ref.Name+" is gone", func() bool {
		_, err := b.Get(t.Context(), ref)
		if err != nil && !providers.IsNotFound(err) {
			t.Fatalf("get: %v", err)
		}
		return err != nil
	})
}

// listed are the owners' UIDs of what List returns, with how often each occurs.
func (b bench) listed(t *testing.T) map[types.UID]int {
	t.Helper()
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	count := map[types.UID]int{}
	for _, i := range all {
		if i.State != providers.StateTerminating {
			count[i.Owner.UID]++
		}
	}
	return count
}

// longName is the longest name a Proxy may have.
var longName = strings.Repeat("long-name-", 6) + "123"

func describe(i providers.Instance) string { return fmt.Sprintf("%+v", i) }
