package gcp

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// vanish inserts a machine that comes to nothing, and gives what a look says then.
func (r *rig) vanish(name, zone string, how *computetest.OperationError, change ...func(*v1alpha1.ProxySpec)) error {
	r.t.Helper()
	restore := r.Fail(computetest.Fault{Call: computetest.Insert, Operation: how, Times: 1})
	defer restore()
	ref := r.create(newRequest(name, zone, change...))
	r.clock.Step(time.Minute)
	before := r.Count(computetest.GetOperation)
	_, err := r.look(ref)
	if n := r.Count(computetest.GetOperation) - before; n != 1 {
		r.t.Errorf("%d looks at the operation, want one", n)
	}
	return err
}

// outcome is what a look must say of an attempt that came to nothing.
type outcome struct {
	reason  providers.Reason // "" for a plain NotFound
	field   string
	message string
}

func (o outcome) check(t *testing.T, what string, err error) {
	t.Helper()
	e, ok := errors.AsType[*providers.Error](err)
	if !ok || e.Reason != providers.NotFound || e.Outcome != o.reason || e.Field != o.field || !strings.Contains(e.Message, o.message) {
		t.Errorf("%s: got %+v, want NotFound and %+v", what, err, o)
	}
}

// TestG1_G30_GT5_OperationsExplain: what became of an accepted insert is told by its operation, with its code.
func TestG1_G30_GT5_OperationsExplain(t *testing.T) {
	stockout := computetest.Stockout(zoneA)
	plain := *stockout
	plain.Code, plain.Reason = "ZONE_RESOURCE_POOL_EXHAUSTED", ""
	regional := plain
	regional.Code = "RESOURCE_POOL_EXHAUSTED"
	for name, test := range map[string]struct {
		how  *computetest.OperationError
		want outcome
	}{
		"stock-out":           {stockout, outcome{providers.Capacity, "", "the zone has no capacity left for the machine type (ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS)"}},
		"G31 a variant":       {&plain, outcome{providers.Capacity, "", "(ZONE_RESOURCE_POOL_EXHAUSTED)"}},
		"G31 another variant": {&regional, outcome{providers.Capacity, "", "(RESOURCE_POOL_EXHAUSTED)"}},
		"G16 quota":           {computetest.OperationQuota("IN_USE_ADDRESSES", "europe-west3"), outcome{providers.Capacity, "", "the project's quota of IN_USE_ADDRESSES is used up in region europe-west3 (QUOTA_EXCEEDED)"}},
		"addresses":           {computetest.NoAddresses("egress-eu"), outcome{providers.Capacity, "", "(IP_SPACE_EXHAUSTED_WITH_DETAILS)"}},
		"policy":              {computetest.OrganizationPolicy(testProject), outcome{providers.Capacity, "", "constraints/compute.vmExternalIpAccess (CONDITION_NOT_MET)"}},
		"permission":          {computetest.Permissions("compute.subnetworks.useExternalIp"), outcome{providers.Auth, "", "compute.subnetworks.useExternalIp"}},
		"machine type":        {computetest.UnsupportedMachineType("e2-micro", zoneA), outcome{providers.Capacity, "", "(MACHINE_TYPE_UNSUPPORTED)"}},
		"configuration":       {&computetest.OperationError{Code: "UNSUPPORTED_OPERATION", Message: "?", Reason: "configuration_availability"}, outcome{providers.Capacity, "", "does not have the machine type (UNSUPPORTED_OPERATION)"}},
		"not in the zone":     {&computetest.OperationError{Code: "INVALID_FIELD", Message: "Machine type with name 'e2-micro' does not exist in zone 'europe-west3-a'."}, outcome{providers.Capacity, "", "does not have the machine type"}},
		"name taken":          {&computetest.OperationError{Code: "RESOURCE_ALREADY_EXISTS", Message: "The resource 'projects/demo-project/zones/europe-west3-a/instances/px-x' already exists", Status: 409}, outcome{}},
		"G33 rate as quota":   {&computetest.OperationError{Code: "QUOTA_EXCEEDED", Message: "Quota exceeded for quota metric 'Queries' and limit 'Queries per minute' of service 'compute.googleapis.com'.", Status: 403}, outcome{}},
		"rate of operations":  {&computetest.OperationError{Code: "CONCURRENT_OPERATIONS_QUOTA_EXCEEDED", Message: "Quota exceeded.", Status: 403}, outcome{}},
		"G9 unknown":          {&computetest.OperationError{Code: "SOMETHING_NEW", Message: "?"}, outcome{}},
		"internal":            {&computetest.OperationError{Code: "INTERNAL_ERROR", Message: "?", Status: 500}, outcome{}},
	} {
		t.Run(name, func(t *testing.T) {
			test.want.check(t, name, newRig(t).vanish("px", zoneA, test.how))
		})
	}
	t.Run("a pinned zone without the machine type", func(t *testing.T) {
		r := newRig(t, func(s *v1alpha1.ProviderClassSpec) { s.GCP.Zones = nil })
		err := r.vanish("px", zoneA, computetest.UnsupportedMachineType("e2-micro", zoneA), inZone(zoneA))
		outcome{providers.InvalidSpec, fieldMachineType, "does not have the machine type"}.check(t, "get", err)
	})
}

// TestG26_OperationUnderWay: while the operation may still make the machine, nothing is said to have ended; and when it
// takes unusually long, nothing at all is known.
func TestG26_OperationUnderWay(t *testing.T) {
	r := newRig(t)
	r.SetTiming(computetest.Timing{Visible: time.Hour, Running: time.Hour})
	ref := r.create(newRequest("px", zoneA))
	_, err := r.look(ref)
	outcome{}.check(t, "at once", err)
	r.clock.Step(youngOperation)
	if _, err := r.look(ref); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("long after: %v", err)
	}
	for name, test := range map[string]struct {
		answer *computetest.ErrorAnswer
		want   providers.Reason
	}{
		"it cannot be read":      {computetest.BackendError(503), providers.Unavailable},
		"too many calls":         {computetest.RateLimitExceeded(), providers.RateLimited},
		"it must not be read":    {computetest.Forbidden("compute.zoneOperations.get", testProject), providers.NotFound},
		"it has been forgotten":  {computetest.NotFound("projects/" + testProject + "/zones/" + zoneA + "/operations/x"), providers.NotFound},
		"somebody else forgot":   {computetest.NotFound("projects/" + testProject), providers.Unavailable},
		"nobody knows the error": {&computetest.ErrorAnswer{Status: 400, Reason: "odd", Message: "?"}, providers.Unavailable},
	} {
		restore := r.Fail(computetest.Fault{Call: computetest.GetOperation, Answer: test.answer})
		_, err := r.look(ref)
		if providers.ReasonOf(err) != test.want || providers.OutcomeOf(err) != "" {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
		restore()
	}
	for _, note := range []string{"", "../x/e2-micro", "UPPER", strings.Repeat("x", 1024)} {
		ref.Operation = note
		before := r.Count(computetest.GetOperation)
		if _, err := r.look(ref); !providers.IsNotFound(err) || r.Count(computetest.GetOperation) != before {
			t.Errorf("note %.20q: %v", note, err)
		}
	}
}

// TestG30_OperationsThatMustNotBeRead: an account without that right works with the token that it has.
func TestG30_OperationsThatMustNotBeRead(t *testing.T) {
	r := newRig(t)
	ref := r.create(newRequest("px", zoneA))
	r.Remove(testProject, zoneA, ref.Name)
	r.Fail(computetest.Fault{Call: computetest.GetOperation, Answer: computetest.Forbidden("compute.zoneOperations.get", testProject)})
	before := len(r.adc.Asked())
	for range 5 {
		_, err := r.look(ref)
		outcome{}.check(t, "get", err)
	}
	if n := len(r.adc.Asked()) - before; n != 0 {
		t.Errorf("%d more tokens were asked for", n)
	}
}

// places asks where many Proxies would go.
func (r *rig) places(tried []string, change ...func(*v1alpha1.ProxySpec)) map[string]int {
	r.t.Helper()
	spec, out := newSpec(change...), map[string]int{}
	for n := range 60 {
		zone, err := r.Place(&spec, types.UID(fmt.Sprint("uid-", n)), tried)
		if err != nil {
			r.t.Fatal(err)
		}
		out[zone]++
	}
	return out
}

// TestG8_ZonesRest: where something was lacking nobody goes for a time that fits the cause, except who names the zone.
func TestG8_ZonesRest(t *testing.T) {
	big := func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "c3-standard-4" }
	for name, test := range map[string]struct {
		how *computetest.OperationError
		// closed are the zones that rest, and for how long; others tells whether other machine types must stay away too.
		closed []string
		rest   time.Duration
		others bool
	}{
		"stock-out":    {computetest.Stockout(zoneA), []string{zoneA}, StockoutCooldown, false},
		"quota":        {computetest.OperationQuota("CPUS", "europe-west3"), []string{zoneA, zoneB}, QuotaCooldown, false},
		"addresses":    {computetest.NoAddresses("s"), []string{zoneA, zoneB}, AddressCooldown, true},
		"machine type": {computetest.UnsupportedMachineType("e2-micro", zoneA), []string{zoneA}, UnsupportedCooldown, false},
		"policy":       {computetest.OrganizationPolicy(testProject), []string{zoneA, zoneB, zoneC}, PolicyCooldown, true},
		"unknown":      {&computetest.OperationError{Code: "SOMETHING_NEW"}, nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			_ = r.vanish("px", zoneA, test.how)
			want := 3 - len(test.closed)
			if want == 0 {
				want = 3 // everywhere alike: then the choice is as ever
			}
			got := r.places(nil)
			if len(got) != want {
				t.Errorf("places %v although %v rest", got, test.closed)
			}
			if others := r.places(nil, big); (len(others) < 3) != (test.others && len(test.closed) < 3) {
				t.Errorf("another machine type goes to %v", others)
			}
			pinned := newSpec(inZone(zoneA))
			if zone, err := r.Place(&pinned, "uid", nil); err != nil || zone != zoneA {
				t.Errorf("who names a zone goes to %s, %v", zone, err)
			}
			r.clock.Step(test.rest)
			if got := r.places(nil); len(got) != 3 {
				t.Errorf("after %v: %v", test.rest, got)
			}
		})
	}
}

// TestG8_StockoutsLast: the rest doubles with each stock-out that follows, up to an hour, and begins anew after a long time.
func TestG8_StockoutsLast(t *testing.T) {
	r := newRig(t)
	for n, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
		r.book.note(zoneA, "e2-micro", causeStockout)
		r.book.note(zoneA, "e2-micro", causeStockout) // another Proxy meets it too
		r.clock.Step(want*time.Minute - time.Second)
		if !r.book.closed(zoneA, "e2-micro") {
			t.Errorf("stock-out %d rests for less than %d minutes", n+1, want)
		}
		r.clock.Step(time.Second)
		if r.book.closed(zoneA, "e2-micro") {
			t.Errorf("stock-out %d rests for more than %d minutes", n+1, want)
		}
	}
	r.clock.Step(StockoutCooldownMax)
	r.book.note(zoneA, "e2-micro", causeStockout)
	r.clock.Step(StockoutCooldown)
	if r.book.closed(zoneA, "e2-micro") {
		t.Error("the count does not begin anew")
	}
}

// TestG32_NextZoneAfterAStockout: the next one at once, and where all are out, the last one again, in which the operator waits.
func TestG32_NextZoneAfterAStockout(t *testing.T) {
	r := newRig(t)
	spec, tried := newSpec(), []string{}
	for range 3 {
		zone, err := r.Place(&spec, "uid", tried)
		if err != nil {
			t.Fatal(err)
		}
		if len(tried) > 0 && zone == tried[0] {
			t.Fatalf("%s again after a stock-out", zone)
		}
		_ = r.vanish("px-"+zone, zone, computetest.Stockout(zone))
		tried = []string{zone}
	}
	if zone, err := r.Place(&spec, "uid", tried); err != nil || zone != tried[0] {
		t.Errorf("with all zones out it goes from %s to %s, %v", tried[0], zone, err)
	}
}

// TestG21_MachineTypeOfNoZone is the specification's fault only if no zone has it.
func TestG21_MachineTypeOfNoZone(t *testing.T) {
	r := newRig(t)
	want := []outcome{{reason: providers.Capacity}, {reason: providers.Capacity}, {providers.InvalidSpec, fieldMachineType, "does not have the machine type"}}
	for n, zone := range []string{zoneA, zoneB, zoneC} {
		want[n].check(t, zone, r.vanish(fmt.Sprint("px-", n), zone, computetest.UnsupportedMachineType("e2-micro", zone)))
	}
	r.clock.Step(UnsupportedCooldown)
	want[0].check(t, "an hour later", r.vanish("px-again", zoneA, computetest.UnsupportedMachineType("e2-micro", zoneA)))
	// The same, where the insert itself is refused.
	s := newRig(t)
	s.SetMissing("zones/"+zoneA+"/machineTypes/e2-micro", true)
	_, err := s.Create(t.Context(), newRequest("px", zoneA))
	verdict{reason: providers.Capacity}.check(t, "insert", err)
	_, err = s.Create(t.Context(), newRequest("px", zoneA, inZone(zoneA)))
	verdict{reason: providers.InvalidSpec, field: fieldMachineType}.check(t, "insert into a pinned zone", err)
}
