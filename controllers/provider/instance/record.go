package instance

import (
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// The functions here make the next record, status.instance, from the last one. They are pure; each corresponds to one
// kind of action or to its outcome.

// recordIntent starts an attempt: nothing of an earlier one is left but the count.
func recordIntent(d Desired, r v1alpha1.Instance, name string, now time.Time) v1alpha1.Instance {
	return v1alpha1.Instance{
		Name: name, Zone: d.Zone, DesiredHash: d.Hash, ClassGeneration: d.ClassGeneration,
		IntentTime: stamp(now), Attempt: nextAttempt(d, r, now),
	}
}

// recordCreated takes the answer to Create in. An unknown outcome leaves the record as it is: until the window closes the
// call is repeated, and then the attempt settles.
func recordCreated(d Desired, r v1alpha1.Instance, receipt providers.Receipt, err error, now time.Time) v1alpha1.Instance {
	r.MissingTime = nil
	r.DesiredHash = d.Hash
	switch providers.ReasonOf(err) {
	case "", providers.AlreadyExists:
		r.SubmittedTime, r.Operation = stamp(now), receipt.Operation
		r.State, r.Message = "", ""
	case providers.InvalidSpec, providers.Capacity, providers.Auth, providers.Conflict:
		r.State, r.Message = errorReason(err), providers.StableMessage(err)
	}
	return r
}

// recordFound takes an instance of ours in.
func recordFound(d Desired, r v1alpha1.Instance, i providers.Instance, now time.Time) v1alpha1.Instance {
	next := r
	i = keepAddresses(r, i)
	if r.ID != i.ID || r.StartedTime == nil {
		next.StartedTime = stamp(now)
	}
	next.Name, next.ID, next.ProviderID, next.Hash = i.Name, i.ID, i.ProviderID, i.Hash
	if i.Zone != "" {
		next.Zone = i.Zone
	}
	if d.Hash != "" {
		next.DesiredHash = d.Hash
	}
	if d.Hash != "" && i.Hash == d.Hash {
		// It is what is asked for now; of another one the port is what was recorded when it was.
		next.Port = d.Port
	}
	next.MissingTime = nil
	next.CreationTime = nil
	if !i.CreatedAt.IsZero() {
		next.CreationTime = stamp(i.CreatedAt)
	}
	next.State, next.Addresses = string(i.State), i.Addresses
	if i.State == providers.StateTerminating {
		// Nobody should send anything there, and the message says why it goes.
		next.Addresses = nil
		if r.State != string(providers.StateTerminating) {
			next.Message = i.Message
		}
	} else {
		next.Message = i.Message
	}
	return next
}

// recordDeleting notes that the provider accepted to delete the incarnation that was just taken in.
func recordDeleting(r v1alpha1.Instance, message string) v1alpha1.Instance {
	r.State, r.Message, r.Addresses = string(providers.StateTerminating), message, nil
	return r
}

// recordMissing notes the first NotFound. Times are stored in whole seconds; rounding up keeps Confirm whole.
func recordMissing(r v1alpha1.Instance, now time.Time) v1alpha1.Instance {
	up := now.Truncate(time.Second)
	if up.Before(now) {
		up = up.Add(time.Second)
	}
	r.MissingTime = stamp(up)
	return r
}

// recordEnded notes how an attempt came to nothing after it had been accepted. What may have been seen of its instance is
// no longer true.
func recordEnded(r v1alpha1.Instance, why Finding) v1alpha1.Instance {
	r.State, r.Message = why.Reason, why.Message
	r.ID, r.ProviderID, r.Hash, r.Addresses = "", "", "", nil
	r.StartedTime, r.CreationTime, r.MissingTime = nil, nil, nil
	return r
}

// recordGone clears what is no longer true of an instance that is confirmed to be gone and not made anew.
func recordGone(r v1alpha1.Instance) v1alpha1.Instance {
	r.Addresses = nil
	return r
}

// ClockSkew is how far a recorded time may lie ahead. Leaders follow one another on several machines; what lies further ahead
// was written by a clock that was wrong, and nothing waits for it.
const ClockSkew = 5 * time.Minute

// plausible is a record without times that cannot be true: what is said to begin later begins now.
func plausible(r v1alpha1.Instance, now time.Time) v1alpha1.Instance {
	for _, t := range []**metav1.Time{&r.IntentTime, &r.SubmittedTime, &r.StartedTime} {
		if *t != nil && (*t).After(now.Add(ClockSkew)) {
			*t = stamp(now)
		}
	}
	if r.MissingTime != nil && r.MissingTime.After(now.Add(ClockSkew)) {
		r.MissingTime = nil
	}
	return r
}

func isPlausible(r v1alpha1.Instance, now time.Time) bool {
	return equality.Semantic.DeepEqual(r, plausible(r, now))
}

// serving tells whether an instance runs and can be reached.
func serving(i providers.Instance) bool {
	return i.State == providers.StateRunning && len(i.Addresses) > 0
}

// keepAddresses gives an instance that runs the addresses it had, when the provider does not know them just now: who tells
// them, a DHCP server or a guest, may be away for a while. Whether the proxy still answers there is for its probes to say.
func keepAddresses(r v1alpha1.Instance, i providers.Instance) providers.Instance {
	if i.State == providers.StateRunning && i.ID == r.ID && len(i.Addresses) == 0 {
		i.Addresses = r.Addresses
	}
	return i
}

func stamp(t time.Time) *metav1.Time {
	s := metav1.NewTime(t)
	return &s
}
