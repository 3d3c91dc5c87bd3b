package proxylease

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// pair are a leader and a replica that asks it.
func (f *fleet) pair(options ...coreOption) (leader, follower *core) {
	f.t.Helper()
	peers, err := (&net.ListenConfig{}).Listen(f.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	leader = f.start(append(options, answering(peers))...)
	follower = f.start(append(options, asking(peers.Addr().String()))...)
	eventually(f.t, "the leader answers the other replica", func() string {
		follower.writes.take()
		// Until the leader can be told of a release, it learns of one by its watch, and may refuse the next call.
		status, body := follower.call(http.MethodPost, "/v1/leases", `{"ttlSeconds":60}`)
		writes := follower.writes.take()
		var lease httpLease
		if err := json.Unmarshal(body, &lease); status != 201 || err != nil {
			return fmt.Sprint(status, string(body))
		}
		follower.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, "")
		if len(writes) > 0 {
			return fmt.Sprint(writes)
		}
		return ""
	})
	leader.writes.take()
	follower.writes.take()
	return leader, follower
}

// A call to a replica that does not lead is one write, the leader's; the answers are those of the leader.
func TestAReplicaAsksTheLeader(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(2))
	leader, follower := f.pair()

	lease := follower.acquire(201, `{"ttlSeconds":600}`, keyHeader, "k")
	if l, o := leader.writes.take(), follower.writes.take(); !maps.Equal(l, map[string]int{"POST proxyleases": 1}) || len(o) > 0 {
		t.Errorf("the leader wrote %v, the other %v", l, o)
	}
	for _, c := range []*core{follower, leader} {
		if again := c.acquire(200, `{"ttlSeconds":600}`, keyHeader, "k"); again.LeaseID != lease.LeaseID {
			t.Error("the key has another lease")
		}
	}
	follower.refused(422, wire.CodeKeyReused, http.MethodPost, "/v1/leases", `{"ttlSeconds":60}`, keyHeader, "k")
	full := follower.acquire(201, `{}`)
	for _, c := range []*core{follower, leader} {
		if p := c.refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", `{}`); p.Reason != v1alpha1.ReasonAtCapacity {
			t.Errorf("%+v", p)
		}
	}

	// Who waits is in the leader's queue, and leaves it when its caller goes.
	ctx, disconnect := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, follower.url+"/v1/leases", strings.NewReader(`{"waitSeconds":60}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		if answer, err := http.DefaultClient.Do(r); err == nil {
			_ = answer.Body.Close()
		}
	}()
	waits := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " wait"), func() string {
			if m := leader.allocator.Waiting(); m != n {
				return fmt.Sprint(m)
			}
			return ""
		})
	}
	waits(1)
	disconnect()
	<-gone
	waits(0)
	second := make(chan httpLease, 1)
	go func() { second <- follower.acquire(201, `{"waitSeconds":60}`) }()
	waits(1)
	follower.call(http.MethodDelete, "/v1/leases/"+full.LeaseID, "")
	if got := <-second; got.Proxy.ID != f.ns+"/a" {
		t.Errorf("got %+v", got)
	}
	if n := len(f.leases()); n != 2 {
		t.Errorf("%d leases are stored", n)
	}
}

// A proxy that was given back by one call is there for the next, and one that was reported is not, whichever replicas are called.
func TestWhatACallHasChangedTheNextFindsAtEveryReplica(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	leader, follower := f.pair()
	cores := []*core{leader, follower}
	for i := range 40 {
		at := func(bit int) *core { return cores[i>>bit&1] }
		mode := []v1alpha1.LeaseMode{v1alpha1.LeaseShared, v1alpha1.LeaseExclusive}[i>>2&1]
		lease := at(0).acquire(201, fmt.Sprintf(`{"mode":%q}`, mode))
		if status, body := at(1).call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, ""); status != 204 {
			t.Fatalf("%d %s", status, body)
		}
	}
	for i := range 20 {
		lease := cores[i&1].acquire(201, fmt.Sprintf(`{"targets":["t%d.example"]}`, i))
		report := fmt.Sprintf(`{"result":"rate_limited","target":"t%d.example"}`, i)
		if status, body := follower.call(http.MethodPost, "/v1/leases/"+lease.LeaseID+"/report", report); status != 204 {
			t.Fatalf("%d %s", status, body)
		}
		follower.call(http.MethodDelete, "/v1/leases/"+lease.LeaseID, "")
		again := fmt.Sprintf(`{"targets":["t%d.example"]}`, i)
		if p := cores[i>>1&1].refused(503, wire.CodeNoProxy, http.MethodPost, "/v1/leases", again); p.Reason != v1alpha1.ReasonCooling {
			t.Errorf("%+v", p)
		}
	}
}

// A leader that hands over does not wait for the calls of other replicas, nor do they notice.
func TestH11_AHandOverIsNoticedByNobodyWhoWaits(t *testing.T) {
	f := newFleet(t)
	f.proxy("a", capacity(1))
	leader, follower := f.pair()
	held := follower.acquire(201, `{}`)
	waiting := make(chan httpLease, 1)
	go func() { waiting <- follower.acquire(201, `{"waitSeconds":60}`) }()
	eventually(t, "it waits", func() string {
		if n := leader.allocator.Waiting(); n != 1 {
			return fmt.Sprint(n)
		}
		return ""
	})
	began := time.Now()
	leader.stop()
	if took := time.Since(began); took > 8*time.Second { // it would wait for ten
		t.Errorf("the leader took %s to stop", took)
	}
	next := f.start()
	next.call(http.MethodDelete, "/v1/leases/"+held.LeaseID, "")
	if got := <-waiting; got.Proxy.ID != f.ns+"/a" {
		t.Errorf("got %+v", got)
	}
}

// When the leader cannot be asked, a replica goes on by objects at once, with the next leader too.
func TestH11_AReplicaWhoseLeaderIsGoneGoesOnByObjects(t *testing.T) {
	f := newFleet(t)
	f.proxy("a")
	leader, follower := f.pair()
	held := follower.acquire(201, `{"ttlSeconds":600}`, keyHeader, "held")
	leader.stop()
	waiting := make(chan httpLease, 1)
	go func() { waiting <- follower.acquire(201, `{"waitSeconds":60}`, keyHeader, "k") }()
	eventually(t, "its lease waits", func() string {
		if n := len(f.leases()); n != 2 {
			return fmt.Sprint(n, " leases")
		}
		return ""
	})
	next := f.start()
	lease := <-waiting
	if again := next.repeated(`{"waitSeconds":60}`, "k"); again.LeaseID != lease.LeaseID {
		t.Error("the key has another lease")
	}
	if again := follower.repeated(`{"ttlSeconds":600}`, "held"); again.LeaseID != held.LeaseID {
		t.Error("the lease of the former leader is another")
	}
	if n := len(f.leases()); n != 2 {
		t.Errorf("%d leases are stored", n)
	}
}
