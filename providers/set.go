package providers

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// ErrInvalidClass is wrapped by what Set.Open returns for a class whose configuration is not valid.
var ErrInvalidClass = errors.New("the configuration of the class is not valid")

// eventBuffer is how many wake-ups may wait for the controller; more are dropped, since the controller polls as well.
const eventBuffer = 1024

// Set keeps one open Provider for each class, made anew when the class changes. It is safe for concurrent use.
type Set struct {
	factory Factory
	runtime Runtime
	wrap    func(*v1alpha1.ProviderClass, Provider) Provider
	events  chan event.TypedGenericEvent[Owner]

	mu      sync.Mutex
	closed  bool
	entries map[types.UID]*entry
}

type entry struct {
	generation int64
	provider   Provider
	done       chan struct{}
}

// NewSet makes an empty Set. wrap is put around every Provider, see providers/guard; nil leaves them bare.
func NewSet(factory Factory, runtime Runtime, wrap func(*v1alpha1.ProviderClass, Provider) Provider) *Set {
	return &Set{
		factory: factory, runtime: runtime, wrap: wrap,
		events:  make(chan event.TypedGenericEvent[Owner], eventBuffer),
		entries: map[types.UID]*entry{},
	}
}

// Factory is what the Set opens its Providers with.
func (s *Set) Factory() Factory { return s.factory }

// Events are the wake-ups of all open Providers that send any.
func (s *Set) Events() <-chan event.TypedGenericEvent[Owner] { return s.events }

// Open gives the Provider of a class, opening it when the class is new or was changed; what it replaces is closed. An
// older copy of a class gets the Provider of the newest one. The error wraps ErrInvalidClass when the class's
// configuration is at fault; else it is of the taxonomy in errors.go, and what the Factory returned is what it wraps.
func (s *Set) Open(ctx context.Context, class *v1alpha1.ProviderClass) (Provider, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errors.New("open provider: the manager is stopping")
	}
	old := s.entries[class.UID]
	if old != nil && old.generation >= class.Generation {
		return old.provider, nil
	}
	if problems := s.factory.Validate(class); len(problems) > 0 {
		return nil, fmt.Errorf("open provider of class %s: %w: %w", class.Name, ErrInvalidClass, problems.ToAggregate())
	}
	raw, err := s.factory.Open(ctx, class.DeepCopy(), s.runtime)
	if err != nil {
		return nil, fmt.Errorf("open provider of class %s: %w", class.Name, notOpened(err))
	}
	fresh := &entry{generation: class.Generation, provider: raw, done: make(chan struct{})}
	if s.wrap != nil {
		fresh.provider = s.wrap(class, raw)
	}
	if eventer, ok := raw.(Eventer); ok {
		go s.forward(eventer.Events(), fresh.done)
	}
	s.entries[class.UID] = fresh
	if old != nil {
		s.close(class.Name, old)
	}
	return fresh.provider, nil
}

// notOpened makes an error of a Factory one of the taxonomy. That the provider did not answer, as it is said of strays
// elsewhere, would be wrong: nobody has called it yet.
func notOpened(err error) error {
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return NewError(Unavailable, "", "the provider could not be set up; the log of its manager has the details", err)
}

// Forget closes the Provider of a class that is gone.
func (s *Set) Forget(class types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.entries[class]; old != nil {
		delete(s.entries, class)
		s.close(string(class), old)
	}
}

// Close closes all Providers; Open fails from then on.
func (s *Set) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for uid, old := range s.entries {
		delete(s.entries, uid)
		s.close(string(uid), old)
	}
}

// close runs in the background: a Provider may wait for its connections, and nobody needs the outcome.
func (s *Set) close(class string, e *entry) {
	close(e.done)
	go func() {
		if err := e.provider.Close(); err != nil {
			s.runtime.Logger.Info("Closing a provider failed", "class", class, "error", err.Error())
		}
	}()
}

// forward passes the events of one Provider on until it is closed.
func (s *Set) forward(events <-chan event.TypedGenericEvent[Owner], done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		case e, open := <-events:
			if !open {
				return
			}
			select {
			case s.events <- e:
			default:
			}
		}
	}
}
