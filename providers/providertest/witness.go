package providertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// Bounds of what is stored in status.instance, in characters: the API server refuses a whole status that breaks one, and
// then the operator could not remember anything about the instance.
const (
	maxName       = 253
	maxZone       = 253
	maxID         = 253
	maxProviderID = 1024
	maxHash       = 64
	maxMessage    = providers.MaxMessage
	maxOperation  = 1024
	maxAddress    = 253
	maxAddresses  = 8

	// Of status.hosts of the class.
	maxHosts    = 64
	maxHostName = 63
)

var (
	reasons = []providers.Reason{
		providers.NotFound, providers.AlreadyExists, providers.Conflict, providers.InvalidSpec,
		providers.Capacity, providers.RateLimited, providers.Auth, providers.Unavailable,
	}
	states = []providers.State{
		providers.StatePending, providers.StateRunning, providers.StateStopped, providers.StateFailed, providers.StateTerminating,
	}
)

// witness is a provider that looks at every answer of another one for what must hold of all of them: errors are of the
// taxonomy, what is stored fits, and nothing secret is told.
type witness struct {
	providers.Provider
	t testing.TB

	// hangs tells that a call has not returned.
	hangs atomic.Bool

	mu      sync.Mutex
	secrets []string
	last    string
}

// witness is what looks at the answers.
func (b bench) witness() *witness { return b.Provider.(*witness) }

// keepSecret makes a text one that no answer and no log line may contain.
func (b bench) keepSecret(text string) {
	w := b.witness()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.secrets = append(w.secrets, text)
}

// answered notes what was said last, for failures of waiting.
func (w *witness) answered(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = fmt.Sprintf(format, args...)
}

func (w *witness) lastAnswer() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(w.last, "none")
}

func (w *witness) text(where, text string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, secret := range w.secrets {
		if strings.Contains(text, secret) {
			w.t.Errorf("%s tells a secret: %s", where, text)
		}
	}
}

func (w *witness) err(method string, err error) {
	w.t.Helper()
	if err == nil {
		return
	}
	w.text(method+"'s error", fmt.Sprintf("%v %+v %#v", err, err, err))
	for _, cause := range chain(err) {
		w.text(method+"'s error", cause.Error())
	}
	known, ok := errors.AsType[*providers.Error](err)
	switch {
	case !ok:
		w.t.Errorf("%s: the error is none of the taxonomy: %v", method, err)
	case !slices.Contains(reasons, known.Reason):
		w.t.Errorf("%s: the reason %q is none of the taxonomy", method, known.Reason)
	case known.Reason == providers.InvalidSpec && known.Field == "":
		w.t.Errorf("%s: InvalidSpec names no field: %v", method, err)
	case utf8.RuneCountInString(known.Field+": "+known.Message) > maxMessage:
		w.t.Errorf("%s: the message is longer than %d characters: %s", method, maxMessage, known.Message)
	}
}

func (w *witness) instance(method string, i providers.Instance) {
	w.t.Helper()
	for _, field := range []struct {
		name, value string
		most        int
	}{
		{"Name", i.Name, maxName}, {"Zone", i.Zone, maxZone}, {"ID", i.ID, maxID}, {"ProviderID", i.ProviderID, maxProviderID},
		{"Hash", i.Hash, maxHash}, {"Message", i.Message, maxMessage},
	} {
		w.text(method+"'s "+field.name, field.value)
		if n := utf8.RuneCountInString(field.value); n > field.most {
			w.t.Errorf("%s: %s has %d characters, want at most %d", method, field.name, n, field.most)
		}
	}
	switch {
	case i.Name == "":
		w.t.Errorf("%s: an instance without a name: %s", method, describe(i))
	case i.ID == i.Name:
		w.t.Errorf("%s: the ID is the name, %s: the next incarnation would have the same one", method, i.Name)
	}
	if !slices.Contains(states, i.State) {
		w.t.Errorf("%s: unknown state %q", method, i.State)
	}
	if len(i.Addresses) > maxAddresses {
		w.t.Errorf("%s: %d addresses, want at most %d", method, len(i.Addresses), maxAddresses)
	}
	for _, address := range i.Addresses {
		if _, err := netip.ParseAddr(address); err != nil && (len(address) > maxAddress || len(validation.IsDNS1123Subdomain(address)) > 0) {
			w.t.Errorf("%s: %q is no IP address and no DNS name", method, address)
		}
	}
}

// Check implements providers.Provider.
func (w *witness) Check(ctx context.Context) error {
	w.t.Helper()
	err := checked(w, "Check", func() error { return w.Provider.Check(ctx) })
	w.answered("Check: %v", err)
	w.err("Check", err)
	return err
}

// ValidateSpec implements providers.Provider.
func (w *witness) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	w.t.Helper()
	err := checked(w, "ValidateSpec", func() error { return w.Provider.ValidateSpec(spec) })
	w.err("ValidateSpec", err)
	return err
}

// Create implements providers.Provider.
func (w *witness) Create(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
	w.t.Helper()
	receipt, err := within(w, "Create", func() (providers.Receipt, error) { return w.Provider.Create(ctx, req) })
	w.answered("Create of %s in place %q: %v", req.Name, req.Zone, err)
	w.err("Create", err)
	w.text("Create's receipt", receipt.Operation)
	if utf8.RuneCountInString(receipt.Operation) > maxOperation {
		w.t.Errorf("Create: the operation is longer than %d characters", maxOperation)
	}
	if providers.IsNotFound(err) {
		w.t.Errorf("Create must not say NotFound, which is said of instances only: %v", err)
	}
	return receipt, err
}

// Get implements providers.Provider.
func (w *witness) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	w.t.Helper()
	i, err := within(w, "Get", func() (providers.Instance, error) { return w.Provider.Get(ctx, ref) })
	w.answered("Get of %s in place %q: %s", ref.Name, ref.Zone, outcome(i, err))
	w.err("Get", err)
	if err == nil {
		w.instance("Get", i)
		if i.Name != ref.Name {
			w.t.Errorf("Get: asked for %s, got %s", ref.Name, i.Name)
		}
	}
	return i, err
}

// Delete implements providers.Provider.
func (w *witness) Delete(ctx context.Context, ref providers.Ref) error {
	w.t.Helper()
	err := checked(w, "Delete", func() error { return w.Provider.Delete(ctx, ref) })
	w.answered("Delete of %s in place %q: %v", ref.Name, ref.Zone, err)
	w.err("Delete", err)
	return err
}

// List implements providers.Provider.
func (w *witness) List(ctx context.Context) ([]providers.Instance, error) {
	w.t.Helper()
	all, err := within(w, "List", func() ([]providers.Instance, error) { return w.Provider.List(ctx) })
	w.answered("List: %d instances, %v", len(all), err)
	w.err("List", err)
	if err != nil && len(all) > 0 {
		w.t.Errorf("List: %d instances beside an error", len(all))
	}
	for _, i := range all {
		w.instance("List", i)
	}
	return all, err
}

// Place implements providers.Provider.
func (w *witness) Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
	w.t.Helper()
	zone, err := within(w, "Place", func() (string, error) { return w.Provider.Place(spec, owner, tried) })
	w.err("Place", err)
	return zone, err
}

// Close implements providers.Provider.
func (w *witness) Close() error {
	w.t.Helper()
	return checked(w, methodClose, w.Provider.Close)
}

// chain is an error and everything it wraps.
func chain(err error) []error {
	all := []error{err}
	if inner := errors.Unwrap(err); inner != nil {
		return append(all, chain(inner)...)
	}
	if many, ok := any(err).(interface{ Unwrap() []error }); ok {
		for _, inner := range many.Unwrap() {
			all = append(all, chain(inner)...)
		}
	}
	return all
}
