package instance

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// BackoffMin is the time from the first attempt to create to the second; it doubles with each further one.
	BackoffMin = 10 * time.Second
	// BackoffMax is the longest time between two attempts.
	BackoffMax = 10 * time.Minute
	// Steady is how long after an attempt the count of attempts starts anew.
	Steady = 2 * BackoffMax
	// authRetry is the time between two looks while the class's credentials are refused. The class is checked more often
	// and wakes its Proxies when it is well again.
	authRetry = time.Minute
)

// Desired is what the Proxy and its class ask for. Everything is derived from stored objects; nothing is remembered in
// the process.
type Desired struct {
	UID types.UID
	// Hash of what the instance should be made from; "" when it cannot be computed now, which is never a difference.
	Hash string
	// Port that is asked for.
	Port int32
	// Zone for the next attempt.
	Zone string
	// ClassGeneration the next attempt is made from.
	ClassGeneration int64
	// ProvisionTimeout is how long an instance may take to run after it was first seen.
	ProvisionTimeout time.Duration
	Deleting         bool
	// Finalizer tells whether ours is stored.
	Finalizer bool
	// OnDelete leaves the replacement for a changed specification to the owner of the Proxy.
	OnDelete bool
	// Blind is why the provider cannot be asked; nil when it can.
	Blind *Finding
	// Hold is why nothing may be created or replaced now; nil when it may.
	Hold *Finding
}

// Finding is a reason and a stable sentence for a condition.
type Finding struct {
	Reason, Message string
}

// Observed is the provider's answer to Get.
type Observed struct {
	// Time is when the provider was asked. The answer is no newer, however late it came; zero means now.
	Time time.Time
	// Err is any error but NotFound: then nothing is known.
	Err      error
	Found    bool
	Instance providers.Instance
	// Ended is how the recorded attempt came to nothing, when nothing is found and the provider knows; nil else.
	Ended *Finding
}

// Kind of an Action.
type Kind string

// The actions. Look, AddFinalizer, RecordFirstIntent and RecordIntent are followed by another decision in the same reconcile;
// all others end it.
const (
	// Ignore: nothing to do and nothing to write.
	Ignore Kind = "Ignore"
	// Look: ask the provider.
	Look Kind = "Look"
	// AddFinalizer to a Proxy that has an instance already.
	AddFinalizer Kind = "AddFinalizer"
	// RecordFirstIntent stores the finalizer together with the first intent.
	RecordFirstIntent Kind = "RecordFirstIntent"
	// RecordIntent stores that and where a further instance is about to be created.
	RecordIntent Kind = "RecordIntent"
	// Create calls the provider.
	Create Kind = "Create"
	// Delete calls the provider for the incarnation that was observed.
	Delete Kind = "Delete"
	// RecordMissing stores the first NotFound.
	RecordMissing Kind = "RecordMissing"
	// Report writes the status only.
	Report Kind = "Report"
	// RemoveFinalizer releases the Proxy, at the resourceVersion of this decision.
	RemoveFinalizer Kind = "RemoveFinalizer"
)

// Action is the one thing to do.
type Action struct {
	Kind Kind
	// Reason is one of the reasons of the Provisioned condition.
	Reason string
	// Message is a stable sentence; "" leaves it to the reason.
	Message string
	// After is when to look again; 0 leaves it to events, or to the rate limiter when the observation failed.
	After time.Duration
}

// Decide is the whole provisioning: what to do for one Proxy, from what is asked for, what is stored and what the provider
// says (nil: not asked yet). It is pure. r may be stale or lost; the rules hold nevertheless, see the package comment.
func Decide(d Desired, r v1alpha1.Instance, o *Observed, now time.Time, t providers.Timing) Action {
	// asked is the age of what is known: the rules about NotFound go by it, not by when the answer came.
	asked := now
	if o != nil && !o.Time.IsZero() {
		asked = o.Time
	}
	if d.Deleting {
		return decideDeletion(d, r, o, asked, now, t)
	}
	if !d.Finalizer {
		switch {
		case recorded(r):
			// There may be an instance, whatever forbids to make one now.
			return Action{Kind: AddFinalizer}
		case d.Hold != nil:
			// What cannot be created leaves no finalizer: the Proxy can be deleted at once.
			return Action{Report, d.Hold.Reason, d.Hold.Message, t.Slow}
		case d.Blind != nil:
			return Action{Report, d.Blind.Reason, d.Blind.Message, t.Slow}
		case o == nil:
			return Action{Kind: Look}
		case o.Err != nil:
			// As long as the provider cannot be asked nothing is tried, and the Proxy can be deleted without it.
			return failed(o.Err)
		case o.Found && o.Instance.Owner.UID != d.UID:
			return Action{Kind: Report, Reason: v1alpha1.ReasonNameCollision, After: t.Slow}
		case o.Found:
			return Action{Kind: AddFinalizer}
		}
		return Action{Kind: RecordFirstIntent, Reason: v1alpha1.ReasonCreating}
	}
	switch {
	case d.Blind != nil:
		return Action{Report, d.Blind.Reason, d.Blind.Message, t.Slow}
	case o == nil:
		return Action{Kind: Look}
	case o.Err != nil:
		return failed(o.Err)
	case o.Found:
		return decideFound(d, r, o.Instance, asked, now, t)
	case o.Ended != nil && r.Operation != "":
		// A new attempt, which has no operation yet, is not meant.
		return decideEnded(d, r, *o.Ended, now, t)
	}
	return decideNotFound(d, r, asked, now, t)
}

func decideDeletion(d Desired, r v1alpha1.Instance, o *Observed, asked, now time.Time, t providers.Timing) Action {
	switch {
	case !d.Finalizer:
		return Action{Kind: Ignore}
	case d.Blind != nil:
		return Action{Report, d.Blind.Reason, d.Blind.Message, t.Slow}
	case o == nil:
		return Action{Kind: Look}
	case o.Err != nil:
		return failed(o.Err)
	case o.Found && o.Instance.Owner.UID != d.UID && unsettled(r, asked, t):
		// It may go, and then a call that is still on its way makes ours.
		return Action{Kind: Report, Reason: v1alpha1.ReasonNameCollision, After: poll(r, now, t)}
	case o.Found && o.Instance.Owner.UID != d.UID:
		// The name is taken, so ours cannot exist under it.
		return Action{Kind: RemoveFinalizer, Reason: v1alpha1.ReasonNameCollision}
	case o.Found && o.Instance.State == providers.StateTerminating:
		return Action{Kind: Report, Reason: v1alpha1.ReasonDeleting, After: poll(r, now, t)}
	case o.Found:
		return Action{Kind: Delete, Reason: v1alpha1.ReasonDeleting, After: t.Poll}
	case unsettled(r, asked, t):
		return Action{Kind: Report, Reason: v1alpha1.ReasonDeleting, Message: "waiting for the outcome of the last attempt to create", After: poll(r, now, t)}
	case r.MissingTime == nil:
		return Action{Kind: RecordMissing, Reason: v1alpha1.ReasonDeleting, After: t.Confirm}
	case !confirmed(r, asked, t):
		return Action{Kind: Report, Reason: v1alpha1.ReasonDeleting, After: untilConfirmed(r, now, t)}
	}
	return Action{Kind: RemoveFinalizer, Reason: v1alpha1.ReasonDeleting}
}

func decideFound(d Desired, r v1alpha1.Instance, i providers.Instance, asked, now time.Time, t providers.Timing) Action {
	i = keepAddresses(r, i)
	broken := i.State == providers.StateFailed || i.State == providers.StateStopped
	running := serving(i)
	differs := !d.OnDelete && providers.HashDiffers(i.Hash, d.Hash)
	// An incarnation that the record does not know is taken in before it is judged: what it would be judged by may be older
	// than it is, and then taking it in fails for its resourceVersion.
	known := r.ID == i.ID
	again := t.Slow
	if !known && d.Hold == nil && (differs || broken) {
		again = t.Poll
	}
	switch {
	case i.Owner.UID != d.UID:
		return Action{Kind: Report, Reason: v1alpha1.ReasonNameCollision, After: t.Slow}
	case i.State == providers.StateTerminating:
		return Action{Kind: Report, Reason: v1alpha1.ReasonReplacing, After: poll(r, now, t)}
	case known && d.Hold == nil && differs:
		return Action{Kind: Delete, Reason: v1alpha1.ReasonSpecChanged, After: t.Poll}
	case known && d.Hold == nil && broken:
		return Action{Kind: Delete, Reason: v1alpha1.ReasonInstanceFailed, After: t.Poll}
	case broken:
		return Action{Kind: Report, Reason: v1alpha1.ReasonInstanceFailed, After: again}
	case running:
		return Action{Kind: Report, Reason: v1alpha1.ReasonRunning, After: again}
	case known && r.StartedTime != nil && asked.After(r.StartedTime.Add(d.ProvisionTimeout)):
		if d.Hold == nil {
			return Action{Kind: Delete, Reason: v1alpha1.ReasonProvisionTimeout, After: t.Poll}
		}
		return Action{Kind: Report, Reason: v1alpha1.ReasonProvisionTimeout, After: t.Slow}
	}
	return Action{Kind: Report, Reason: v1alpha1.ReasonStarting, After: poll(r, now, t)}
}

func decideNotFound(d Desired, r v1alpha1.Instance, asked, now time.Time, t providers.Timing) Action {
	if r.ID != "" {
		return decideLost(d, r, asked, now, t)
	}
	switch {
	case d.Hold != nil:
		return Action{Report, d.Hold.Reason, d.Hold.Message, t.Slow}
	case r.IntentTime == nil:
		return Action{Kind: RecordIntent, Reason: v1alpha1.ReasonCreating}
	}
	age := asked.Sub(r.IntentTime.Time)
	moving := d.Zone != r.Zone
	// why is what to say while the attempt is given up.
	why := Finding{Reason: v1alpha1.ReasonCreateVanished}
	if refused(r) {
		why = Finding{r.State, r.Message}
	}
	switch {
	case refused(r) && r.State == v1alpha1.ReasonInvalidSpec && !moving && !changed(d, r) && d.ClassGeneration == r.ClassGeneration:
		// Waiting does not help.
		return Action{Report, why.Reason, why.Message, t.Slow}
	case refused(r) && !moving && backoffLeft(d, r, now) > 0:
		return Action{Report, why.Reason, why.Message, backoffLeft(d, r, now)}
	case refused(r) && !moving:
		// In the same place a further intent is harmless before the first has settled: there the name is taken or it is not.
		return Action{Kind: RecordIntent, Reason: why.Reason, Message: why.Message}
	case !refused(r) && !moving && r.SubmittedTime == nil && now.Before(r.IntentTime.Add(t.Window)):
		return Action{Kind: Create, Reason: v1alpha1.ReasonCreating, After: t.Poll}
	case !refused(r) && age < t.Settle:
		return Action{Kind: Report, Reason: v1alpha1.ReasonCreating, After: min(poll(r, now, t), t.Settle-age)}
	case age < t.Settle:
		return Action{Report, why.Reason, why.Message, t.Settle - age}
	case r.MissingTime == nil:
		return Action{RecordMissing, why.Reason, why.Message, t.Confirm}
	case !confirmed(r, asked, t):
		return Action{Report, why.Reason, why.Message, untilConfirmed(r, now, t)}
	case !moving && backoffLeft(d, r, now) > 0:
		return Action{Report, why.Reason, why.Message, backoffLeft(d, r, now)}
	}
	return Action{Kind: RecordIntent, Reason: why.Reason, Message: why.Message}
}

// decideEnded is about an attempt that the provider accepted and knows to have ended without an instance: there is nothing
// to settle and nothing to confirm. Another place is tried at once.
func decideEnded(d Desired, r v1alpha1.Instance, why Finding, now time.Time, t providers.Timing) Action {
	moving := d.Zone != r.Zone
	switch {
	case d.Hold != nil:
		return Action{Report, d.Hold.Reason, d.Hold.Message, t.Slow}
	case why.Reason == v1alpha1.ReasonInvalidSpec && !moving && !changed(d, r) && d.ClassGeneration == r.ClassGeneration:
		return Action{Report, why.Reason, why.Message, t.Slow}
	case !moving && backoffLeft(d, r, now) > 0:
		return Action{Report, why.Reason, why.Message, backoffLeft(d, r, now)}
	}
	return Action{Kind: RecordIntent, Reason: why.Reason, Message: why.Message}
}

// decideLost is about an instance that was seen and is not found now.
func decideLost(d Desired, r v1alpha1.Instance, asked, now time.Time, t providers.Timing) Action {
	unconfirmed, gone := v1alpha1.ReasonInstanceMissing, v1alpha1.ReasonInstanceLost
	if r.State == string(providers.StateTerminating) {
		// It was asked to go.
		unconfirmed, gone = v1alpha1.ReasonReplacing, v1alpha1.ReasonReplacing
	}
	switch {
	case r.MissingTime == nil:
		return Action{Kind: RecordMissing, Reason: unconfirmed, After: t.Confirm}
	case !confirmed(r, asked, t):
		return Action{Kind: Report, Reason: unconfirmed, After: untilConfirmed(r, now, t)}
	case d.Hold != nil:
		return Action{Report, d.Hold.Reason, d.Hold.Message, t.Slow}
	case d.Zone != r.Zone && unsettled(r, asked, t):
		return Action{Kind: Report, Reason: gone, After: max(t.Poll, r.IntentTime.Add(t.Settle).Sub(now))}
	case backoffLeft(d, r, now) > 0:
		return Action{Kind: Report, Reason: gone, After: backoffLeft(d, r, now)}
	}
	return Action{Kind: RecordIntent, Reason: gone}
}

// failed is the answer to an error of Get: nothing is known, so nothing is done.
func failed(err error) Action {
	reason := errorReason(err)
	after := providers.RetryAfterOf(err)
	if after == 0 && reason == v1alpha1.ReasonAuthFailed {
		after = authRetry
	}
	return Action{Report, reason, providers.StableMessage(err), after}
}

// errorReasons translates the taxonomy into reasons of conditions.
var errorReasons = map[providers.Reason]string{
	providers.Conflict:    v1alpha1.ReasonNameCollision,
	providers.InvalidSpec: v1alpha1.ReasonInvalidSpec,
	providers.Capacity:    v1alpha1.ReasonWaitingForCapacity,
	providers.RateLimited: v1alpha1.ReasonRateLimited,
	providers.Auth:        v1alpha1.ReasonAuthFailed,
}

func errorReason(err error) string { return reasonOf(providers.ReasonOf(err)) }

func reasonOf(of providers.Reason) string {
	if reason, ok := errorReasons[of]; ok {
		return reason
	}
	return v1alpha1.ReasonProviderUnreachable
}

// refused tells whether the provider said no to the current attempt. It is no proof that nothing exists: an earlier call
// of the same attempt, whose reply was lost, may have been accepted.
func refused(r v1alpha1.Instance) bool {
	switch r.State {
	case v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonWaitingForCapacity, v1alpha1.ReasonAuthFailed, v1alpha1.ReasonNameCollision:
		return true
	}
	return false
}

// unsettled tells whether an attempt may still come to something although Get says NotFound. That an instance was seen
// meanwhile does not matter: a predecessor's call for the same attempt may be on its way.
func unsettled(r v1alpha1.Instance, now time.Time, t providers.Timing) bool {
	return r.IntentTime != nil && now.Before(r.IntentTime.Add(t.Settle))
}

func confirmed(r v1alpha1.Instance, now time.Time, t providers.Timing) bool {
	return r.MissingTime != nil && !now.Before(r.MissingTime.Add(t.Confirm))
}

// untilConfirmed is when to look again; soon, when the last answer took too long to count.
func untilConfirmed(r v1alpha1.Instance, now time.Time, t providers.Timing) time.Duration {
	return max(t.Poll, r.MissingTime.Add(t.Confirm).Sub(now))
}

// changed tells whether something else is asked for than the last attempt was made from.
func changed(d Desired, r v1alpha1.Instance) bool {
	made := r.Hash
	if made == "" {
		made = r.DesiredHash
	}
	return providers.HashDiffers(made, d.Hash)
}

// nextAttempt is the number of the next attempt: the count starts anew with something new to try and after a long time.
func nextAttempt(d Desired, r v1alpha1.Instance, now time.Time) int32 {
	if r.IntentTime == nil || changed(d, r) || now.Sub(r.IntentTime.Time) >= Steady {
		return 1
	}
	return r.Attempt + 1
}

// backoffLeft is how long the next attempt must wait.
func backoffLeft(d Desired, r v1alpha1.Instance, now time.Time) time.Duration {
	if nextAttempt(d, r, now) == 1 {
		return 0
	}
	return max(0, r.IntentTime.Add(backoff(r.Attempt)).Sub(now))
}

func backoff(attempt int32) time.Duration {
	d := BackoffMin
	for range attempt - 1 {
		if d *= 2; d >= BackoffMax {
			return BackoffMax
		}
	}
	return d
}

// poll grows with the age of what is waited for.
func poll(r v1alpha1.Instance, now time.Time, t providers.Timing) time.Duration {
	since := r.IntentTime
	if r.StartedTime != nil {
		since = r.StartedTime
	}
	if since == nil {
		return t.Poll
	}
	return min(max(t.Poll, now.Sub(since.Time)/10), max(t.Poll, t.PollMax))
}
