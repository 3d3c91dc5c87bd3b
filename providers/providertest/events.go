package providertest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// eventPause is how long an event may be under way after each tick, in real time: what sends it may run beside.
	eventPause = 20 * time.Millisecond
	// eventRounds is how many more ticks are waited for events of strangers.
	eventRounds = 10
)

// eventsNameOwners: those who are waited for get an event, and nobody else does.
func eventsNameOwners(t testing.TB, h Harness) {
	b := h.open(t, "a")
	eventer, ok := providers.Find[providers.Eventer](b.bare)
	if !ok {
		t.Skip("the provider sends no events")
	}
	channel := func() (<-chan event.TypedGenericEvent[providers.Owner], error) { return eventer.Events(), nil }
	events, err := within(b.witness(), "Events", channel)
	if again, _ := within(b.witness(), "Events", channel); err != nil || events == nil || again != events {
		t.Fatal("Events must always return one channel")
	}
	known := map[providers.Owner]bool{}
	life := func(proxy string) providers.Owner {
		req := b.request(t, proxy)
		known[req.Owner] = true
		b.create(t, req)
		b.delete(t, b.runs(t, refOf(req)).Ref)
		b.goes(t, refOf(req))
		return req.Owner
	}
	// Nobody reads: the provider must go on nevertheless. These events may be lost.
	life("unread")
	heard := listen(events)
	defer heard.stop()
	awaited := []providers.Owner{life("first"), life("second")}
	for range b.Patience {
		if heard.all(awaited) {
			break
		}
		b.Tick()
		<-time.After(eventPause)
	}
	for range eventRounds {
		b.Tick()
		<-time.After(eventPause)
	}
	owners := heard.stop()
	for _, owner := range awaited {
		if !owners[owner] {
			t.Errorf("no event of %+v, who was created, ran and was deleted", owner)
		}
	}
	for owner := range owners {
		if !known[owner] {
			t.Errorf("an event of %+v, who owns nothing%s", owner, nearest(known, owner))
		}
	}
}

// nearest tells in what an owner differs from one that there is.
func nearest(known map[providers.Owner]bool, owner providers.Owner) string {
	for k := range known {
		if k.Name == owner.Name || k.UID == owner.UID {
			return fmt.Sprintf("; one who does differs by %s", differences(k, owner))
		}
	}
	return ""
}

// listener reads events until it is stopped.
type listener struct {
	quit, done chan struct{}
	stop       func() map[providers.Owner]bool

	mu     sync.Mutex
	owners map[providers.Owner]bool
}

func listen(events <-chan event.TypedGenericEvent[providers.Owner]) *listener {
	l := &listener{quit: make(chan struct{}), done: make(chan struct{}), owners: map[providers.Owner]bool{}}
	l.stop = sync.OnceValue(func() map[providers.Owner]bool {
		close(l.quit)
		<-l.done
		return l.owners
	})
	go func() {
		defer close(l.done)
		for {
			select {
			case <-l.quit:
				return
			case e, open := <-events:
				if !open {
					return
				}
				l.mu.Lock()
				l.owners[e.Object] = true
				l.mu.Unlock()
			}
		}
	}()
	return l
}

func (l *listener) all(owners []providers.Owner) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, owner := range owners {
		if !l.owners[owner] {
			return false
		}
	}
	return true
}
