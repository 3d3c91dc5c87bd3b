package providertest

import (
	"context"
	"slices"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

// replant puts an instance into the cloud as it is, whatever has its name already.
func (l *liar) replant(i providers.Instance) { l.cloud.Plant(l.class, i) }

// made is what a request asks for.
func (l *liar) made(req providers.CreateRequest, id string) providers.Instance {
	return providers.Instance{
		Ref:   providers.Ref{Namespace: req.Owner.Namespace, Name: req.Name, Zone: req.Zone, ID: id, ProviderID: "fake://" + req.Name},
		Owner: req.Owner, Hash: req.Hash, CreatedAt: l.clock.Now(), State: providers.StateRunning, Addresses: []string{"10.0.0.1"},
	}
}

var createLiars = []liarCase{
	lies("CreateIsIdempotent", "begins anew", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			l.cloud.Remove(req.Name)
			return l.Provider.Create(ctx, req)
		}
	}),
	answers("CreateIsIdempotent", "does not know its own", providers.AlreadyExists, said(providers.Conflict, "")),
	answers("CreateIsIdempotent", "says what Get says", providers.AlreadyExists, said(providers.NotFound, "")),
	lies("CreateAtTheSameTime", "looks and then creates", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			if slices.ContainsFunc(l.cloud.Instances(), func(i providers.Instance) bool { return i.Name == req.Name }) {
				return providers.Receipt{}, said(providers.AlreadyExists, "")
			}
			// Meanwhile the others look.
			<-time.After(time.Second)
			l.replant(l.made(req, ""))
			return providers.Receipt{}, nil
		}
	}),
	lies("CreateAtTheSameTime", "thinks that it was somebody else", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			_, _ = l.Provider.Create(ctx, req)
			return providers.Receipt{}, said(providers.AlreadyExists, "")
		}
	}),
	answers("CreateForAnotherOwnerIsConflict", "adopts", providers.Conflict, said(providers.AlreadyExists, "")),
	lies("CreateForAnotherOwnerIsConflict", "takes over", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			receipt, err := l.Provider.Create(ctx, req)
			if providers.ReasonOf(err) == providers.Conflict {
				l.cloud.Remove(req.Name)
				_, _ = l.Provider.Create(ctx, req)
			}
			return receipt, err
		}
	}),
	lies("CreateRevivesNothing", "undoes a deletion", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			for _, i := range l.cloud.Instances() {
				if i.Name == req.Name && i.State == providers.StateTerminating {
					l.cloud.Remove(req.Name)
					i.State = providers.StateRunning
					l.replant(i)
				}
			}
			return l.Provider.Create(ctx, req)
		}
	}),
	lies("CreateRevivesNothing", "takes a predecessor for a stranger", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			receipt, err := l.Provider.Create(ctx, req)
			if providers.IsAlreadyExists(err) {
				err = said(providers.Conflict, "")
			}
			return receipt, err
		}
	}),
	lies("LongUserDataIsInvalid", "cuts user data", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			req.UserData = req.UserData[:min(len(req.UserData), stageUserData)]
			return l.Provider.Create(ctx, req)
		}
	}),
	answers("LongUserDataIsInvalid", "waits for shorter user data", providers.InvalidSpec, said(providers.Capacity, "")),
	lies("MissingThingIsNotNotFound", "passes the code on", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			if req.Zone == "z" {
				return providers.Receipt{}, said(providers.NotFound, "")
			}
			return l.Provider.Create(ctx, req)
		}
	}),
	lies("MissingThingIsNotNotFound", "creates it somewhere else", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			if req.Zone == "z" {
				req.Zone = "a"
			}
			return l.Provider.Create(ctx, req)
		}
	}),
	answers("UnmarkedIsLeftAlone", "adopts", providers.Conflict, said(providers.AlreadyExists, "")),
	lies("UnmarkedIsLeftAlone", "deletes by name", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			err := l.Provider.Delete(ctx, ref)
			if providers.ReasonOf(err) == providers.Conflict {
				l.cloud.Remove(ref.Name)
			}
			return err
		}
	}),
	lies("UnmarkedIsLeftAlone", "does not see strangers", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			if err == nil && i.Owner.UID == "" {
				return providers.Instance{}, said(providers.NotFound, "")
			}
			return i, err
		}
	}),
	lies("UnmarkedIsLeftAlone", "lists strangers", func(l *liar) {
		l.list = func(context.Context) ([]providers.Instance, error) { return l.cloud.Instances(), nil }
	}),
}

var deleteLiars = []liarCase{
	lies("DeleteIsIdempotent", "deletes once", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			if i, err := l.Provider.Get(ctx, ref); err == nil && i.State == providers.StateTerminating {
				return said(providers.Unavailable, "busy")
			}
			return l.Provider.Delete(ctx, ref)
		}
	}),
	answers("DeleteIsIdempotent", "does not forget", providers.NotFound, said(providers.Conflict, "")),
	lies("DeleteWhileStarting", "waits for the start", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			if i, err := l.Provider.Get(ctx, ref); err == nil && i.State == providers.StatePending {
				return said(providers.Unavailable, "busy")
			}
			return l.Provider.Delete(ctx, ref)
		}
	}),
	lies("DeleteSparesOtherIncarnations", "deletes by name", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			ref.ID = ""
			return l.Provider.Delete(ctx, ref)
		}
	}),
	lies("DeleteSparesOtherClusters", "deletes by name", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			if providers.ReasonOf(l.Provider.Delete(ctx, ref)) == providers.Conflict {
				l.cloud.Remove(ref.Name)
			}
			return nil
		}
	}),
	lies("GoneMeansGone", "is ahead of its time", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			if err == nil && i.State == providers.StateTerminating {
				return providers.Instance{}, said(providers.NotFound, "")
			}
			return i, err
		}
	}),
	lies("GoneMeansGone", "never goes", func(l *liar) {
		l.delete = func(context.Context, providers.Ref) error { return nil }
	}),
	lies("GoneMeansGone", "is undecided", func(l *liar) {
		n := 0
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			if n++; err == nil && i.State == providers.StateTerminating && n%2 == 0 {
				i.State = providers.StateRunning
			}
			return i, err
		}
	}),
	alters("NextIncarnationIsAnother", "has the name for an id", func(l *liar, i *providers.Instance) {
		i.ID = i.Name
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			ref.ID = ""
			return l.Provider.Delete(ctx, ref)
		}
	}),
	lies("NextIncarnationIsAnother", "looks for the id", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			if err == nil && ref.ID != "" && ref.ID != i.ID {
				return providers.Instance{}, said(providers.NotFound, "")
			}
			return i, err
		}
	}),
	lies("NextIncarnationIsAnother", "remembers the first hash", func(l *liar) {
		hashes := map[string]string{}
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			if hashes[req.Name] == "" {
				hashes[req.Name] = req.Hash
			}
			req.Hash = hashes[req.Name]
			return l.Provider.Create(ctx, req)
		}
	}),
	lies("NextIncarnationIsAnother", "deletes by name", func(l *liar) {
		l.delete = func(ctx context.Context, ref providers.Ref) error {
			ref.ID = ""
			return l.Provider.Delete(ctx, ref)
		}
	}),
}

// listed makes a case of a Provider whose list is not what it should be.
func listed(by, who string, change func(*liar, []providers.Instance) []providers.Instance) liarCase {
	return lies(by, who, func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			all, err := honest(ctx)
			if err != nil {
				return nil, err
			}
			return change(l, all), nil
		}
	})
}

var listLiars = []liarCase{
	listed("ListIsComplete", "reads one page", func(_ *liar, all []providers.Instance) []providers.Instance {
		return all[:min(len(all), 3)]
	}),
	listed("ListIsComplete", "reads one zone", func(_ *liar, all []providers.Instance) []providers.Instance {
		return slices.DeleteFunc(all, func(i providers.Instance) bool { return i.Zone == "c" })
	}),
	listed("ListIsComplete", "reads a page twice", func(_ *liar, all []providers.Instance) []providers.Instance {
		return append(all, all...)
	}),
	listed("ListIsComplete", "knows less than Get", func(_ *liar, all []providers.Instance) []providers.Instance {
		for n := range all {
			all[n].Hash = ""
		}
		return all
	}),
	listed("ListHasNothingElse", "lists the account", func(l *liar, _ []providers.Instance) []providers.Instance {
		return l.cloud.Instances()
	}),
	listed("ListHasWhatIsBeingDeleted", "lists what runs", func(_ *liar, all []providers.Instance) []providers.Instance {
		return slices.DeleteFunc(all, func(i providers.Instance) bool { return i.State == providers.StateTerminating })
	}),
	listed("ListedReferenceIsEnough", "lists display names", func(_ *liar, all []providers.Instance) []providers.Instance {
		for n := range all {
			all[n].Name = all[n].Owner.Name
		}
		return all
	}),
	lies("PartialListIsAnError", "lists what it gets", func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			if l.short == "" {
				return honest(ctx)
			}
			return l.cloud.Instances()[:2], nil
		}
	}),
	lies("PartialListIsAnError", "reads no warnings", func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			if l.short != zoneIsMissing {
				return honest(ctx)
			}
			l.shown += 2
			return l.cloud.Instances()[:2], nil
		}
	}),
	lies("PartialListIsAnError", "takes a later failure for the end", func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			if l.short != pageFails {
				return honest(ctx)
			}
			l.shown += 2
			return l.cloud.Instances()[:2], nil
		}
	}),
	lies("PartialListIsAnError", "is shown nothing, as by a harness that hides all", func(l *liar) {
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			if l.short != "" {
				return nil, said(providers.Unavailable, "")
			}
			return l.Provider.List(ctx)
		}
	}),
	lies("PartialListIsAnError", "lists what it gets beside the error", func(l *liar) {
		honest := l.list
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			all, err := honest(ctx)
			if err != nil {
				all = l.cloud.Instances()[:2]
			}
			return all, err
		}
	}),
}
