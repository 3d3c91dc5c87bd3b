package record

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Reasons of lease conditions that only leasing knows.
const (
	// ReasonProxyGone is that the lease's proxy does not exist any more.
	ReasonProxyGone = "ProxyGone"
)

// maxObservedReports is how many reports a lease remembers; the schema's bound.
const maxObservedReports = 16

// Grant is what the allocator decided for a lease.
type Grant struct {
	Binding
	TTLSeconds int32
	// Time is when it was decided, by the allocator's clock.
	Time time.Time
}

// Expiry of the grant if it is never renewed.
func (g Grant) Expiry() time.Time { return g.Time.Add(time.Duration(g.TTLSeconds) * time.Second) }

// Bound is the status of a lease that was just granted px. A renewal that was asked for until now is taken in by it.
func Bound(l *v1alpha1.ProxyLease, px *v1alpha1.Proxy, g Grant) *v1alpha1.ProxyLeaseStatus {
	s := l.Status.DeepCopy()
	s.Phase = v1alpha1.LeaseBound
	s.ProxyRef = &v1alpha1.BoundProxy{
		Namespace: l.Namespace, Name: g.ProxyName, UID: g.ProxyUID, InstanceID: g.InstanceID,
		URL: URL(px), EgressIP: EgressIP(px),
	}
	s.CredentialsSecretRef = px.Spec.CredentialsSecretRef.DeepCopy()
	s.BoundTime = microTime(g.Time)
	s.ExpireTime = microTime(g.Expiry())
	s.LastRenewTime = l.Spec.RenewTime.DeepCopy()
	s.EffectiveTTLSeconds = g.TTLSeconds
	s.GrantEpoch, s.GrantSeq = g.Epoch, g.Seq
	setCondition(s, l, metav1.Condition{
		Type: v1alpha1.ConditionBound, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonGranted, Message: "Holds proxy " + g.ProxyName,
	}, g.Time)
	setProxyConditions(s, l, px, g.Time)
	return s
}

// Mirrored is the status of a lease that was granted by its spec (HTTP) and has none yet: the same as if it had been bound
// by its status. Of any other lease it is the status it has.
func Mirrored(l *v1alpha1.ProxyLease, px *v1alpha1.Proxy, now time.Time) *v1alpha1.ProxyLeaseStatus {
	g := l.Spec.Grant
	if g == nil || l.Status.ProxyRef != nil {
		return l.Status.DeepCopy()
	}
	s := l.Status.DeepCopy()
	s.Phase = v1alpha1.LeaseBound
	s.ProxyRef = &v1alpha1.BoundProxy{Namespace: l.Namespace, Name: g.ProxyName, UID: g.ProxyUID, InstanceID: g.InstanceID}
	if px != nil && px.UID == g.ProxyUID {
		s.ProxyRef.URL, s.ProxyRef.EgressIP = URL(px), EgressIP(px)
		s.CredentialsSecretRef = px.Spec.CredentialsSecretRef.DeepCopy()
	}
	s.EffectiveTTLSeconds = TTLSeconds(l)
	s.ExpireTime = microTime(Expiry(l))
	s.BoundTime = microTime(g.ExpireTime.Add(-TTL(l)))
	s.GrantEpoch, s.GrantSeq = g.Epoch, g.Seq
	setCondition(s, l, metav1.Condition{
		Type: v1alpha1.ConditionBound, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonGranted, Message: "Holds proxy " + g.ProxyName,
	}, now)
	if px != nil && px.UID == g.ProxyUID {
		setProxyConditions(s, l, px, now) // or that would be another write
	}
	return s
}

// Renewed is the status of a bound lease that lives for another TTL from now on.
func Renewed(l *v1alpha1.ProxyLease, px *v1alpha1.Proxy, now time.Time) *v1alpha1.ProxyLeaseStatus {
	s := Mirrored(l, px, now)
	until := now.Add(TTL(l))
	if s.ExpireTime == nil || until.After(s.ExpireTime.Time) {
		s.ExpireTime = microTime(until)
	}
	s.LastRenewTime = l.Spec.RenewTime.DeepCopy()
	return s
}

// ExtendTo stores in s that the renewal which l asks for is taken in and that the lease ends at that moment.
func ExtendTo(s *v1alpha1.ProxyLeaseStatus, l *v1alpha1.ProxyLease, at time.Time) {
	if s.ExpireTime == nil || at.After(s.ExpireTime.Time) {
		s.ExpireTime = microTime(at)
	}
	s.LastRenewTime = l.Spec.RenewTime.DeepCopy()
}

// Waiting is the status of a lease that could not be granted yet.
func Waiting(l *v1alpha1.ProxyLease, reason, message string, now time.Time) *v1alpha1.ProxyLeaseStatus {
	s := l.Status.DeepCopy()
	s.Phase = v1alpha1.LeasePending
	setCondition(s, l, metav1.Condition{
		Type: v1alpha1.ConditionBound, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}, now)
	return s
}

// Ended is the status of a lease that ended: Expired, Revoked or Failed.
func Ended(l *v1alpha1.ProxyLease, px *v1alpha1.Proxy, phase v1alpha1.LeasePhase, reason, message string, now time.Time) *v1alpha1.ProxyLeaseStatus {
	s := Mirrored(l, px, now)
	s.Phase = phase
	s.FinishTime = microTime(now)
	setCondition(s, l, metav1.Condition{
		Type: v1alpha1.ConditionBound, Status: metav1.ConditionFalse, Reason: reason, Message: message,
	}, now)
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionProxyReady)
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionDraining)
	meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionOvercommitted)
	return s
}

// Followed is the status of a bound lease brought up to what is known of its proxy; px is nil when the proxy is gone, and
// overcommitted says that it carries more leases than its capacity.
func Followed(l *v1alpha1.ProxyLease, px *v1alpha1.Proxy, overcommitted bool, now time.Time) *v1alpha1.ProxyLeaseStatus {
	s := Mirrored(l, px, now)
	setProxyConditions(s, l, px, now)
	setOvercommitted(s, l, overcommitted, now)
	return s
}

// setProxyConditions says how the lease's proxy fares.
func setProxyConditions(s *v1alpha1.ProxyLeaseStatus, l *v1alpha1.ProxyLease, px *v1alpha1.Proxy, now time.Time) {
	ready := metav1.Condition{
		Type: v1alpha1.ConditionProxyReady, Status: metav1.ConditionFalse,
		Reason: ReasonProxyGone, Message: "The proxy does not exist any more",
	}
	if px != nil {
		ready.Status, ready.Reason, ready.Message = metav1.ConditionUnknown, v1alpha1.ReasonPending, "Nothing is known of the proxy yet"
		if c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady); c != nil {
			ready.Status, ready.Reason, ready.Message = c.Status, c.Reason, c.Message
		}
	}
	setCondition(s, l, ready, now)

	draining := metav1.Condition{
		Type: v1alpha1.ConditionDraining, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonNotRequested, Message: "The proxy is not asked to drain",
	}
	if px != nil && Draining(px) {
		draining.Status, draining.Reason = metav1.ConditionTrue, v1alpha1.ReasonDraining
		draining.Message = "The proxy is asked to drain"
		if deadline := EmptyBy(px); !deadline.IsZero() {
			draining.Message = fmt.Sprintf("The proxy is asked to drain until %s", deadline.UTC().Format(time.RFC3339))
		}
	}
	setCondition(s, l, draining, now)
}

// setOvercommitted says that the lease's proxy carries too many leases, and when that is over that it is. Of a proxy that never
// did nothing is said.
func setOvercommitted(s *v1alpha1.ProxyLeaseStatus, l *v1alpha1.ProxyLease, overcommitted bool, now time.Time) {
	c := metav1.Condition{
		Type: v1alpha1.ConditionOvercommitted, Status: metav1.ConditionFalse,
		Reason: v1alpha1.ReasonWithinCapacity, Message: "The proxy carries no more leases than its capacity",
	}
	switch {
	case overcommitted:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, v1alpha1.ReasonAboveCapacity, "The proxy carries more leases than its capacity and takes no others"
	case meta.FindStatusCondition(s.Conditions, c.Type) == nil:
		return
	}
	setCondition(s, l, c, now)
}

// Draining tells whether a Proxy is asked to become empty.
func Draining(px *v1alpha1.Proxy) bool {
	return len(px.Spec.DrainRequests) > 0 || !px.DeletionTimestamp.IsZero()
}

// DrainTimeout is how long leases may run on after a Proxy was deleted.
func DrainTimeout(px *v1alpha1.Proxy) time.Duration {
	if px.Spec.Deletion == nil || px.Spec.Deletion.DrainTimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*px.Spec.Deletion.DrainTimeoutSeconds) * time.Second
}

// DrainDeadline is the earliest deadline of the requests to drain a Proxy; zero when none has one.
func DrainDeadline(px *v1alpha1.Proxy) time.Time {
	var earliest time.Time
	for _, request := range px.Spec.DrainRequests {
		if t := request.DeadlineTime; t != nil && (earliest.IsZero() || t.Time.Before(earliest)) {
			earliest = t.Time
		}
	}
	return earliest
}

// EmptyBy is when the leases of a draining Proxy end at the latest, which is when they are revoked: the earlier of the deadline
// that somebody has set and the one that follows from its deletion. Who was told of one is not told of a later one because
// another way to drain the Proxy was taken in between. Zero: nobody says.
func EmptyBy(px *v1alpha1.Proxy) time.Time {
	end := DrainDeadline(px)
	if d := px.DeletionTimestamp; !d.IsZero() {
		if deleted := d.Add(DrainTimeout(px)); end.IsZero() || deleted.Before(end) {
			end = deleted
		}
	}
	return end
}

// NewReports are the reports of spec that the status has not taken in yet, and whether each is the first of its target:
// further ones of the same lease are repetitions.
func NewReports(l *v1alpha1.ProxyLease) (reports []v1alpha1.LeaseReport, first []bool) {
	for _, r := range l.Spec.Reports {
		seen := findObserved(l.Status.ObservedReports, r.Target)
		if seen != nil && seen.Count >= max(r.Count, 1) && seen.Result == string(r.Result) {
			continue
		}
		reports = append(reports, r)
		first = append(first, seen == nil)
	}
	return reports, first
}

// Reported tells whether the lease has already reported the target.
func Reported(l *v1alpha1.ProxyLease, target string) bool {
	return findObserved(l.Status.ObservedReports, target) != nil
}

// Observe puts a report of l that was taken in into its status s. The list is bounded by the schema. What it drops first is the
// oldest that is not in l's spec: a report that stands there and is forgotten would be taken in again, as the first of its
// target. A spec that has as many reports leaves no room for those that came by HTTP.
func Observe(l *v1alpha1.ProxyLease, s *v1alpha1.ProxyLeaseStatus, r v1alpha1.LeaseReport) {
	if o := findObserved(s.ObservedReports, r.Target); o != nil {
		o.Result, o.Count = string(r.Result), max(o.Count, r.Count, 1)
		return
	}
	s.ObservedReports = append(s.ObservedReports, v1alpha1.ObservedReport{
		Target: r.Target, Result: string(r.Result), Count: max(r.Count, 1),
	})
	for len(s.ObservedReports) > maxObservedReports {
		oldest := slices.IndexFunc(s.ObservedReports, func(o v1alpha1.ObservedReport) bool {
			return !slices.ContainsFunc(l.Spec.Reports, func(r v1alpha1.LeaseReport) bool { return r.Target == o.Target })
		})
		oldest = max(oldest, 0) // the spec has more than the schema admits
		s.ObservedReports = slices.Delete(s.ObservedReports, oldest, oldest+1)
	}
}

func findObserved(list []v1alpha1.ObservedReport, target string) *v1alpha1.ObservedReport {
	for i := range list {
		if list[i].Target == target {
			return &list[i]
		}
	}
	return nil
}

func setCondition(s *v1alpha1.ProxyLeaseStatus, l *v1alpha1.ProxyLease, c metav1.Condition, now time.Time) {
	c.ObservedGeneration = l.Generation
	c.LastTransitionTime = metav1.NewTime(now)
	if old := meta.FindStatusCondition(s.Conditions, c.Type); old != nil && old.Status == c.Status &&
		old.Reason == c.Reason && old.Message == c.Message {
		// A renewal bumps the generation; by itself that is no reason to write.
		return
	}
	meta.SetStatusCondition(&s.Conditions, c)
}

func microTime(t time.Time) *metav1.MicroTime {
	m := metav1.NewMicroTime(t.Truncate(time.Microsecond))
	return &m
}
