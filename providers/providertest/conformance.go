package providertest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Run checks a provider against the contract. newHarness makes a Harness for each test.
func Run(t *testing.T, newHarness func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*testing.T, Harness)
	}{
		{"a valid class is accepted and answers", classIsAccepted},
		{"an invalid specification names its field", invalidSpec},
		{"Place always answers and is stable", place},
		{"what does not exist is NotFound", unknownIsNotFound},
		{"an instance comes to run and keeps what it was made from", lifeOfAnInstance},
		{"a name of full length works", fullLengthName},
		{"Create is idempotent by name", createIsIdempotent},
		{"Create at the same time makes one instance", createConcurrently},
		{"a name held by another owner is a Conflict", foreignOwner},
		{"Delete spares other incarnations", deleteSparesOthers},
		{"a deleted instance is found until it is gone", deletion},
		{"the next incarnation has another id", nextIncarnation},
		{"List has all of the class and nothing else", listIsComplete},
		{"a new Provider sees what another one made", restart},
		{"a call that is given up says nothing", cancelled},
		{"a closed Provider answers", closed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, newHarness(t)) })
	}
}

func classIsAccepted(t *testing.T, h Harness) {
	class := h.Class("a")
	if class.Spec.Type != h.Factory.Type() {
		t.Fatalf("the harness makes classes of type %q for a factory of type %q", class.Spec.Type, h.Factory.Type())
	}
	if problems := h.Factory.Validate(class); len(problems) > 0 {
		t.Errorf("validate: %v", problems.ToAggregate())
	}
	if err := h.open(t, "a").Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	if timing := providers.TimingOf(h.Factory); timing.Settle < timing.Window {
		t.Errorf("Settle %v is shorter than Window %v", timing.Settle, timing.Window)
	}
}

func invalidSpec(t *testing.T, h Harness) {
	b := h.open(t, "a")
	spec := h.Spec()
	if err := b.ValidateSpec(&spec); err != nil {
		t.Errorf("a valid specification is refused: %v", err)
	}
	for field, spec := range h.Invalid {
		err := b.ValidateSpec(&spec)
		if providers.ReasonOf(err) != providers.InvalidSpec {
			t.Errorf("%s: got %v, want InvalidSpec", field, err)
			continue
		}
		if got := fieldOf(err); got != field {
			t.Errorf("got field %q, want %q", got, field)
		}
	}
}

func place(t *testing.T, h Harness) {
	b := h.open(t, "a")
	spec := h.Spec()
	first, err := b.Place(&spec, nil)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := b.Place(&spec, nil); err != nil || again != first {
		t.Errorf("got %q, then %q (%v)", first, again, err)
	}
	tried := []string{first}
	for range 5 {
		next, err := b.Place(&spec, tried)
		if err != nil {
			t.Fatalf("no place after %q: %v", tried, err)
		}
		tried = append(tried, next)
	}
}

func unknownIsNotFound(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "nobody")
	if _, err := b.Get(t.Context(), refOf(req)); !providers.IsNotFound(err) {
		t.Errorf("get: got %v, want NotFound", err)
	}
	if err := b.Delete(t.Context(), refOf(req)); err != nil && !providers.IsNotFound(err) {
		t.Errorf("delete: got %v, want nil or NotFound", err)
	}
}

func lifeOfAnInstance(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.appears(t, refOf(req))
	if first.Name != req.Name || first.Owner != req.Owner || first.Hash != req.Hash || first.Zone != req.Zone {
		t.Errorf("asked for %+v, got %s", req, describe(first))
	}
	if first.ID == "" || first.ProviderID == "" || first.CreatedAt.IsZero() {
		t.Errorf("ID, ProviderID and CreatedAt must be known: %s", describe(first))
	}
	running := b.runs(t, refOf(req))
	if running.ID != first.ID || running.ProviderID != first.ProviderID || !running.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("the identity changed from %s to %s", describe(first), describe(running))
	}
	again := b.runs(t, refOf(req))
	if again.Message != running.Message {
		t.Errorf("the message is not stable: %q, %q", running.Message, again.Message)
	}
	if n := b.listed(t)[req.Owner.UID]; n != 1 {
		t.Errorf("listed %d times, want once", n)
	}
	anywhere := refOf(req)
	anywhere.Zone = ""
	if found, err := b.Get(t.Context(), anywhere); providers.ReasonOf(err) != providers.Unavailable && (err != nil || found.ID != first.ID) {
		t.Errorf("get without a place: got %s, %v; want the instance or Unavailable", describe(found), err)
	}
}

func fullLengthName(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, longName)
	b.create(t, req)
	if i := b.appears(t, refOf(req)); i.Owner != req.Owner {
		t.Errorf("owner %+v, want %+v", i.Owner, req.Owner)
	}
}

func createIsIdempotent(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	if _, err := b.Create(t.Context(), req); err != nil && !providers.IsAlreadyExists(err) {
		t.Errorf("second create: got %v, want nil or AlreadyExists", err)
	}
	first := b.runs(t, refOf(req))
	if _, err := b.Create(t.Context(), req); err != nil && !providers.IsAlreadyExists(err) {
		t.Errorf("create of what runs: got %v, want nil or AlreadyExists", err)
	}
	if i := b.runs(t, refOf(req)); i.ID != first.ID {
		t.Errorf("another incarnation %s, want %s", i.ID, first.ID)
	}
	if n := b.listed(t)[req.Owner.UID]; n != 1 {
		t.Errorf("listed %d times, want once", n)
	}
}

func createConcurrently(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	var group sync.WaitGroup
	errs := make([]error, 4)
	for n := range errs {
		group.Go(func() { _, errs[n] = b.Create(t.Context(), req) })
	}
	group.Wait()
	t.Cleanup(func() { _ = b.Delete(context.Background(), refOf(req)) })
	accepted := 0
	for _, err := range errs {
		switch providers.ReasonOf(err) {
		case "":
			accepted++
		case providers.AlreadyExists:
		default:
			t.Errorf("got %v, want nil or AlreadyExists", err)
		}
	}
	if accepted == 0 {
		t.Error("no call was accepted")
	}
	b.runs(t, refOf(req))
	if n := b.listed(t)[req.Owner.UID]; n != 1 {
		t.Errorf("listed %d times, want once", n)
	}
}

func foreignOwner(t *testing.T, h Harness) {
	b := h.open(t, "a")
	theirs := b.request(t, "px")
	b.create(t, theirs)
	first := b.runs(t, refOf(theirs))
	ours := b.request(t, "px")
	ours.Name = theirs.Name
	if _, err := b.Create(t.Context(), ours); providers.ReasonOf(err) != providers.Conflict {
		t.Errorf("got %v, want Conflict", err)
	}
	if i := b.runs(t, refOf(theirs)); i.ID != first.ID || i.Owner != theirs.Owner {
		t.Errorf("the other owner's instance changed to %s", describe(i))
	}
}

func deleteSparesOthers(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	wrong := first.Ref
	wrong.ID = "0"
	if err := b.Delete(t.Context(), wrong); err != nil && !providers.IsNotFound(err) {
		t.Errorf("got %v, want nil or NotFound", err)
	}
	for range 3 {
		b.Tick()
		if i, err := b.Get(t.Context(), refOf(req)); err != nil || i.State != providers.StateRunning || i.ID != first.ID {
			t.Fatalf("got %s, %v; want it untouched", describe(i), err)
		}
	}
}

func deletion(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	// Twice, as two leaders would.
	for range 2 {
		if err := b.Delete(t.Context(), first.Ref); err != nil && !providers.IsNotFound(err) {
			t.Fatalf("delete: %v", err)
		}
	}
	b.eventually(t, "gone, and terminating until then", func() bool {
		i, err := b.Get(t.Context(), first.Ref)
		if err == nil && i.ID != first.ID {
			t.Fatalf("another incarnation: %s", describe(i))
		}
		if err != nil && !providers.IsNotFound(err) {
			t.Fatalf("get: %v", err)
		}
		return err != nil
	})
	if n := b.listed(t)[req.Owner.UID]; n != 0 {
		t.Error("still listed")
	}
}

func nextIncarnation(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	if err := b.Delete(t.Context(), first.Ref); err != nil {
		t.Fatalf("delete: %v", err)
	}
	b.goes(t, refOf(req))
	b.create(t, req)
	second := b.runs(t, refOf(req))
	if second.ID == first.ID {
		t.Error("two incarnations have one id")
	}
	// A late call for the first must not hit the second.
	if err := b.Delete(t.Context(), first.Ref); err != nil && !providers.IsNotFound(err) {
		t.Errorf("late delete: got %v, want nil or NotFound", err)
	}
	if i, err := b.Get(t.Context(), refOf(req)); err != nil || i.ID != second.ID || i.State == providers.StateTerminating {
		t.Errorf("got %s, %v; want the second incarnation untouched", describe(i), err)
	}
}

func listIsComplete(t *testing.T, h Harness) {
	b, other := h.open(t, "a"), h.open(t, "b")
	foreign := h
	foreign.Runtime.ClusterID = h.Runtime.ClusterID + "-other"
	abroad := foreign.open(t, "a")
	var mine []providers.CreateRequest
	for range 3 {
		mine = append(mine, b.request(t, "px"))
		b.create(t, mine[len(mine)-1])
	}
	theirs, far := other.request(t, "px"), abroad.request(t, "px")
	other.create(t, theirs)
	abroad.create(t, far)
	for _, req := range mine {
		b.runs(t, refOf(req))
	}
	other.runs(t, refOf(theirs))
	abroad.runs(t, refOf(far))
	listed := b.listed(t)
	for _, req := range mine {
		if listed[req.Owner.UID] != 1 {
			t.Errorf("%s is listed %d times, want once", req.Name, listed[req.Owner.UID])
		}
	}
	if listed[theirs.Owner.UID] != 0 || listed[far.Owner.UID] != 0 {
		t.Error("instances of another class or cluster are listed")
	}
}

func restart(t *testing.T, h Harness) {
	req := func() providers.CreateRequest {
		before := h.open(t, "a")
		req := before.request(t, "px")
		before.create(t, req)
		return req
	}()
	after := h.open(t, "a")
	if i := after.runs(t, refOf(req)); i.Owner != req.Owner {
		t.Errorf("owner %+v, want %+v", i.Owner, req.Owner)
	}
	if _, err := after.Create(t.Context(), req); err != nil && !providers.IsAlreadyExists(err) {
		t.Errorf("create again: got %v, want nil or AlreadyExists", err)
	}
	if n := after.listed(t)[req.Owner.UID]; n != 1 {
		t.Errorf("listed %d times, want once", n)
	}
}

func cancelled(t *testing.T, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	b.runs(t, refOf(req))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Get(ctx, refOf(req)); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("get: got %v, want Unavailable", err)
	}
	if _, err := b.List(ctx); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("list: got %v, want Unavailable", err)
	}
}

func closed(t *testing.T, h Harness) {
	p, err := h.Factory.Open(t.Context(), h.Class("a"), h.Runtime)
	if err != nil {
		t.Fatal(err)
	}
	req := bench{h, p}.request(t, "px")
	if err := p.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	// It may answer or not, but an instance that it cannot look for is not NotFound unless that is the truth, which it is here.
	_, err = p.Get(t.Context(), providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone})
	if reason := providers.ReasonOf(err); reason != providers.NotFound && reason != providers.Unavailable {
		t.Errorf("get: got %v, want NotFound or Unavailable", err)
	}
}

func fieldOf(err error) string {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return e.Field
	}
	return ""
}
