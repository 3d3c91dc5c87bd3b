package instance

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

var (
	tableNow    = time.Unix(1_700_000_000, 0)
	tableTiming = providers.Timing{}.WithDefaults()
)

// ago is a stored time before now.
func ago(d time.Duration) *metav1.Time { return stamp(tableNow.Add(-d)) }

func wanted(change ...func(*Desired)) Desired {
	d := Desired{UID: "u", Hash: "v1-new", Finalizer: true, ClassGeneration: 1, ProvisionTimeout: DefaultProvisionTimeout}
	for _, f := range change {
		f(&d)
	}
	return d
}

func deleting(d *Desired)    { d.Deleting = true }
func unfinalized(d *Desired) { d.Finalizer = false }
func held(d *Desired)        { d.Hold = &Finding{v1alpha1.ReasonCloudInitError, "no Secret"}; d.Hash = "" }
func blind(d *Desired)       { d.Blind = &Finding{v1alpha1.ReasonClassNotFound, "no class"} }
func onDelete(d *Desired)    { d.OnDelete = true }

func inZoneB(d *Desired) { d.Zone = "b" }

func found(state providers.State, change ...func(*providers.Instance)) *Observed {
	o := &Observed{Found: true, Instance: providers.Instance{
		Ref: providers.Ref{Name: "n", ID: "i1"}, Owner: providers.Owner{UID: "u"}, Hash: "v1-new", State: state, Addresses: []string{"10.0.0.1"},
	}}
	for _, f := range change {
		f(&o.Instance)
	}
	return o
}

func foreign(i *providers.Instance)   { i.Owner.UID = "other" }
func outdated(i *providers.Instance)  { i.Hash = "v1-old" }
func versioned(i *providers.Instance) { i.Hash = "v0-old" }
func homeless(i *providers.Instance)  { i.Addresses = nil }
func another(i *providers.Instance)   { i.ID = "i2" }

// askedAgo is an answer that took its time.
func askedAgo(d time.Duration, o *Observed) *Observed {
	late := *o
	late.Time = tableNow.Add(-d)
	return &late
}

// endedAs is a NotFound whose operation has ended.
func endedAs(reason string) *Observed { return &Observed{Ended: &Finding{reason, "why"}} }

func failing(reason providers.Reason) *Observed {
	return &Observed{Err: providers.NewError(reason, "get", "", errors.New("request id 17"))}
}

func TestDecide(t *testing.T) {
	absent := &Observed{}
	seen := v1alpha1.Instance{ID: "i1", Hash: "v1-new", State: "Running", IntentTime: ago(time.Hour), Attempt: 1}
	with := func(r v1alpha1.Instance, f func(*v1alpha1.Instance)) v1alpha1.Instance { f(&r); return r }
	intended := func(age time.Duration) v1alpha1.Instance {
		return v1alpha1.Instance{IntentTime: ago(age), DesiredHash: "v1-new", ClassGeneration: 1, Attempt: 1}
	}
	refusedAs := func(reason string, age time.Duration, attempt int32) v1alpha1.Instance {
		r := intended(age)
		r.State, r.Attempt = reason, attempt
		return r
	}

	missing := func(r v1alpha1.Instance, age time.Duration) v1alpha1.Instance { r.MissingTime = ago(age); return r }
	started := func(r v1alpha1.Instance, age time.Duration) v1alpha1.Instance { r.StartedTime = ago(age); return r }
	submitted := func(r v1alpha1.Instance) v1alpha1.Instance { r.SubmittedTime = r.IntentTime; return r }
	operated := func(r v1alpha1.Instance) v1alpha1.Instance {
		r.SubmittedTime, r.Operation = r.IntentTime, "operation-1"
		return r
	}
	at := func(r v1alpha1.Instance, intent time.Duration) v1alpha1.Instance {
		r.IntentTime = ago(intent)
		return r
	}
	terminated := with(seen, func(r *v1alpha1.Instance) { r.State = "Terminating" })
	const settle, confirm, tooLong = providers.DefaultSettle, providers.DefaultConfirm, DefaultProvisionTimeout + time.Second

	for _, test := range []struct {
		name     string
		desired  Desired
		recorded v1alpha1.Instance
		observed *Observed
		kind     Kind
		reason   string
	}{
		// Before anything exists.
		{"the provider is asked first", wanted(unfinalized), v1alpha1.Instance{}, nil, Look, ""},
		{"A1 the finalizer comes with the first intent", wanted(unfinalized), v1alpha1.Instance{}, absent, RecordFirstIntent, v1alpha1.ReasonCreating},
		{"A1 the finalizer comes before anything else is done about an attempt", wanted(unfinalized), intended(time.Second), absent, AddFinalizer, ""},
		{"what cannot be made gets no finalizer", wanted(unfinalized, held), v1alpha1.Instance{}, nil, Report, v1alpha1.ReasonCloudInitError},
		{"without a class no finalizer", wanted(unfinalized, blind), v1alpha1.Instance{}, nil, Report, v1alpha1.ReasonClassNotFound},
		{"the provider is asked before an intent", wanted(), v1alpha1.Instance{}, nil, Look, ""},
		{"an intent is stored before Create", wanted(), v1alpha1.Instance{}, absent, RecordIntent, v1alpha1.ReasonCreating},
		{"Create within the window", wanted(), intended(time.Second), absent, Create, v1alpha1.ReasonCreating},
		{"A4 an unknown outcome settles", wanted(), intended(tableTiming.Window), absent, Report, v1alpha1.ReasonCreating},
		{"A6 accepted and not yet visible", wanted(), with(intended(time.Minute), func(r *v1alpha1.Instance) { r.SubmittedTime = ago(time.Minute) }), absent, Report, v1alpha1.ReasonCreating},
		{"A5 accepted and vanished", wanted(), intended(tableTiming.Settle), absent, RecordMissing, v1alpha1.ReasonCreateVanished},
		{"A5 vanished, second look", wanted(), with(intended(3*time.Minute), func(r *v1alpha1.Instance) { r.MissingTime = ago(tableTiming.Confirm) }), absent, RecordIntent, v1alpha1.ReasonCreateVanished},
		{"A5 vanished again and again", wanted(), with(intended(3*time.Minute), func(r *v1alpha1.Instance) { r.MissingTime = ago(time.Minute); r.Attempt = 6 }), absent, Report, v1alpha1.ReasonCreateVanished},
		{"accepted within the window is not asked again", wanted(), submitted(intended(time.Second)), absent, Report, v1alpha1.ReasonCreating},
		{"vanished, too early for the second look", wanted(), missing(intended(3*time.Minute), time.Second), absent, Report, v1alpha1.ReasonCreateVanished},
		{"vanished in one place is tried in another at once", wanted(inZoneB), with(missing(intended(3*time.Minute), time.Minute), func(r *v1alpha1.Instance) { r.Zone, r.Attempt = "a", 7 }), absent, RecordIntent, v1alpha1.ReasonCreateVanished},
		{"vanished, and something else is asked for since", wanted(), with(missing(intended(3*time.Minute), time.Minute), func(r *v1alpha1.Instance) { r.DesiredHash, r.Attempt = "v1-old", 7 }), absent, RecordIntent, v1alpha1.ReasonCreateVanished},
		{"vanished long ago", wanted(), with(missing(intended(Steady), time.Minute), func(r *v1alpha1.Instance) { r.Attempt = 100 }), absent, RecordIntent, v1alpha1.ReasonCreateVanished},
		{"an attempt is not repeated while nothing may be made", wanted(held), intended(time.Second), absent, Report, v1alpha1.ReasonCloudInitError},
		{"the window counts from now, however late the answer came", wanted(), intended(tableTiming.Window), askedAgo(tableTiming.Window, absent), Report, v1alpha1.ReasonCreating},
		{"an answer from before the attempt settled does not end it", wanted(), intended(settle), askedAgo(time.Second, absent), Report, v1alpha1.ReasonCreating},
		{"an answer from before the second look was due is not the second", wanted(), missing(intended(3*time.Minute), confirm), askedAgo(time.Second, absent), Report, v1alpha1.ReasonCreateVanished},
		{"never create in another place than the intent's", wanted(inZoneB), with(intended(time.Second), func(r *v1alpha1.Instance) { r.Zone = "a" }), absent, Report, v1alpha1.ReasonCreating},

		// Refusals.
		{"A30 capacity waits", wanted(), refusedAs(v1alpha1.ReasonWaitingForCapacity, 5*time.Second, 1), absent, Report, v1alpha1.ReasonWaitingForCapacity},
		{"A30 capacity tries again", wanted(), refusedAs(v1alpha1.ReasonWaitingForCapacity, BackoffMin, 1), absent, RecordIntent, v1alpha1.ReasonWaitingForCapacity},
		{"A30 capacity backs off", wanted(), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Minute, 4), absent, Report, v1alpha1.ReasonWaitingForCapacity},
		{"a place is not left before the attempt has settled", wanted(inZoneB), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Minute, 1), absent, Report, v1alpha1.ReasonWaitingForCapacity},
		{"a place is left after two looks", wanted(inZoneB), refusedAs(v1alpha1.ReasonWaitingForCapacity, tableTiming.Settle, 1), absent, RecordMissing, v1alpha1.ReasonWaitingForCapacity},
		{"a place is left after the second look", wanted(inZoneB), missing(refusedAs(v1alpha1.ReasonWaitingForCapacity, settle, 7), confirm), absent, RecordIntent, v1alpha1.ReasonWaitingForCapacity},
		{"refused credentials back off", wanted(), refusedAs(v1alpha1.ReasonAuthFailed, time.Second, 1), absent, Report, v1alpha1.ReasonAuthFailed},
		{"refused credentials are tried again", wanted(), refusedAs(v1alpha1.ReasonAuthFailed, BackoffMin, 1), absent, RecordIntent, v1alpha1.ReasonAuthFailed},
		{"a name that was taken is tried again", wanted(), refusedAs(v1alpha1.ReasonNameCollision, BackoffMin, 1), absent, RecordIntent, v1alpha1.ReasonNameCollision},
		{"a refused attempt waits while nothing may be made", wanted(held), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Hour, 1), absent, Report, v1alpha1.ReasonCloudInitError},
		{"A31 invalid in one place may be valid in another", wanted(inZoneB), missing(refusedAs(v1alpha1.ReasonInvalidSpec, settle, 1), confirm), absent, RecordIntent, v1alpha1.ReasonInvalidSpec},
		{"A31 an invalid specification waits for a change", wanted(), refusedAs(v1alpha1.ReasonInvalidSpec, time.Hour, 1), absent, Report, v1alpha1.ReasonInvalidSpec},
		{"A31 a change is tried at once", wanted(), with(refusedAs(v1alpha1.ReasonInvalidSpec, time.Second, 7), func(r *v1alpha1.Instance) { r.DesiredHash = "v1-old" }), absent, RecordIntent, v1alpha1.ReasonInvalidSpec},
		{"A31 a changed class is tried", wanted(func(d *Desired) { d.ClassGeneration = 2 }), refusedAs(v1alpha1.ReasonInvalidSpec, time.Hour, 1), absent, RecordIntent, v1alpha1.ReasonInvalidSpec},

		// An instance is there.
		{"running", wanted(), seen, found(providers.StateRunning), Report, v1alpha1.ReasonRunning},
		{"running without address is starting", wanted(), seen, found(providers.StateRunning, homeless), Report, v1alpha1.ReasonStarting},
		{"A3 a lost record is no second instance", wanted(), v1alpha1.Instance{}, found(providers.StateRunning), Report, v1alpha1.ReasonRunning},
		{"A18 another specification", wanted(), seen, found(providers.StateRunning, outdated), Delete, v1alpha1.ReasonSpecChanged},
		{"OnDelete leaves the replacement to the owner", wanted(onDelete), seen, found(providers.StateRunning, outdated), Report, v1alpha1.ReasonRunning},
		{"A19 an unknown hash is no difference", wanted(held), seen, found(providers.StateRunning, outdated), Report, v1alpha1.ReasonRunning},
		{"A21 another version of the hash is no difference", wanted(), seen, found(providers.StateRunning, versioned), Report, v1alpha1.ReasonRunning},
		{"failed", wanted(), seen, found(providers.StateFailed), Delete, v1alpha1.ReasonInstanceFailed},
		{"stopped, and nothing could replace it", wanted(held), seen, found(providers.StateStopped), Report, v1alpha1.ReasonInstanceFailed},
		{"starting", wanted(), seen, found(providers.StatePending), Report, v1alpha1.ReasonStarting},
		{"starting for too long", wanted(), with(seen, func(r *v1alpha1.Instance) { r.StartedTime = ago(DefaultProvisionTimeout + time.Second) }), found(providers.StatePending), Delete, v1alpha1.ReasonProvisionTimeout},
		{"terminating", wanted(), seen, found(providers.StateTerminating), Report, v1alpha1.ReasonReplacing},
		{"another specification, and nothing could replace it", wanted(func(d *Desired) { d.Hold = &Finding{v1alpha1.ReasonClassTerminating, "going"} }), seen, found(providers.StateRunning, outdated), Report, v1alpha1.ReasonRunning},
		{"another specification of what starts", wanted(), seen, found(providers.StatePending, outdated), Delete, v1alpha1.ReasonSpecChanged},
		{"another specification of what failed", wanted(), seen, found(providers.StateFailed, outdated), Delete, v1alpha1.ReasonSpecChanged},
		{"stopped", wanted(), seen, found(providers.StateStopped), Delete, v1alpha1.ReasonInstanceFailed},
		{"OnDelete does not keep what failed", wanted(onDelete), seen, found(providers.StateFailed, outdated), Delete, v1alpha1.ReasonInstanceFailed},
		{"OnDelete does not keep what never starts", wanted(onDelete), started(seen, tooLong), found(providers.StatePending, outdated), Delete, v1alpha1.ReasonProvisionTimeout},
		{"running without address for too long", wanted(), started(seen, tooLong), found(providers.StateRunning, homeless), Delete, v1alpha1.ReasonProvisionTimeout},
		{"starting for too long, and nothing could replace it", wanted(held), started(seen, tooLong), found(providers.StatePending), Report, v1alpha1.ReasonProvisionTimeout},
		{"starting for too long was another incarnation", wanted(), started(seen, tooLong), found(providers.StatePending, another), Report, v1alpha1.ReasonStarting},
		{"starting, as of an answer from before the timeout", wanted(), started(seen, tooLong), askedAgo(time.Minute, found(providers.StatePending)), Report, v1alpha1.ReasonStarting},
		{"running was never too long in starting", wanted(), started(seen, tooLong), found(providers.StateRunning), Report, v1alpha1.ReasonRunning},
		{"an unknown incarnation is taken in before it is replaced", wanted(), v1alpha1.Instance{}, found(providers.StateRunning, outdated), Report, v1alpha1.ReasonRunning},
		{"a new incarnation is not judged by an old record", wanted(), seen, found(providers.StateRunning, outdated, another), Report, v1alpha1.ReasonRunning},
		{"a new incarnation that starts is not judged by an old record", wanted(), seen, found(providers.StatePending, outdated, another), Report, v1alpha1.ReasonStarting},
		{"a new incarnation that failed is taken in", wanted(), seen, found(providers.StateFailed, another), Report, v1alpha1.ReasonInstanceFailed},
		{"another owner's that terminates is left alone", wanted(), seen, found(providers.StateTerminating, foreign), Report, v1alpha1.ReasonNameCollision},
		{"another owner's that failed is left alone", wanted(), seen, found(providers.StateFailed, foreign, outdated), Report, v1alpha1.ReasonNameCollision},
		{"another owner's is left alone", wanted(), seen, found(providers.StateRunning, foreign), Report, v1alpha1.ReasonNameCollision},
		{"an error is not absence", wanted(), seen, failing(providers.Unavailable), Report, v1alpha1.ReasonProviderUnreachable},
		{"A31 recovery from an invalid class", wanted(blind), seen, nil, Report, v1alpha1.ReasonClassNotFound},

		// The provider knows that the attempt has ended.
		{"ended for lack of capacity backs off where it is", wanted(), operated(intended(time.Second)), endedAs(v1alpha1.ReasonWaitingForCapacity), Report, v1alpha1.ReasonWaitingForCapacity},
		{"ended for lack of capacity is tried again where it is", wanted(), operated(intended(BackoffMin)), endedAs(v1alpha1.ReasonWaitingForCapacity), RecordIntent, v1alpha1.ReasonWaitingForCapacity},
		{"ended for lack of capacity is tried in another place at once", wanted(inZoneB), operated(intended(time.Second)), endedAs(v1alpha1.ReasonWaitingForCapacity), RecordIntent, v1alpha1.ReasonWaitingForCapacity},
		{"ended although it was seen is tried in another place at once", wanted(inZoneB), operated(at(seen, time.Second)), endedAs(v1alpha1.ReasonWaitingForCapacity), RecordIntent, v1alpha1.ReasonWaitingForCapacity},
		{"ended as invalid waits for a change", wanted(), operated(intended(time.Hour)), endedAs(v1alpha1.ReasonInvalidSpec), Report, v1alpha1.ReasonInvalidSpec},
		{"ended as invalid is tried when the specification has changed", wanted(), with(operated(intended(time.Second)), func(r *v1alpha1.Instance) { r.DesiredHash = "v1-old" }), endedAs(v1alpha1.ReasonInvalidSpec), RecordIntent, v1alpha1.ReasonInvalidSpec},
		{"ended as invalid is tried when the class has changed", wanted(func(d *Desired) { d.ClassGeneration = 2 }), operated(intended(time.Hour)), endedAs(v1alpha1.ReasonInvalidSpec), RecordIntent, v1alpha1.ReasonInvalidSpec},
		{"ended, and nothing may be made", wanted(held), operated(intended(time.Hour)), endedAs(v1alpha1.ReasonWaitingForCapacity), Report, v1alpha1.ReasonCloudInitError},
		{"ended was the attempt before", wanted(), intended(time.Second), endedAs(v1alpha1.ReasonWaitingForCapacity), Create, v1alpha1.ReasonCreating},
		{"ended does not hurry a deletion", wanted(deleting), operated(intended(time.Second)), endedAs(v1alpha1.ReasonWaitingForCapacity), Report, v1alpha1.ReasonDeleting},

		// It was there.
		{"A7 one NotFound", wanted(), seen, absent, RecordMissing, v1alpha1.ReasonInstanceMissing},
		{"A7 too early for the second", wanted(), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(time.Second) }), absent, Report, v1alpha1.ReasonInstanceMissing},
		{"A7 the second NotFound", wanted(), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(tableTiming.Confirm) }), absent, RecordIntent, v1alpha1.ReasonInstanceLost},
		{"A7 an answer from before the second look was due", wanted(), missing(seen, confirm), askedAgo(time.Second, absent), Report, v1alpha1.ReasonInstanceMissing},
		{"deleted and missed once", wanted(), terminated, absent, RecordMissing, v1alpha1.ReasonReplacing},
		{"deleted, too early for the second look", wanted(), missing(terminated, time.Second), absent, Report, v1alpha1.ReasonReplacing},
		{"A19 deleted and not to be made", wanted(held), missing(terminated, time.Minute), absent, Report, v1alpha1.ReasonCloudInitError},
		{"A18 another place, once it is gone", wanted(inZoneB), missing(terminated, time.Minute), absent, RecordIntent, v1alpha1.ReasonReplacing},
		{"a place is left when the attempt has settled", wanted(inZoneB), missing(at(seen, settle), confirm), absent, RecordIntent, v1alpha1.ReasonInstanceLost},
		{"lost at once, and something else is asked for since", wanted(), with(missing(at(seen, time.Minute), confirm), func(r *v1alpha1.Instance) { r.Hash, r.Attempt = "v1-old", 4 }), absent, RecordIntent, v1alpha1.ReasonInstanceLost},
		{"lost and not to be made", wanted(held), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(time.Minute) }), absent, Report, v1alpha1.ReasonCloudInitError},
		{"deleted to be replaced", wanted(), with(seen, func(r *v1alpha1.Instance) { r.State, r.MissingTime = "Terminating", ago(time.Minute) }), absent, RecordIntent, v1alpha1.ReasonReplacing},
		{"lost at once backs off", wanted(), with(seen, func(r *v1alpha1.Instance) {
			r.IntentTime, r.MissingTime, r.Attempt = ago(time.Minute), ago(time.Minute), 4
		}), absent, Report, v1alpha1.ReasonInstanceLost},
		{"a place is not left while a late call may come", wanted(inZoneB), with(seen, func(r *v1alpha1.Instance) { r.IntentTime, r.MissingTime = ago(time.Minute), ago(time.Minute) }), absent, Report, v1alpha1.ReasonInstanceLost},

		// Deletion.
		{"nothing of ours", wanted(deleting, unfinalized), v1alpha1.Instance{}, nil, Ignore, ""},
		{"deletion without class", wanted(deleting, blind), seen, nil, Report, v1alpha1.ReasonClassNotFound},
		{"deletion looks first", wanted(deleting), seen, nil, Look, ""},
		{"A13 deletion and no credentials", wanted(deleting), seen, failing(providers.Auth), Report, v1alpha1.ReasonAuthFailed},
		{"A11 deletion", wanted(deleting), seen, found(providers.StateRunning), Delete, v1alpha1.ReasonDeleting},
		{"A11 deletion under way", wanted(deleting), seen, found(providers.StateTerminating), Report, v1alpha1.ReasonDeleting},
		{"A11 deletion under way, the record is lost", wanted(deleting), v1alpha1.Instance{}, found(providers.StateTerminating), Report, v1alpha1.ReasonDeleting},
		{"A11 one NotFound does not release", wanted(deleting), seen, absent, RecordMissing, v1alpha1.ReasonDeleting},
		{"A11 the second does", wanted(deleting), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(tableTiming.Confirm) }), absent, RemoveFinalizer, v1alpha1.ReasonDeleting},
		{"A10 deletion of what may still come", wanted(deleting), intended(time.Minute), absent, Report, v1alpha1.ReasonDeleting},
		{"A10 a refusal is no proof", wanted(deleting), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Minute, 1), absent, Report, v1alpha1.ReasonDeleting},
		{"deletion with a lost record is confirmed too", wanted(deleting), v1alpha1.Instance{}, absent, RecordMissing, v1alpha1.ReasonDeleting},
		{"A11 deletion, too early for the second look", wanted(deleting), missing(seen, time.Second), absent, Report, v1alpha1.ReasonDeleting},
		{"A11 deletion, an answer from before the second look was due", wanted(deleting), missing(seen, confirm), askedAgo(time.Second, absent), Report, v1alpha1.ReasonDeleting},
		{"deletion of what starts", wanted(deleting), seen, found(providers.StatePending), Delete, v1alpha1.ReasonDeleting},
		{"deletion of what failed", wanted(deleting), seen, found(providers.StateFailed), Delete, v1alpha1.ReasonDeleting},
		{"deletion of what the record does not know", wanted(deleting), v1alpha1.Instance{}, found(providers.StateRunning, outdated), Delete, v1alpha1.ReasonDeleting},
		{"deletion does not wait for user data", wanted(deleting, held), seen, found(providers.StateRunning), Delete, v1alpha1.ReasonDeleting},
		{"deletion does not wait for the owner", wanted(deleting, onDelete), seen, found(providers.StateRunning), Delete, v1alpha1.ReasonDeleting},
		{"A10 deletion of an accepted attempt", wanted(deleting), submitted(intended(time.Minute)), absent, Report, v1alpha1.ReasonDeleting},
		{"A10 deletion of what came to nothing", wanted(deleting), intended(settle), absent, RecordMissing, v1alpha1.ReasonDeleting},
		{"A10 deletion of what was refused long ago", wanted(deleting), missing(refusedAs(v1alpha1.ReasonInvalidSpec, time.Hour, 1), confirm), absent, RemoveFinalizer, v1alpha1.ReasonDeleting},
		{"A10 deletion, an answer from before the attempt settled", wanted(deleting), missing(intended(settle), time.Minute), askedAgo(time.Second, absent), Report, v1alpha1.ReasonDeleting},
		{"A10 that an instance was seen does not settle its attempt", wanted(deleting), missing(at(terminated, time.Minute), confirm), absent, Report, v1alpha1.ReasonDeleting},
		{"the name is held by another and ours may be on its way", wanted(deleting), intended(time.Second), found(providers.StateRunning, foreign), Report, v1alpha1.ReasonNameCollision},
		{"the name is held by another whatever it does", wanted(deleting), seen, found(providers.StateTerminating, foreign), RemoveFinalizer, v1alpha1.ReasonNameCollision},
		{"the name is held by another", wanted(deleting), seen, found(providers.StateRunning, foreign), RemoveFinalizer, v1alpha1.ReasonNameCollision},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Decide(test.desired, test.recorded, test.observed, tableNow, tableTiming)
			if test.observed != nil && test.observed.Time.IsZero() && Decide(test.desired, test.recorded, askedAgo(0, test.observed), tableNow, tableTiming) != got {
				t.Error("an answer without time is not one of now")
			}
			if got.Kind != test.kind || got.Reason != test.reason {
				t.Errorf("got %s %q, want %s %q", got.Kind, got.Reason, test.kind, test.reason)
			}
			if got.After < 0 {
				t.Errorf("After is %v", got.After)
			}
			final := got.Kind == Report || got.Kind == Create || got.Kind == Delete || got.Kind == RecordMissing
			if final && got.After == 0 && (test.observed == nil || test.observed.Err == nil) {
				t.Error("nothing would ever look again")
			}
		})
	}
}

// Any error of Get but NotFound means that nothing is known: nothing is done, whatever is asked for and recorded.
func TestDecide_ErrorsOfGet(t *testing.T) {
	seen := v1alpha1.Instance{ID: "i1", State: "Running", IntentTime: ago(time.Hour), MissingTime: ago(time.Hour)}
	for reason, want := range map[providers.Reason]struct {
		reason string
		after  time.Duration
	}{
		providers.AlreadyExists: {v1alpha1.ReasonProviderUnreachable, 0},
		providers.Conflict:      {v1alpha1.ReasonNameCollision, 0},
		providers.InvalidSpec:   {v1alpha1.ReasonInvalidSpec, 0},
		providers.Capacity:      {v1alpha1.ReasonWaitingForCapacity, 0},
		providers.RateLimited:   {v1alpha1.ReasonRateLimited, 0},
		providers.Auth:          {v1alpha1.ReasonAuthFailed, authRetry},
		providers.Unavailable:   {v1alpha1.ReasonProviderUnreachable, 0},
	} {
		for _, d := range []Desired{wanted(), wanted(deleting), wanted(held), wanted(onDelete)} {
			for _, r := range []v1alpha1.Instance{{}, seen, {IntentTime: ago(time.Second)}, {IntentTime: ago(time.Hour)}} {
				if got := Decide(d, r, failing(reason), tableNow, tableTiming); got.Kind != Report || got.Reason != want.reason || got.After != want.after {
					t.Errorf("%s: got %s %s after %v, want %s %s after %v", reason, got.Kind, got.Reason, got.After, Report, want.reason, want.after)
				}
				wish := providers.NewError(reason, "get", "", nil)
				wish.RetryAfter = 7 * time.Second
				if got := Decide(d, r, &Observed{Err: wish}, tableNow, tableTiming); got.After != 7*time.Second {
					t.Errorf("%s: after %v, but the provider asks for 7s", reason, got.After)
				}
			}
		}
	}
	if got := Decide(wanted(deleting), seen, &Observed{Err: errors.New("EOF")}, tableNow, tableTiming); got.Kind != Report || got.Reason != v1alpha1.ReasonProviderUnreachable {
		t.Errorf("an error outside the taxonomy: got %s %s", got.Kind, got.Reason)
	}
}

func TestBackoff(t *testing.T) {
	for attempt, want := range map[int32]time.Duration{0: BackoffMin, 1: BackoffMin, 2: 2 * BackoffMin, 4: 8 * BackoffMin, 7: BackoffMax, 1000: BackoffMax} {
		if got := backoff(attempt); got != want {
			t.Errorf("backoff(%d) = %v, want %v", attempt, got, want)
		}
	}
}

func TestRecordMissing_KeepsConfirmWhole(t *testing.T) {
	now := tableNow.Add(900 * time.Millisecond)
	timing := tableTiming
	timing.Confirm = time.Second
	r := recordMissing(v1alpha1.Instance{}, now)
	r.MissingTime = stamp(r.MissingTime.Truncate(time.Second)) // as it is stored
	if confirmed(r, now.Add(999*time.Millisecond), timing) {
		t.Error("believed before Confirm was over")
	}
}
