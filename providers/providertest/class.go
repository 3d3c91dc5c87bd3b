package providertest

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// minWindow is the shortest Timing.Window: an intent is stored in whole seconds, so that up to one is lost.
const minWindow = 2 * time.Second

// poolSize is how many owners are placed: by chance they go to one of two places once in 2^63 times.
const poolSize = 64

// placeOwner is an owner for whom a place is asked.
const placeOwner types.UID = "6b1d2f1e-60a5-4b0a-9c0e-3d5a7d1f0c11"

func classIsAccepted(t testing.TB, h Harness) {
	class := h.Class("a")
	before := class.DeepCopy()
	if class.Spec.Type != h.Factory.Type() {
		t.Fatalf("the harness makes classes of type %q for a factory of type %q", class.Spec.Type, h.Factory.Type())
	}
	if problems := h.Factory.Validate(class); len(problems) > 0 {
		t.Errorf("validate: %v", problems.ToAggregate())
	}
	b := h.open(t, "a")
	if err := b.Check(t.Context()); err != nil {
		t.Errorf("check: %v", err)
	}
	if _, err := h.Factory.Open(t.Context(), class, h.Runtime); err != nil {
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
	for path, class := range h.InvalidClasses {
		problems := h.Factory.Validate(class)
		if !slices.ContainsFunc(problems, func(e *field.Error) bool { return e.Field == path }) {
			t.Errorf("got %v, want an error of %s", problems.ToAggregate(), path)
			continue
		}
		for range 5 {
			if again := h.Factory.Validate(class); again.ToAggregate().Error() != problems.ToAggregate().Error() {
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
	h.Factory.Validate(h.Class("a"))
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

func placeIsStable(t testing.TB, h Harness) {
	b, other := h.open(t, "a"), h.open(t, "a")
	spec := h.Spec()
	before := *spec.DeepCopy()
	first, err := b.Place(&spec, placeOwner, nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range poolSize {
		owner := types.UID(fmt.Sprint("owner-", n))
		one, err := b.Place(&spec, owner, nil)
		if another, again := other.Place(&spec, owner, nil); err != nil || again != nil || another != one {
			t.Fatalf("one Provider chose %q (%v), another one %q (%v)", one, err, another, again)
		}
	}
	tried := []string{first}
	// It answers however many were tried: when all were, it begins again.
	for range max(5, 2*len(h.Zones)) {
		asked := slices.Clone(tried)
		next, err := b.Place(&spec, placeOwner, tried)
		if err != nil {
			t.Fatalf("no place after %q: %v", tried, err)
		}
		if again, err := b.Place(&spec, placeOwner, tried); err != nil || again != next {
			t.Errorf("after %q it chose %q, then %q (%v)", tried, next, again, err)
		}
		if !slices.Equal(tried, asked) {
			t.Fatalf("the list of what was tried changed from %q to %q", asked, tried)
		}
		tried = append(tried, next)
	}
	if !reflect.DeepEqual(spec, before) {
		t.Error("the specification was changed")
	}
	for _, zone := range h.Zones {
		spec := pinned(h.Spec(), zone)
		for _, tried := range [][]string{nil, {zone}} {
			if got, err := b.Place(&spec, placeOwner, tried); err != nil || got != zone {
				t.Errorf("the specification names %q; after %q it chose %q, %v", zone, tried, got, err)
			}
		}
	}
}

func placeLeavesOutTried(t testing.TB, h Harness) {
	if len(h.Zones) < 2 {
		t.Skip("the harness has no two Zones to choose from")
	}
	b := h.open(t, "a")
	spec := h.Spec()
	spec.Placement = withoutZone(spec.Placement)
	for _, only := range h.Zones {
		tried := slices.DeleteFunc(slices.Clone(h.Zones), func(zone string) bool { return zone == only })
		if got, err := b.Place(&spec, placeOwner, tried); err != nil || got != only {
			t.Errorf("of %q, %q were tried; got %q, %v", h.Zones, tried, got, err)
		}
	}
}

// placeSpreads: members of a pool have one specification, and one place would be full, or down, for all of them. A round by
// the last place alone, as the controllers ask, comes to all.
func placeSpreads(t testing.TB, h Harness) {
	if len(h.Zones) < 2 {
		t.Skip("the harness has no two Zones to choose from")
	}
	b := h.open(t, "a")
	spec := h.Spec()
	spec.Placement = withoutZone(spec.Placement)
	chosen, round := map[string]bool{}, map[string]bool{}
	last := ""
	for n := range poolSize {
		place, err := b.Place(&spec, types.UID(fmt.Sprintf("6b1d2f1e-60a5-4b0a-9c0e-%012d", n)), nil)
		if err != nil {
			t.Fatal(err)
		}
		chosen[place], last = true, place
	}
	if len(chosen) < 2 {
		t.Errorf("%d owners with one specification all go to %q, of %q", poolSize, last, h.Zones)
	}
	var tried []string
	for range 2 * len(h.Zones) {
		place, err := b.Place(&spec, placeOwner, tried)
		if err != nil {
			t.Fatal(err)
		}
		round[place], tried = true, []string{place}
	}
	if len(round) < len(h.Zones) {
		t.Errorf("from one place that is full to the next it comes to %d of %q", len(round), h.Zones)
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
	states := reporter.Hosts()
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

func withoutZone(p *v1alpha1.Placement) *v1alpha1.Placement {
	if p == nil {
		return nil
	}
	out := *p
	out.Zone = ""
	return &out
}

func fieldOf(err error) string {
	if e, ok := errors.AsType[*providers.Error](err); ok {
		return e.Field
	}
	return ""
}
