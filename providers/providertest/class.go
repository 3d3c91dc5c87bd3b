package providertest

import (
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// minWindow is the shortest Timing.Window: an intent is stored in whole seconds, so that up to one is lost.
const minWindow = 2 * time.Second

func classIsAccepted(t testing.TB, h Harness) {
	class := h.Class("a")
	before := class.DeepCopy()
	if class.Spec.Type != h.Factory.Type() {
		t.Fatalf("the harness makes classes of type %q for a factory of type %q", class.Spec.Type, h.Factory.Type())
	}
	w := h.newWitness(t)
	if problems := h.validated(w, class); len(problems) > 0 {
		t.Errorf("validate: %v", problems.ToAggregate())
	}
	b := h.open(t, "a")
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	if _, err := h.opened(t.Context(), w, class); err != nil {
		t.Errorf("open: %v", err)
	}
	if !reflect.DeepEqual(class, before) {
		t.Error("the class was changed")
	}
}

func invalidClassNamesItsField(t testing.TB, h Harness) {
	if len(h.InvalidClasses) == 0 {
		t.Skip("the harness has no InvalidClasses")
	}
	w := h.newWitness(t)
	for path, class := range h.InvalidClasses {
		problems := h.validated(w, class)
		if !slices.ContainsFunc(problems, func(e *field.Error) bool { return e.Field == path }) {
			t.Errorf("got %v, want an error of %s", problems.ToAggregate(), path)
			continue
		}
		for range 5 {
			if again := h.validated(w, class); again.ToAggregate().Error() != problems.ToAggregate().Error() {
				t.Errorf("the text changes from %q to %q: each change is a write", problems.ToAggregate(), again.ToAggregate())
			}
		}
	}
}

func timingIsSound(t testing.TB, h Harness) {
	timing := providers.TimingOf(h.Factory)
	if timing.Window < minWindow {
		t.Errorf("Window is %v, want at least %v", timing.Window, minWindow)
	}
	if timing.Settle < timing.Window {
		t.Errorf("Settle %v is shorter than Window %v", timing.Settle, timing.Window)
	}
	if timing.Confirm <= 0 || timing.Poll <= 0 || timing.Slow <= 0 || timing.PollMax < timing.Poll {
		t.Errorf("Confirm, Poll and Slow must be positive and PollMax no shorter than Poll: %+v", timing)
	}
	if limits := providers.LimitsOf(h.Factory); limits.CallsPerSecond <= 0 || limits.Burst <= 0 {
		t.Errorf("CallsPerSecond and Burst must be positive: %+v", limits)
	}
}

func localMethodsMakeNoCalls(t testing.TB, h Harness) {
	if h.Calls == nil {
		t.Skip("the harness has no Calls")
	}
	before := h.Calls()
	h.validated(h.newWitness(t), h.Class("a"))
	b := h.open(t, "a")
	spec := h.Spec()
	if err := b.ValidateSpec(&spec); err != nil {
		t.Errorf("validate a specification: %v", err)
	}
	if _, err := b.Place(&spec, placeOwner, nil); err != nil {
		t.Errorf("place: %v", err)
	}
	if n := h.Calls() - before; n != 0 {
		t.Errorf("Validate, Open, ValidateSpec and Place made %d calls, want none", n)
	}
}

func specIsChecked(t testing.TB, h Harness) {
	b := h.open(t, "a")
	spec := h.Spec()
	before := *spec.DeepCopy()
	if err := b.ValidateSpec(&spec); err != nil {
		t.Errorf("a valid specification is refused: %v", err)
	}
	if !reflect.DeepEqual(spec, before) {
		t.Error("the specification was changed")
	}
	bare := h.Spec()
	bare.Placement = nil
	if err := b.ValidateSpec(&bare); err != nil {
		wants(t, "a specification without a placement", err, providers.InvalidSpec)
	}
	for _, cloudInit := range []v1alpha1.CloudInit{{Inline: "#cloud-config\n"}, {SecretKeyRef: &v1alpha1.SecretKeyRef{Name: "s", Key: "k"}}} {
		spec := h.Spec()
		spec.CloudInit = &cloudInit
		err := b.ValidateSpec(&spec)
		if h.UserData != nil && err != nil {
			t.Errorf("user data is refused: %v", err)
		}
		if h.UserData == nil && (providers.ReasonOf(err) != providers.InvalidSpec || fieldOf(err) != "spec.cloudInit") {
			t.Errorf("user data that cannot be used: got %v, want InvalidSpec of spec.cloudInit", err)
		}
	}
	if len(h.Invalid) == 0 {
		t.Error("the harness has no Invalid: there is always something that a provider cannot make")
	}
	for path, spec := range h.Invalid {
		err := b.ValidateSpec(&spec)
		wants(t, path, err, providers.InvalidSpec)
		if got := fieldOf(err); got != path {
			t.Errorf("got field %q, want %q", got, path)
		}
		if again := b.ValidateSpec(&spec); providers.StableMessage(again) != providers.StableMessage(err) {
			t.Errorf("the text changes from %q to %q", providers.StableMessage(err), providers.StableMessage(again))
		}
	}
}

func hostsAreReported(t testing.TB, h Harness) {
	b := h.open(t, "a")
	reporter, ok := providers.Find[providers.HostReporter](b.bare)
	if !ok {
		t.Skip("the provider has no hosts to report")
	}
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	before := 0
	if h.Calls != nil {
		before = h.Calls()
	}
	states, err := within(b.witness(), "Hosts", func() ([]providers.HostState, error) { return reporter.Hosts(), nil })
	if err != nil {
		return
	}
	if h.Calls != nil && h.Calls() != before {
		t.Errorf("Hosts made %d calls, want none", h.Calls()-before)
	}
	names := map[string]bool{}
	for _, state := range states {
		if state.Name == "" || len(state.Name) > maxHostName || names[state.Name] {
			t.Errorf("a host named %q, want names of 1 to %d bytes, each once", state.Name, maxHostName)
		}
		names[state.Name] = true
		b.witness().err("Hosts", state.Err)
	}
	if len(states) > maxHosts {
		t.Errorf("%d hosts, want at most %d", len(states), maxHosts)
	}
}

func fieldOf(err error) string {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return e.Field
	}
	return ""
}
