package instance

import (
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// rule is one of the rules that keep a Proxy from leaking or doubling its instance, or from losing it for nothing.
type rule int

const (
	none rule = iota
	finalizerFirst
	intentStored
	intentPerCreate
	callEndsWithWindow
	settles
	refusalIsNoProof
	seenDoesNotSettle
	placeStored
	placeKept
	notFoundTwice
	errorIsNotAbsence
	blindIsNotAbsence
	acceptedIsNotGone
	replacementWaits
	releaseLocked
	intentLocked
	statusLocked
	incarnation
	ownerUID
	unknownHash
	hashVersioned
	holdKeeps
	ownerReplaces
	answerHasAge
	foreignIsNoProof
	takenInFirst
)

// loadBearing says what each rule is, and what of it shows when it is switched off.
var loadBearing = []struct {
	rule  rule
	says  string
	shows []counter
}{
	{finalizerFirst, "the finalizer is stored with the first intent", []counter{leaks}},
	{intentStored, "an intent is stored before each Create", []counter{leaks, doubles}},
	{intentPerCreate, "a further Create needs an intent of its own", []counter{leaks, doubles}},
	{callEndsWithWindow, "a Create ends with the window of its intent", []counter{leaks, doubles}},
	{settles, "an attempt settles: the window and the longest invisibility", []counter{leaks, doubles}},
	{refusalIsNoProof, "a refusal is no proof that an earlier call of the attempt came to nothing", []counter{leaks}},
	{seenDoesNotSettle, "that an instance was seen does not settle its attempt", []counter{leaks, doubles}},
	{placeStored, "the place is stored with the intent", []counter{leaks, doubles}},
	{placeKept, "a place is not left before its attempt has settled", []counter{leaks, doubles}},
	{notFoundTwice, "NotFound is believed the second time", []counter{leaks}},
	{errorIsNotAbsence, "an error of Get is not absence", []counter{leaks, doubles}},
	{blindIsNotAbsence, "a class that is gone is not absence", []counter{leaks}},
	{acceptedIsNotGone, "an accepted Delete is not absence", []counter{leaks}},
	{replacementWaits, "a replacement waits for NotFound", []counter{doubles}},
	{releaseLocked, "the release carries the resourceVersion", []counter{leaks}},
	{intentLocked, "an intent carries the resourceVersion", []counter{leaks, doubles}},
	{statusLocked, "every record carries the resourceVersion", []counter{leaks, doubles}},
	{incarnation, "Delete means one incarnation", []counter{wrong}},
	{ownerUID, "what carries another owner's UID is left alone", []counter{foreignDeleted}},
	{unknownHash, "an unknown hash is no difference", []counter{needless}},
	{hashVersioned, "a hash of another version is no difference", []counter{needless}},
	{holdKeeps, "what cannot be made again is not replaced", []counter{needless}},
	{ownerReplaces, "OnDelete leaves the replacement to the owner", []counter{needless}},
	{answerHasAge, "an answer is no newer than its question", []counter{leaks, doubles, needless}},
	{foreignIsNoProof, "that another owner has the name does not settle an attempt", []counter{leaks}},
	{takenInFirst, "an incarnation is taken in before it is judged", []counter{needless}},
}

// bendTiming, and the other functions here, make the life break the rule that is switched off.
func (l *life) bendTiming() {
	switch l.without {
	case settles:
		l.timing.Settle = l.timing.Window
	case notFoundTwice:
		// The stored time is rounded up.
		l.timing.Confirm = -time.Second
	case incarnation:
		l.cloud.anyIncarnation = true
	}
}

func (l *life) bendDesired(d *Desired) {
	switch l.without {
	case finalizerFirst:
		d.Finalizer = d.Finalizer || !d.Deleting
	case blindIsNotAbsence:
		if d.Deleting {
			d.Blind = nil
		}
	case unknownHash:
		if d.Hash == "" && !d.Deleting {
			d.Hash, d.Hold = "v1-unknown", nil
		}
	case holdKeeps:
		d.Hold = nil
	case ownerReplaces:
		d.OnDelete = false
	}
}

func (l *life) bendObserved(s *simSubject) {
	o, d := s.observed, s.desired
	switch l.without {
	case errorIsNotAbsence:
		o.Err = nil
	case ownerUID:
		o.Instance.Owner.UID = d.UID
	case blindIsNotAbsence:
		if l.classGone && d.Deleting {
			*o = Observed{Time: o.Time}
		}
	case acceptedIsNotGone, replacementWaits:
		if o.Found && o.Instance.State == providers.StateTerminating && d.Deleting == (l.without == acceptedIsNotGone) {
			*o = Observed{Time: o.Time}
		}
	case answerHasAge:
		o.Time = l.now
	case hashVersioned:
		if d.Hash != "" && o.Found && o.Instance.Hash[:2] != d.Hash[:2] {
			o.Instance.Hash = d.Hash + "-of-another-version"
		}
	}
}

func (l *life) bendZone(s *simSubject) {
	if l.without == placeStored {
		s.desired.Zone = s.px.stored().Zone
	}
}

// bendRecord is the record as the decision sees it.
func (l *life) bendRecord(s *simSubject) v1alpha1.Instance {
	r := s.record()
	settled := func() {
		if unsettled(r, l.now, l.timing) {
			r.IntentTime = stamp(l.now.Add(-l.timing.Settle))
		}
	}
	switch l.without {
	case refusalIsNoProof:
		if s.desired.Deleting && refused(r) {
			settled()
		}
	case seenDoesNotSettle:
		if r.ID != "" {
			settled()
		}
	case placeKept:
		if s.desired.Zone != r.Zone && !s.desired.Deleting {
			settled()
		}
	case foreignIsNoProof:
		if s.observed != nil && s.observed.Found && s.observed.Instance.Owner.UID == foreignUID {
			settled()
		}
	case takenInFirst:
		if s.observed != nil && s.observed.Found {
			r.ID = s.observed.Instance.ID
		}
	case replacementWaits:
		if r.State == string(providers.StateTerminating) {
			r.MissingTime = stamp(l.now.Add(-l.timing.Confirm))
		}
	}
	return r
}
