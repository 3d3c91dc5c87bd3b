package providertest

import (
	"sync"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
)

func deleteIsIdempotent(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	// Several at once, as of an old and a new leader.
	var group sync.WaitGroup
	for range crowd {
		group.Go(func() { wants(t, "delete", b.Delete(t.Context(), first.Ref), accepted, providers.NotFound) })
	}
	group.Wait()
	b.eventually(t, req.Name+" is gone", func() bool {
		wants(t, "delete again", b.Delete(t.Context(), first.Ref), accepted, providers.NotFound)
		_, err := b.Get(t.Context(), refOf(req))
		return providers.IsNotFound(err)
	})
	wants(t, "delete what is gone", b.Delete(t.Context(), first.Ref), accepted, providers.NotFound)
}

func deleteWhileStarting(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first, _ := b.appears(t, refOf(req))
	b.delete(t, first.Ref)
	b.goes(t, refOf(req))
}

func deleteSparesOtherIncarnations(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	wrong := first.Ref
	wrong.ID = "0"
	b.delete(t, wrong)
	b.stays(t, first)
}

// deleteSparesOtherClusters: what carries the mark of another cluster is nobody's to delete here.
func deleteSparesOtherClusters(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	abroad := h.abroad().open(t, "a")
	wants(t, "delete", abroad.Delete(t.Context(), refOf(req)), providers.Conflict, providers.NotFound)
	wants(t, "delete by id", abroad.Delete(t.Context(), first.Ref), providers.Conflict, providers.NotFound)
	b.stays(t, first)
}

// abroad is the same harness in another cluster.
func (h Harness) abroad() Harness {
	h.Runtime.ClusterID += "-other"
	return h
}

// goneMeansGone: NotFound is what the operator releases a Proxy on.
func goneMeansGone(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	b.delete(t, first.Ref)
	terminating := false
	b.eventually(t, req.Name+" is gone", func() bool {
		i, err := b.Get(t.Context(), first.Ref)
		switch {
		case providers.IsNotFound(err):
			return true
		case err != nil:
			t.Fatalf("get: %v", err)
		case i.ID != first.ID:
			t.Fatalf("another incarnation: %s", describe(i))
		case terminating && i.State != providers.StateTerminating:
			t.Errorf("state %s after Terminating", i.State)
		}
		terminating = terminating || i.State == providers.StateTerminating
		return false
	})
	for _, i := range b.list(t) {
		if i.ID == first.ID {
			t.Errorf("Get says NotFound, List says %s", describe(i))
		}
	}
	if h.Exists != nil && h.Exists(refOf(req)) {
		t.Error("Get says NotFound of what exists")
	}
	b.Tick()
	if _, err := b.Get(t.Context(), refOf(req)); !providers.IsNotFound(err) {
		t.Errorf("NotFound once, then %v", err)
	}
}

func nextIncarnationIsAnother(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	b.delete(t, first.Ref)
	b.goes(t, refOf(req))
	// What it is made from has changed meanwhile; that is why it is made anew.
	req.Hash = providers.InstanceHash(req.Owner.UID, &req.Spec, b.UserData, "changed")
	b.create(t, req)
	second := b.runs(t, refOf(req))
	if second.ID == first.ID {
		t.Error("two incarnations have one id")
	}
	if wrong := differences(askedFor(req), askedOf(second)); wrong != "" {
		t.Errorf("what was asked for and what Get says: %s", wrong)
	}
	if second.CreatedAt.Before(first.CreatedAt) {
		t.Errorf("created at %v, its predecessor at %v", second.CreatedAt, first.CreatedAt)
	}
	// An old reference is good for the name, and bad for a deletion.
	if i, err := b.Get(t.Context(), first.Ref); err != nil || i.ID != second.ID {
		t.Errorf("get by an old reference: got %s; want what has the name now", outcome(i, err))
	}
	b.delete(t, first.Ref)
	b.stays(t, second)
	b.listsOnce(t, req.Owner)
}
