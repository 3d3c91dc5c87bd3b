package instance

import (
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

func oneOf[T any](r *rand.Rand, values ...T) T { return values[r.IntN(len(values))] }

// anySituation is any combination of what can be asked for, stored and seen, those included that should never arise.
func anySituation(r *rand.Rand) (Desired, v1alpha1.Instance, *Observed) {
	second := time.Second
	age := func() *metav1.Time {
		ages := []time.Duration{0, second, tableTiming.Confirm, tableTiming.Window, time.Minute, tableTiming.Settle - second, tableTiming.Settle, time.Hour}
		if i := r.IntN(len(ages) + 2); i < len(ages) {
			return ago(ages[i])
		}
		return nil
	}
	d := wanted()
	d.Deleting, d.Finalizer, d.OnDelete = r.IntN(2) == 0, r.IntN(4) > 0, r.IntN(3) == 0
	d.Zone = oneOf(r, "", "a", "b")
	switch r.IntN(6) {
	case 0:
		held(&d)
	case 1:
		d.Hold = &Finding{v1alpha1.ReasonClassTerminating, "going"}
	case 2:
		blind(&d)
	}
	record := v1alpha1.Instance{
		ID: oneOf(r, "", "", "", "i1", "i2"), Zone: oneOf(r, "", "a", "b"), Hash: oneOf(r, "", "v1-new", "v1-old", "v0-old"), DesiredHash: oneOf(r, "", "v1-new", "v1-old"),
		State:           oneOf(r, "", "Running", "Terminating", v1alpha1.ReasonWaitingForCapacity, v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonAuthFailed, v1alpha1.ReasonNameCollision),
		ClassGeneration: int64(r.IntN(3)), Attempt: int32(r.IntN(9)),
		IntentTime: age(), StartedTime: age(), MissingTime: age(),
	}
	if r.IntN(2) == 0 {
		record.SubmittedTime, record.State = age(), ""
	}
	switch r.IntN(7) {
	case 0:
		return d, record, nil
	case 1:
		return d, record, failing(oneOf(r, providers.Unavailable, providers.Auth, providers.RateLimited, providers.Conflict))
	case 2, 3, 4:
		return d, record, askedAgo(oneOf(r, 0, second, tableTiming.Settle), &Observed{})
	}
	o := found(oneOf(r, providers.StatePending, providers.StateRunning, providers.StateStopped, providers.StateFailed, providers.StateTerminating))
	for _, change := range []func(*providers.Instance){foreign, outdated, versioned, homeless, another} {
		if r.IntN(4) == 0 {
			change(&o.Instance)
		}
	}
	return d, record, o
}

// TestDecide_Invariants: what each action may never be decided without, in any situation whatever.
func TestDecide_Invariants(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	reached := map[Kind]int{}
	for range 100_000 {
		d, r, o := anySituation(random)
		a := Decide(d, r, o, tableNow, tableTiming)
		reached[a.Kind]++
		answered := o != nil && o.Err == nil
		asked := tableNow
		if o != nil && !o.Time.IsZero() {
			asked = o.Time
		}
		absent := answered && !o.Found
		mine := answered && o.Found && o.Instance.Owner.UID == d.UID
		settled := r.IntentTime == nil || !asked.Before(r.IntentTime.Add(tableTiming.Settle))
		twice := absent && r.MissingTime != nil && !asked.Before(r.MissingTime.Add(tableTiming.Confirm))
		wish := d.Finalizer && !d.Deleting && d.Hold == nil && d.Blind == nil

		allowed := true
		switch a.Kind {
		case AddFinalizer:
			allowed = !d.Finalizer && !d.Deleting && (recorded(r) || (d.Hold == nil && d.Blind == nil && mine))
		case RecordFirstIntent:
			allowed = !d.Finalizer && !d.Deleting && d.Hold == nil && d.Blind == nil && absent && !recorded(r)
		case RecordIntent:
			known := r.ID != "" || r.IntentTime != nil
			moves := r.IntentTime != nil && d.Zone != r.Zone
			allowed = wish && absent && (!known || twice || (refused(r) && !moves)) && (!moves || settled)
		case Create:
			allowed = wish && absent && r.IntentTime != nil && tableNow.Before(r.IntentTime.Add(tableTiming.Window)) && d.Zone == r.Zone && r.SubmittedTime == nil && !refused(r)
		case Delete:
			allowed = d.Finalizer && d.Blind == nil && mine && o.Instance.State != providers.StateTerminating && (d.Deleting || (d.Hold == nil && r.ID == o.Instance.ID))
		case RecordMissing:
			allowed = d.Finalizer && absent && r.MissingTime == nil
		case RemoveFinalizer:
			allowed = d.Finalizer && d.Deleting && d.Blind == nil && settled && (twice || (answered && o.Found && !mine))
		case Look:
			allowed = o == nil && d.Blind == nil && (d.Finalizer || (!d.Deleting && d.Hold == nil))
		case Ignore:
			allowed = d.Deleting && !d.Finalizer
		}
		if !allowed {
			t.Fatalf("%s %s with\n%+v\n%+v\n%+v", a.Kind, a.Reason, d, r, o)
		}
		if failed := o != nil && o.Err != nil; a.After < 0 || (a.After == 0 && a.Kind == Report && !failed) {
			t.Fatalf("%s %s after %v with\n%+v\n%+v\n%+v", a.Kind, a.Reason, a.After, d, r, o)
		}
	}
	for _, kind := range []Kind{Ignore, Look, AddFinalizer, RecordFirstIntent, RecordIntent, Create, Delete, RecordMissing, Report, RemoveFinalizer} {
		if reached[kind] < 50 {
			t.Errorf("%s was decided %d times, which shows little", kind, reached[kind])
		}
	}
}
