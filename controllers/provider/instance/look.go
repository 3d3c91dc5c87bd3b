package instance

import (
	"context"

	"crawl.example.com/egress-proxies-operator/providers"
)

// ref finds the instance in any incarnation. Where it is only the status tells: the first intent may be an old one, when
// the status was lost.
func (s *subject) ref() providers.Ref {
	ref := providers.Ref{Namespace: s.px.Namespace, Name: s.name}
	if i := s.px.Status.Instance; i != nil {
		ref.Zone, ref.ProviderID, ref.Operation = i.Zone, i.ProviderID, i.Operation
	}
	return ref
}

// look asks the provider.
func (r *Reconciler) look(ctx context.Context, s *subject) {
	record, asked := s.record(), r.Clock.Now()
	instance, err := s.provider.Get(ctx, s.ref())
	if providers.IsPartial(err) {
		instance, err = r.lookNearby(ctx, s, err)
	}
	s.observed = &Observed{Time: asked, Found: err == nil, Instance: instance}
	if err != nil && !providers.IsNotFound(err) {
		s.observed.Err = err
	}
	if outcome := providers.OutcomeOf(err); outcome != "" && record.Operation != "" {
		s.observed.Ended = &Finding{reasonOf(outcome), providers.StableMessage(err)}
		record = recordEnded(record, *s.observed.Ended)
	}
	if s.desired.Deleting || s.desired.Hold != nil || s.observed.Found || s.observed.Err != nil {
		return
	}
	s.desired.Zone, err = chooseZone(s.provider, s.px.Spec.DeepCopy(), s.px.UID, s.class.Generation, record, asked, r.Timing)
	if err != nil {
		s.desired.Hold = &Finding{errorReason(err), providers.StableMessage(err)}
	}
}

// lookNearby is what can be said while some places do not answer. They hold up neither a Proxy that never had an instance nor one
// whose first intent says where its only attempt is: while that one is open it follows each attempt in another place, and a further
// one there has the same name. For any other Proxy the answer stays what it was, none.
func (r *Reconciler) lookNearby(ctx context.Context, s *subject, partial error) (providers.Instance, error) {
	first, begun := firstOf(s.px)
	switch {
	case untouched(s.px, r.finalizer):
		return providers.Instance{}, providers.NewError(providers.NotFound, "", "", partial)
	case !begun:
		return providers.Instance{}, partial
	}
	ref, open := s.ref(), r.unsettledFirst(first)
	ref.Zone = first.Zone
	instance, err := s.provider.Get(ctx, ref)
	switch {
	case err == nil && instance.Owner.UID == s.px.UID:
		return instance, nil
	case providers.IsNotFound(err) && open:
		return instance, err
	}
	return providers.Instance{}, partial
}

// unsettledFirst tells whether the first intent is so young that no other place has been tried without it saying so.
func (r *Reconciler) unsettledFirst(first firstIntent) bool {
	return r.Clock.Now().Before(first.Time.Add(r.Timing.Settle))
}
