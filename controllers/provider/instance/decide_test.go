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

	for _, test := range []struct {
		name     string
		desired  Desired
		recorded v1alpha1.Instance
		observed *Observed
		kind     Kind
		reason   string
	}{
		// Before anything exists.
		{"A1 the finalizer comes first", wanted(unfinalized), v1alpha1.Instance{}, nil, AddFinalizer, ""},
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
		{"never create in another place than the intent's", wanted(inZoneB), with(intended(time.Second), func(r *v1alpha1.Instance) { r.Zone = "a" }), absent, Report, v1alpha1.ReasonCreating},

		// Refusals.
		{"A30 capacity waits", wanted(), refusedAs(v1alpha1.ReasonWaitingForCapacity, 5*time.Second, 1), absent, Report, v1alpha1.ReasonWaitingForCapacity},
		{"A30 capacity tries again", wanted(), refusedAs(v1alpha1.ReasonWaitingForCapacity, BackoffMin, 1), absent, RecordIntent, v1alpha1.ReasonWaitingForCapacity},
		{"A30 capacity backs off", wanted(), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Minute, 4), absent, Report, v1alpha1.ReasonWaitingForCapacity},
		{"a place is not left before the attempt has settled", wanted(inZoneB), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Minute, 1), absent, Report, v1alpha1.ReasonWaitingForCapacity},
		{"a place is left after two looks", wanted(inZoneB), refusedAs(v1alpha1.ReasonWaitingForCapacity, tableTiming.Settle, 1), absent, RecordMissing, v1alpha1.ReasonWaitingForCapacity},
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
		{"another owner's is left alone", wanted(), seen, found(providers.StateRunning, foreign), Report, v1alpha1.ReasonNameCollision},
		{"an error is not absence", wanted(), seen, failing(providers.Unavailable), Report, v1alpha1.ReasonProviderUnreachable},
		{"A31 recovery from an invalid class", wanted(blind), seen, nil, Report, v1alpha1.ReasonClassNotFound},

		// It was there.
		{"A7 one NotFound", wanted(), seen, absent, RecordMissing, v1alpha1.ReasonInstanceMissing},
		{"A7 too early for the second", wanted(), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(time.Second) }), absent, Report, v1alpha1.ReasonInstanceMissing},
		{"A7 the second NotFound", wanted(), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(tableTiming.Confirm) }), absent, RecordIntent, v1alpha1.ReasonInstanceLost},
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
		{"A11 one NotFound does not release", wanted(deleting), seen, absent, RecordMissing, v1alpha1.ReasonDeleting},
		{"A11 the second does", wanted(deleting), with(seen, func(r *v1alpha1.Instance) { r.MissingTime = ago(tableTiming.Confirm) }), absent, RemoveFinalizer, v1alpha1.ReasonDeleting},
		{"A10 deletion of what may still come", wanted(deleting), intended(time.Minute), absent, Report, v1alpha1.ReasonDeleting},
		{"A10 a refusal is no proof", wanted(deleting), refusedAs(v1alpha1.ReasonWaitingForCapacity, time.Minute, 1), absent, Report, v1alpha1.ReasonDeleting},
		{"deletion with a lost record is confirmed too", wanted(deleting), v1alpha1.Instance{}, absent, RecordMissing, v1alpha1.ReasonDeleting},
		{"the name is held by another", wanted(deleting), seen, found(providers.StateRunning, foreign), RemoveFinalizer, v1alpha1.ReasonNameCollision},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := Decide(test.desired, test.recorded, test.observed, tableNow, tableTiming)
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
