package providertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// bench is an opened provider with what the checks need around it.
type bench struct {
	Harness
	providers.Provider
	// bare is the provider as the factory made it.
	bare providers.Provider
}

// open opens a provider whose every answer and log line is looked at.
func (h Harness) open(t testing.TB, class string) bench {
	t.Helper()
	w := h.newWitness(t)
	h.Runtime.Logger = funcr.New(func(prefix, args string) { w.text("the log", prefix+" "+args) }, funcr.Options{Verbosity: 10})
	p, err := h.opened(t.Context(), w, h.Class(class))
	if err != nil {
		t.Fatalf("open class %s: %v", class, err)
	}
	w.Provider = p
	t.Cleanup(func() {
		if err := w.Close(); err != nil && !errors.Is(err, errNoAnswer) {
			t.Errorf("close: %v", err)
		}
	})
	return bench{h, w, p}
}

// newWitness looks at answers. The class's own credentials are secret in every check.
func (h Harness) newWitness(t testing.TB) *witness {
	return &witness{t: t, secrets: slices.Clone(h.Secrets)}
}

// request makes a request for an instance that no other check has.
func (b bench) request(t testing.TB, proxy string) providers.CreateRequest {
	t.Helper()
	return b.requestIn(t, proxy, "")
}

// requestIn is request with a zone that the specification names; "" leaves it to Place.
func (b bench) requestIn(t testing.TB, proxy, zone string) providers.CreateRequest {
	t.Helper()
	uid := uuid.NewUUID()
	owner := providers.Owner{ClusterID: b.Runtime.ClusterID, Namespace: b.namespace(), Name: proxy, UID: uid}
	spec := b.Spec()
	if zone != "" {
		spec = pinned(spec, zone)
	}
	chosen, err := b.Place(&spec, uid, nil)
	if err != nil {
		t.Fatalf("place: %v", err)
	}
	return providers.CreateRequest{
		Name: providers.InstanceName(owner.ClusterID, proxy, uid), Owner: owner, Zone: chosen,
		Hash: providers.InstanceHash(uid, &spec, b.UserData, ""), Spec: spec, UserData: b.UserData,
		Labels: map[string]string{"tier": "test"},
	}
}

func (h Harness) namespace() string {
	if h.Namespace == "" {
		return "default"
	}
	return h.Namespace
}

// pinned is a specification with a zone.
func pinned(spec v1alpha1.ProxySpec, zone string) v1alpha1.ProxySpec {
	spec = *spec.DeepCopy()
	if spec.Placement == nil {
		spec.Placement = &v1alpha1.Placement{}
	}
	spec.Placement.Zone = zone
	return spec
}

func refOf(req providers.CreateRequest) providers.Ref {
	return providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone}
}

// create asks for an instance and takes it away after the check.
func (b bench) create(t testing.TB, req providers.CreateRequest) {
	t.Helper()
	b.clearAfter(t, req)
	if _, err := b.Create(t.Context(), req); err != nil {
		t.Fatalf("create: %v", err)
	}
}

// clearAfter takes an instance away after the check.
func (b bench) clearAfter(t testing.TB, req providers.CreateRequest) {
	t.Cleanup(func() {
		// The check's own context is over by now.
		err := checked(b.witness(), "Delete", func() error { return b.bare.Delete(context.Background(), refOf(req)) })
		if err != nil && !providers.IsNotFound(err) && !errors.Is(err, errNoAnswer) {
			t.Errorf("delete after the check: %v", err)
		}
	})
}

// eventually ticks until a condition holds.
func (b bench) eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for range b.Patience {
		if holds() {
			return
		}
		b.Tick()
	}
	t.Fatalf("%s: not within %d ticks; the last answer: %s", what, b.Patience, b.witness().lastAnswer())
}

// follow ticks until what Get says of an instance is what is waited for. Errors but NotFound end the check.
func (b bench) follow(t testing.TB, what string, ref providers.Ref, holds func(providers.Instance, error) bool) {
	t.Helper()
	for range b.Patience {
		i, err := b.Get(t.Context(), ref)
		if err != nil && !providers.IsNotFound(err) {
			t.Fatalf("get: %v", err)
		}
		if holds(i, err) {
			return
		}
		b.Tick()
	}
	last, elsewhere := b.witness().lastAnswer(), ""
	if anywhere := ref; ref.Zone != "" {
		anywhere.Zone = ""
		elsewhere = "; without a place: " + outcome(b.Get(t.Context(), anywhere))
	}
	t.Fatalf("%s %s: not within %d ticks; the last answer: %s%s", ref.Name, what, b.Patience, last, elsewhere)
}

// appears waits until Get finds the instance, and tells how long it was missed.
func (b bench) appears(t testing.TB, ref providers.Ref) (found providers.Instance, missed time.Duration) {
	t.Helper()
	start := b.Runtime.Clock.Now()
	b.follow(t, "is found by Get", ref, func(i providers.Instance, err error) bool {
		if err != nil {
			missed = b.Runtime.Clock.Since(start)
		}
		found = i
		return err == nil
	})
	return found, missed
}

// runs waits until the instance runs and has an address.
func (b bench) runs(t testing.TB, ref providers.Ref) (running providers.Instance) {
	t.Helper()
	b.follow(t, "runs and has an address", ref, func(i providers.Instance, err error) bool {
		running = i
		return err == nil && i.State == providers.StateRunning && len(i.Addresses) > 0
	})
	return running
}

// goes waits until Get says NotFound, which must be the truth.
func (b bench) goes(t testing.TB, ref providers.Ref) {
	t.Helper()
	b.follow(t, "is gone", ref, func(_ providers.Instance, err error) bool { return err != nil })
}

// delete asks for a deletion, which may find nothing.
func (b bench) delete(t testing.TB, ref providers.Ref) {
	t.Helper()
	if err := b.Delete(t.Context(), ref); err != nil && !providers.IsNotFound(err) {
		t.Fatalf("delete: got %v, want nil or NotFound", err)
	}
}

// staysFor looks a few times whether an incarnation is there and not on its way out.
func (b bench) stays(t testing.TB, i providers.Instance) {
	t.Helper()
	ref := i.Ref
	ref.ID = ""
	for range 3 {
		b.Tick()
		got, err := b.Get(t.Context(), ref)
		if err != nil || got.ID != i.ID || got.Owner != i.Owner || got.State == providers.StateTerminating {
			t.Fatalf("got %s; want it untouched: %s", outcome(got, err), describe(i))
		}
	}
}

// list is List, which must succeed.
func (b bench) list(t testing.TB) []providers.Instance {
	t.Helper()
	all, err := b.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return all
}

// listed are the owners' UIDs of what List returns and what is not being deleted, with how often each occurs.
func (b bench) listed(t testing.TB) map[types.UID]int {
	t.Helper()
	count := map[types.UID]int{}
	for _, i := range b.list(t) {
		if i.State != providers.StateTerminating {
			count[i.Owner.UID]++
		}
	}
	return count
}

// listsOnce checks that List has exactly one instance of an owner.
func (b bench) listsOnce(t testing.TB, owner providers.Owner) {
	t.Helper()
	if n := b.listed(t)[owner.UID]; n != 1 {
		t.Errorf("listed %d times, want once", n)
	}
}

// wants checks the reason of an error.
func wants(t testing.TB, what string, err error, reasons ...providers.Reason) {
	t.Helper()
	for _, reason := range reasons {
		if providers.ReasonOf(err) == reason {
			return
		}
	}
	t.Errorf("%s: got %v, want %s", what, err, join(reasons))
}

func join(reasons []providers.Reason) string {
	var names []string
	for _, reason := range reasons {
		if reason == accepted {
			names = append(names, "no error")
			continue
		}
		names = append(names, string(reason))
	}
	return strings.Join(names, " or ")
}

// accepted is the reason of no error.
const accepted providers.Reason = ""

// longName is the longest name a Proxy may have.
var longName = strings.Repeat("long-name-", 6) + "123"
