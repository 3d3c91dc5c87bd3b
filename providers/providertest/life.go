package providertest

import (
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// clockSkew is how far the provider's clock may be from the operator's; garbage collection leaves younger instances
	// than 30 minutes alone.
	clockSkew = 10 * time.Minute
	// maxMessages is how many messages one state may go through; more look like a count or a time.
	maxMessages = 5
	// crowd is how many instances are made at the same time.
	crowd = 8
)

func unknownIsNotFound(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "nobody")
	for range 3 {
		_, err := b.Get(t.Context(), refOf(req))
		wants(t, "get", err, providers.NotFound)
	}
	wants(t, "delete", b.Delete(t.Context(), refOf(req)), accepted, providers.NotFound)
	if n := b.listed(t)[req.Owner.UID]; n != 0 {
		t.Errorf("listed %d times", n)
	}
}

func lifeOfAnInstance(t testing.TB, h Harness) {
	b := h.open(t, "a")
	zone := ""
	if len(h.Zones) > 0 {
		zone = h.Zones[len(h.Zones)-1]
	}
	req := b.requestIn(t, "px", zone)
	asked := req
	asked.Spec, asked.Labels = *req.Spec.DeepCopy(), map[string]string{"tier": "test"}
	start := h.Runtime.Clock.Now()
	b.create(t, req)
	if !reflect.DeepEqual(req, asked) {
		t.Errorf("the request was changed: %s", differences(asked, req))
	}

	first, missed := b.appears(t, refOf(req))
	if timing := providers.TimingOf(h.Factory); missed > timing.Settle-timing.Window {
		t.Errorf("Get missed the instance for %v: Settle %v must be at least Window %v and that", missed, timing.Settle, timing.Window)
	}
	if wrong := differences(askedFor(req), askedOf(first)); wrong != "" {
		t.Errorf("what was asked for and what Get says: %s", wrong)
	}
	if first.ID == "" {
		t.Errorf("the id is not known: %s", describe(first))
	}
	if !strings.Contains(first.ProviderID, "://") {
		t.Errorf("got ProviderID %q, want one such as cloud://place/name", first.ProviderID)
	}
	if first.CreatedAt.Before(start.Add(-clockSkew)) || first.CreatedAt.After(h.Runtime.Clock.Now().Add(clockSkew)) {
		t.Errorf("created at %v, want about %v", first.CreatedAt, start)
	}

	running := b.runs(t, refOf(req))
	if wrong := differences(identityOf(first), identityOf(running)); wrong != "" {
		t.Errorf("the identity changes while it starts: %s", wrong)
	}
	b.listsOnce(t, req.Owner)
	anywhere := refOf(req)
	anywhere.Zone = ""
	if found, err := b.Get(t.Context(), anywhere); providers.ReasonOf(err) != providers.Unavailable && (err != nil || found.ID != first.ID) {
		t.Errorf("get without a place: got %s; want the instance or Unavailable", outcome(found, err))
	}
}

func namesOfFullLength(t testing.TB, h Harness) {
	b := h.open(t, "a")
	long := b.request(t, longName)
	dotted := b.request(t, "a.b.c")
	// The longest name that the contract promises; InstanceName happens to make shorter ones.
	full := b.request(t, "px")
	full.Name += strings.Repeat("x", 63-len(full.Name))
	for _, req := range []providers.CreateRequest{long, dotted, full} {
		b.create(t, req)
	}
	for _, req := range []providers.CreateRequest{long, dotted, full} {
		if wrong := differences(askedFor(req), askedOf(b.runs(t, refOf(req)))); wrong != "" {
			t.Errorf("what was asked for and what Get says: %s", wrong)
		}
	}
}

func messagesAreStable(t testing.TB, h Harness) {
	b := h.open(t, "a")
	req := b.request(t, "px")
	b.create(t, req)
	said := map[providers.State]map[string]bool{}
	look := func() (state providers.State) {
		i, err := b.Get(t.Context(), refOf(req))
		if err != nil {
			return ""
		}
		if said[i.State] == nil {
			said[i.State] = map[string]bool{}
		}
		said[i.State][i.Message] = true
		for _, id := range append([]string{i.Name, i.ID, i.ProviderID, string(i.Owner.UID)}, i.Addresses...) {
			if id != "" && strings.Contains(i.Message, id) {
				t.Errorf("the message %q contains %s, which differs between instances", i.Message, id)
			}
		}
		return i.State
	}
	b.eventually(t, req.Name+" runs", func() bool { return look() == providers.StateRunning })
	said[providers.StateRunning] = nil
	for range maxMessages {
		b.Tick()
		look()
	}
	if n := len(said[providers.StateRunning]); n != 1 {
		t.Errorf("%d messages of an instance to which nothing happens, want 1", n)
	}
	for state, messages := range said {
		if len(messages) > maxMessages {
			t.Errorf("%d messages of state %s, want at most %d: each change is a write", len(messages), state, maxMessages)
		}
	}
}

func manyAtOnce(t testing.TB, h Harness) {
	b := h.open(t, "a")
	reqs := make([]providers.CreateRequest, crowd)
	for n := range reqs {
		reqs[n] = b.request(t, fmt.Sprintf("px-%d", n))
		b.clearAfter(t, reqs[n])
	}
	var group sync.WaitGroup
	for _, req := range reqs {
		group.Go(func() {
			_, err := b.Create(t.Context(), req)
			wants(t, "create", err, accepted, providers.AlreadyExists)
			if _, err := b.Get(t.Context(), refOf(req)); err != nil {
				wants(t, "get", err, providers.NotFound)
			}
			if _, err := b.List(t.Context()); err != nil {
				t.Errorf("list: %v", err)
			}
		})
	}
	group.Wait()
	ids, providerIDs, addresses := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, req := range reqs {
		i := b.runs(t, refOf(req))
		if wrong := differences(askedFor(req), askedOf(i)); wrong != "" {
			t.Errorf("what was asked for and what Get says: %s", wrong)
		}
		ids[i.ID], providerIDs[i.ProviderID], addresses[i.Addresses[0]] = true, true, true
	}
	if len(ids) != crowd || len(providerIDs) != crowd {
		t.Errorf("%d instances have %d ids and %d provider ids", crowd, len(ids), len(providerIDs))
	}
}

// anotherProviderSeesAll is a restart, and a class that was changed: then the next Provider is open before the last is
// closed.
func anotherProviderSeesAll(t testing.TB, h Harness) {
	before := h.open(t, "a")
	req := before.request(t, "px")
	before.create(t, req)
	first := before.runs(t, refOf(req))
	after := h.open(t, "a")
	if wrong := differences(identityOf(first), identityOf(after.runs(t, refOf(req)))); wrong != "" {
		t.Errorf("what one Provider sees and what the next one does: %s", wrong)
	}
	_, err := after.Create(t.Context(), req)
	wants(t, "create again", err, accepted, providers.AlreadyExists)
	after.listsOnce(t, req.Owner)
	// A class that was removed by force and made anew: what its predecessor left is its own, or nobody would ever look for it.
	namesake := h
	namesake.Class = func(name string) *v1alpha1.ProviderClass {
		class := h.Class(name)
		class.UID, class.Generation = "another-uid", class.Generation+1
		return class
	}
	namesake.open(t, "a").listsOnce(t, req.Owner)
	after.delete(t, first.Ref)
	before.goes(t, refOf(req))
}
