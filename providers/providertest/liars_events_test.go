package providertest

import (
	"context"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

// hears makes a case of a Provider whose events are altered on their way, and come late.
func hears(who string, alter func(l *liar, owner providers.Owner) []providers.Owner) liarCase {
	return lies("EventsNameOwners", who, func(l *liar) {
		told := make(chan ownerEvent, 1000)
		go func() {
			for {
				select {
				case e := <-l.Provider.(providers.Eventer).Events():
					<-time.After(eventPause / 2)
					for _, owner := range alter(l, e.Object) {
						told <- ownerEvent{Object: owner}
					}
				case <-l.over:
					return
				}
			}
		}()
		l.events = func() <-chan ownerEvent { return told }
	})
}

var eventLiars = []liarCase{
	lies("EventsNameOwners", "has a channel for each call", func(l *liar) {
		l.events = func() <-chan ownerEvent { return make(chan ownerEvent) }
	}),
	lies("EventsNameOwners", "never sends one", func(l *liar) {
		silence := make(chan ownerEvent)
		l.events = func() <-chan ownerEvent { return silence }
	}),
	lies("EventsNameOwners", "waits for a reader", func(l *liar) {
		events := make(chan ownerEvent)
		l.events = func() <-chan ownerEvent { return events }
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			select {
			case events <- ownerEvent{Object: req.Owner}:
			case <-l.over:
			}
			return l.Provider.Create(ctx, req)
		}
	}),
	hears("wakes nobody", func(*liar, providers.Owner) []providers.Owner { return []providers.Owner{{}} }),
	hears("knows a name only", func(_ *liar, owner providers.Owner) []providers.Owner {
		return []providers.Owner{{Name: owner.Name}}
	}),
	hears("leaves the cluster out", func(_ *liar, owner providers.Owner) []providers.Owner {
		owner.ClusterID = ""
		return []providers.Owner{owner}
	}),
	hears("wakes strangers too", func(_ *liar, owner providers.Owner) []providers.Owner {
		stranger := owner
		stranger.UID = "stranger"
		return []providers.Owner{owner, stranger}
	}),
	hears("wakes the first one only", func(l *liar, owner providers.Owner) []providers.Owner {
		if owner.Name == "second" {
			return nil
		}
		return []providers.Owner{owner}
	}),
}
