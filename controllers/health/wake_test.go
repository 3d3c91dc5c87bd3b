package health

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func name(s string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: s} }

func TestWakeQueueOrder(t *testing.T) {
	q := newWakeQueue()
	q.add(name("a"), false)
	q.add(name("b"), false)
	q.add(name("a"), false)
	q.add(name("c"), true)
	q.add(name("b"), true)
	q.add(name("b"), false)
	q.add(name("c"), true)
	var got []string
	for {
		key, ok := q.pop()
		if !ok {
			break
		}
		got = append(got, key.Name)
	}
	if fmt.Sprint(got) != "[c b a]" || !q.empty() {
		t.Errorf("got %v", got)
	}
	q.add(name("b"), false)
	if key, ok := q.pop(); !ok || key.Name != "b" {
		t.Errorf("a name that was taken is not queued again: %v %v", key, ok)
	}
	if _, ok := q.pop(); ok {
		t.Error("named twice")
	}
}

// Nobody reads for an hour in which three proxies change often: afterwards each is named once.
func TestE33_WakesAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newWakeQueue()
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			q.run(ctx)
		}()
		for range 60 {
			for _, n := range []string{"a", "b", "c"} {
				q.add(name(n), n == "c")
			}
			<-time.After(time.Minute)
		}
		seen := map[string]int{}
		for range 3 {
			seen[(<-q.out).Object.Name]++
		}
		// The one that was being handed out when it changed again is named twice.
		select {
		case ev := <-q.out:
			seen[ev.Object.Name]++
		case <-time.After(time.Minute):
		}
		select {
		case ev := <-q.out:
			t.Errorf("too many: %s", ev.Object)
		case <-time.After(time.Minute):
		}
		if len(seen) != 3 {
			t.Errorf("got %v", seen)
		}
		cancel()
		<-done
	})
}

func TestStalls(t *testing.T) {
	var s stalls
	start := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s.note(start, 300*time.Millisecond)
	if s.during(start.Add(-time.Second), time.Second) {
		t.Error("a short delay excuses a timeout")
	}
	s.note(start, 700*time.Millisecond)
	if !s.during(start.Add(-time.Second), time.Second) || s.during(start.Add(time.Second), time.Second) {
		t.Error("a delay must excuse the probes it fell into, and no others")
	}
	if s.during(start.Add(-time.Second), 10*time.Second) {
		t.Error("a delay of 0.7 s excuses a timeout of 10 s")
	}
	for range 10 * maxStalls {
		s.note(start, time.Second)
	}
	if len(s.seen) != maxStalls {
		t.Errorf("remembers %d", len(s.seen))
	}
}
