package providertest

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"crawl.example.com/egress-proxies-operator/providers"
)

func createIsIdempotent(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	_, err := b.Create(t.Context(), req)
	wants(t, "second create", err, accepted, providers.AlreadyExists)
	first := b.runs(t, refOf(req))
	_, err = b.Create(t.Context(), req)
	wants(t, "create of what runs", err, accepted, providers.AlreadyExists)
	b.stays(t, first)
	b.listsOnce(t, req.Owner)
}

func createAtTheSameTime(t testing.TB, h Harness) {
	b := h.open(t, "a")
	// Two leaders, each with a Provider of its own.
	others := []bench{b, h.open(t, "a")}
	req := b.request(t, "px")
	b.clearAfter(t, req)
	var group sync.WaitGroup
	errs := make([]error, crowd)
	for n := range errs {
		group.Go(func() { _, errs[n] = others[n%len(others)].Create(t.Context(), req) })
	}
	group.Wait()
	created := 0
	for _, err := range errs {
		wants(t, "create", err, accepted, providers.AlreadyExists)
		if err == nil {
			created++
		}
	}
	if created == 0 {
		t.Error("every call found that another one had created it")
	}
	first := b.runs(t, refOf(req))
	b.stays(t, first)
	b.listsOnce(t, req.Owner)
}

func createForAnotherOwnerIsConflict(t testing.TB, h Harness) {
	b := h.open(t, "a")
	theirs := b.request(t, "px")
	b.create(t, theirs)
	first := b.runs(t, refOf(theirs))
	ours := b.request(t, "px")
	ours.Name, ours.Zone = theirs.Name, theirs.Zone
	_, err := b.Create(t.Context(), ours)
	wants(t, "create", err, providers.Conflict)
	b.stays(t, first)
	if n := b.listed(t)[ours.Owner.UID]; n != 0 {
		t.Errorf("listed %d times for the owner who was refused", n)
	}
}

// createRevivesNothing: a call that comes while the predecessor goes away must neither keep nor restart it.
func createRevivesNothing(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	first := b.runs(t, refOf(req))
	b.delete(t, first.Ref)
	_, err := b.Create(t.Context(), req)
	wants(t, "create while the predecessor goes", err, accepted, providers.AlreadyExists, providers.Unavailable, providers.Capacity, providers.RateLimited)
	b.eventually(t, "the predecessor is gone", func() bool {
		i, err := b.Get(t.Context(), refOf(req))
		if err != nil && !providers.IsNotFound(err) {
			t.Fatalf("get: %v", err)
		}
		return err != nil || i.ID != first.ID
	})
}

func longUserDataIsInvalid(t testing.TB, h Harness) {
	if h.UserDataLimit == 0 {
		t.Skip("the harness has no UserDataLimit")
	}
	b := h.open(t, "a")
	long, full := b.request(t, "long"), b.request(t, "full")
	padding := append(slices.Clone(h.UserData), "\n#"...)
	padding = append(padding, strings.Repeat("x", h.UserDataLimit)...)
	long.UserData, full.UserData = padding[:h.UserDataLimit+1], padding[:h.UserDataLimit]
	b.clearAfter(t, long)
	_, err := b.Create(t.Context(), long)
	wants(t, "create with a byte too much", err, providers.InvalidSpec)
	if got := fieldOf(err); got != "spec.cloudInit" {
		t.Errorf("got field %q, want spec.cloudInit", got)
	}
	b.create(t, full)
	b.runs(t, refOf(full))
	if _, err := b.Get(t.Context(), refOf(long)); !providers.IsNotFound(err) {
		t.Errorf("get what was refused: got %v, want NotFound", err)
	}
}

// missingThingIsNotNotFound: NotFound is said of instances only. Of Create it would be believed as little as of a proxy's 404.
func missingThingIsNotNotFound(t testing.TB, h Harness) {
	if len(h.Missing) == 0 {
		t.Skip("the harness has no Missing")
	}
	b := h.open(t, "a")
	for _, missing := range slices.Sorted(maps.Keys(h.Missing)) {
		req := b.request(t, "px")
		h.Missing[missing](&req)
		_, err := b.Create(t.Context(), req)
		if wants(t, "create without "+missing, err, providers.InvalidSpec, providers.Capacity, providers.Unavailable); err == nil {
			b.clearAfter(t, req)
		}
	}
}

func unmarkedIsLeftAlone(t testing.TB, h Harness) {
	if h.Foreign == nil {
		t.Skip("the harness has no Foreign")
	}
	b := h.open(t, "a")
	req := b.request(t, "px")
	h.Foreign(t, refOf(req))
	i, _ := b.appears(t, refOf(req))
	if i.Owner.UID == req.Owner.UID || i.Owner.ClusterID == req.Owner.ClusterID {
		t.Errorf("got an owner that nobody wrote: %s", describe(i))
	}
	_, err := b.Create(t.Context(), req)
	wants(t, "create", err, providers.Conflict)
	wants(t, "delete", b.Delete(t.Context(), refOf(req)), providers.Conflict, providers.NotFound)
	wants(t, "delete by id", b.Delete(t.Context(), i.Ref), providers.Conflict, providers.NotFound)
	for _, other := range b.list(t) {
		if other.Name == req.Name {
			t.Errorf("listed: %s", describe(other))
		}
	}
	b.stays(t, i)
}
