package providertest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

var failureLiars = []liarCase{
	answers("UnreachableIsUnavailable", "takes silence for absence", providers.Unavailable, said(providers.NotFound, "")),
	answers("UnreachableIsUnavailable", "passes errors on", providers.Unavailable, errors.New("dial tcp: connection refused")),
	lies("UnreachableIsUnavailable", "lists nothing", func(l *liar) {
		l.list = func(ctx context.Context) ([]providers.Instance, error) {
			all, _ := l.Provider.List(ctx)
			return all, nil
		}
	}),
	lies("UnreachableIsUnavailable", "never recovers", func(l *liar) {
		down := false
		l.check = func(ctx context.Context) error {
			err := l.Provider.Check(ctx)
			if down = down || err != nil; down {
				return said(providers.Unavailable, "")
			}
			return nil
		}
	}),
	answers("RefusedCredentialsAreAuth", "takes no for silence", providers.Auth, said(providers.Unavailable, "")),
	answers("RefusedCredentialsAreAuth", "takes no for absence", providers.Auth, said(providers.NotFound, "")),
	answers("NoRoomIsCapacity", "blames the specification", providers.Capacity, providers.InvalidField("spec", "is too much")),
	answers("NoRoomIsCapacity", "calls it created", providers.Capacity, nil),
	answers("ThrottlingIsRateLimited", "calls it quota", providers.RateLimited, said(providers.Capacity, "")),
	answers("ThrottlingIsRateLimited", "forgets for how long", providers.RateLimited, said(providers.RateLimited, "")),
	answers("ThrottlingIsRateLimited", "knows better for how long", providers.RateLimited,
		&providers.Error{Reason: providers.RateLimited, RetryAfter: time.Second}),
	answers("CancelledCallIsUnavailable", "takes it for absence", providers.Unavailable, said(providers.NotFound, "")),
	answers("CancelledCallIsUnavailable", "passes errors on", providers.Unavailable, context.Canceled),
	lies("CancelledCallIsUnavailable", "does not listen", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			return l.Provider.Get(context.WithoutCancel(ctx), ref)
		}
	}),
	lies("HangingCallEndsWithItsContext", "does not listen", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			return l.Provider.Get(context.WithoutCancel(ctx), ref)
		}
	}),
	lies("ErrorsAreStable", "names the instance", func(l *liar) {
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			i, err := l.Provider.Get(ctx, ref)
			if err != nil {
				err = providers.NewError(providers.ReasonOf(err), "", fmt.Sprintf("there is no %s", ref.Name), err)
			}
			return i, err
		}
	}),
	lies("ErrorsAreStable", "counts requests", func(l *liar) {
		var mu sync.Mutex
		n := 0
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			receipt, err := l.Provider.Create(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			if n++; err != nil {
				err = providers.NewError(providers.ReasonOf(err), "", fmt.Sprintf("request %d failed", n), err)
			}
			return receipt, err
		}
	}),
	lies("SecretsStaySecret", "wraps the request", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			receipt, err := l.Provider.Create(ctx, req)
			if err != nil {
				err = providers.NewError(providers.ReasonOf(err), "", "", fmt.Errorf("post %s: %w", req.UserData, err))
			}
			return receipt, err
		}
	}),
	lies("SecretsStaySecret", "logs the request", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			l.rt.Logger.V(4).Info("Creating", "userData", string(req.UserData))
			return l.Provider.Create(ctx, req)
		}
	}),
	lies("SecretsStaySecret", "wraps its own token", func(l *liar) {
		l.check = func(ctx context.Context) error {
			err := l.Provider.Check(ctx)
			if providers.ReasonOf(err) == providers.Auth {
				err = providers.NewError(providers.Auth, "", "", fmt.Errorf("refused: Bearer %s: %w", stageToken, err))
			}
			return err
		}
	}),
	lies("ClassIsAccepted", "logs its own token", func(l *liar) { l.rt.Logger.Info("Opened", "token", stageToken) }),
	lies("SecretsStaySecret", "has a password in the receipt", func(l *liar) {
		l.create = func(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
			_, err := l.Provider.Create(ctx, req)
			return providers.Receipt{Operation: "insert?" + req.Credentials.Password}, err
		}
	}),
	lies("ClosedProviderAnswers", "closes once", func(l *liar) {
		n := 0
		l.close = func() error {
			if n++; n > 1 {
				return errors.New("closed already")
			}
			return l.Provider.Close()
		}
	}),
	lies("ClosedProviderAnswers", "panics when it is closed", func(l *liar) {
		closed := false
		l.close = func() error { closed = true; return nil }
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			if closed {
				panic("closed")
			}
			return l.Provider.Get(ctx, ref)
		}
	}),
	lies("CloseDuringCalls", "forgets when it is closed", func(l *liar) {
		var mu sync.Mutex
		closed := false
		l.close = func() error {
			mu.Lock()
			defer mu.Unlock()
			closed = true
			return nil
		}
		l.get = func(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
			mu.Lock()
			defer mu.Unlock()
			if closed {
				return providers.Instance{}, said(providers.NotFound, "")
			}
			return l.Provider.Get(ctx, ref)
		}
	}),
}
