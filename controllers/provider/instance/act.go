package instance

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// act carries an action out. more asks for another decision in the same reconcile.
func (r *Reconciler) act(ctx context.Context, s *subject, a *Action) (more bool, err error) {
	record := s.record()
	switch a.Kind {
	case Ignore:
		return false, nil
	case Look:
		r.look(ctx, s)
		return true, nil
	case AddFinalizer:
		return true, r.hold(ctx, s, nil)
	case RecordFirstIntent:
		if err := r.holdClass(ctx, s); err != nil {
			return false, err
		}
		intent := recordIntent(s.desired, record, s.name, r.Clock.Now())
		return true, r.hold(ctx, s, &intent)
	case RecordIntent:
		if err := r.holdClass(ctx, s); err != nil {
			return false, err
		}
		intent := recordIntent(s.desired, record, s.name, r.Clock.Now())
		if first, ok := firstOf(s.px); ok && first.Zone != intent.Zone && r.unsettledFirst(first) {
			// Until then it says where the only attempt is, see lookNearby.
			if err := r.patch(ctx, s.px, func() { annotateIntent(s.px, intent) }); err != nil {
				return false, err
			}
		}
		return true, r.write(ctx, s, *a, intent, nil)
	case Create:
		return false, r.create(ctx, s, a, record)
	case Delete:
		if a.Reason == v1alpha1.ReasonSpecChanged {
			if current, err := r.stillAsked(ctx, s); err != nil || !current {
				if !beingReplaced(s.px) {
					// What runs is not taken down; what is down already keeps its place.
					r.replacements.free(s.key)
				}
				a.After = conflictRetry
				return false, err
			}
		}
		return false, r.delete(ctx, s, a, record)
	case RecordMissing:
		record.Name = s.name
		return false, r.write(ctx, s, *a, recordMissing(record, r.Clock.Now()), nil)
	case RemoveFinalizer:
		if err := r.patch(ctx, s.px, func() { controllerutil.RemoveFinalizer(s.px, r.finalizer) }); err != nil {
			return false, err
		}
		r.release(s.key)
		return false, nil
	}
	return false, r.report(ctx, s, a, record)
}

// report writes what was found, and turns a provider that did not answer into the error that the rate limiter needs.
func (r *Reconciler) report(ctx context.Context, s *subject, a *Action, record v1alpha1.Instance) error {
	var blocked *Finding
	d, o := s.desired, s.observed
	if (o == nil || o.Err != nil) && !statusRecorded(s.px) {
		// Nothing was learned, and the first intent may be an old one, of a Proxy that lost its status: once it is in there, only
		// its place would be looked at.
		record = v1alpha1.Instance{}
	}
	switch {
	case d.Deleting && (d.Blind != nil || (o != nil && o.Err != nil)) && a.Reason != v1alpha1.ReasonRateLimited:
		blocked = &Finding{a.Reason, messageOf(*a)}
	case o != nil && o.Found && o.Instance.Owner.UID == d.UID:
		record = recordFound(d, record, o.Instance, r.Clock.Now())
	case o != nil && o.Ended != nil && record.Operation != "" && !d.Deleting:
		record = recordEnded(record, *o.Ended)
	case o != nil && o.Err == nil && !o.Found && record.ID != "" && confirmed(record, o.Time, r.Timing):
		record = recordGone(record)
	}
	if err := r.write(ctx, s, *a, record, blocked); err != nil {
		return err
	}
	r.giveBack(s, a, record)
	if o != nil && o.Err != nil && a.After == 0 {
		return fmt.Errorf("look at the instance of Proxy %s: %w", s.key, o.Err)
	}
	return nil
}

// giveBack frees the places that a Proxy needs no longer among those that are made or replaced at the same time.
func (r *Reconciler) giveBack(s *subject, a *Action, record v1alpha1.Instance) {
	d, o := s.desired, s.observed
	if a.Reason == v1alpha1.ReasonRunning || d.Hold != nil || !d.Finalizer {
		r.creates.free(s.key)
		r.accepted.forget(s.key)
	}
	ours := o != nil && o.Found && o.Instance.Owner.UID == d.UID
	if o != nil && o.Err == nil && a.Reason != v1alpha1.ReasonCreating && !ours {
		// The attempt came to nothing, or to somebody else's instance. The next one asks for a place again.
		r.creates.free(s.key)
	}
	if a.Reason == v1alpha1.ReasonRunning && (d.Hold != nil || d.OnDelete || !providers.HashDiffers(record.Hash, d.Hash)) {
		// It is not down any more, or was never taken down.
		r.replacements.free(s.key)
	}
}

// create makes the one call that an intent stands for. Its context ends with the window, so that the outcome is known by
// the time the attempt has settled.
func (r *Reconciler) create(ctx context.Context, s *subject, a *Action, record v1alpha1.Instance) error {
	bounded, cancel := context.WithTimeout(ctx, record.IntentTime.Add(r.Timing.Window).Sub(r.Clock.Now()))
	defer cancel()
	receipt, err := s.provider.Create(bounded, providers.CreateRequest{
		Name:        s.name,
		Owner:       r.owner(s.px),
		Zone:        record.Zone,
		Hash:        s.desired.Hash,
		Attempt:     attemptKey(record),
		Labels:      maps.Clone(s.px.Labels),
		Spec:        *s.px.Spec.DeepCopy(),
		UserData:    s.userData,
		Credentials: s.credentials,
	})
	next := recordCreated(s.desired, record, receipt, err, r.Clock.Now())
	if onlySubmitted(record, next) && isPlausible(stored(s.px), s.asOf) {
		// Nobody but this controller reads that, so it is kept until there is more to write.
		r.accepted.note(s.px, next)
		return nil
	}
	outcome := *a
	if refused(next) {
		outcome.Reason, outcome.Message = next.State, next.Message
		a.After = backoff(next.Attempt)
		// It is not on its way any more; the next attempt asks for a place again.
		r.creates.free(s.key)
	}
	if err := r.write(ctx, s, outcome, next, nil); err != nil {
		return err
	}
	if err != nil && !refused(next) && !providers.IsAlreadyExists(err) {
		if after := providers.RetryAfterOf(err); after > 0 {
			a.After = after
			return nil
		}
		return fmt.Errorf("create the instance of Proxy %s: %w", s.key, err)
	}
	log.FromContext(ctx).V(1).Info("Asked for an instance", "instance", s.name, "zone", record.Zone, "attempt", record.Attempt, "outcome", outcome.Reason)
	return nil
}

// attemptKey tells the attempts of a Proxy apart, the same in every process that reads the record.
func attemptKey(r v1alpha1.Instance) string {
	return strconv.FormatInt(r.IntentTime.Unix(), 10) + "-" + strconv.Itoa(int(r.Attempt))
}

// stillAsked reads past the cache, after the look at the instance, what that should be made from. Nothing that is stored
// keeps a leader that was held up, and knows only an old specification or Secret, from taking away what its successor made
// for the new one: the decision is on what the provider has, and the deletion would be right about that.
func (r *Reconciler) stillAsked(ctx context.Context, s *subject) (bool, error) {
	px := &v1alpha1.Proxy{}
	if err := r.Reader.Get(ctx, s.key, px); err != nil {
		return false, fmt.Errorf("read Proxy %s past the cache: %w", s.key, err)
	}
	fresh := r.newSubject(px)
	fresh.class, fresh.provider = s.class, s.provider
	if px.UID != s.px.UID || fresh.desired.Deleting || fresh.desired.OnDelete {
		return false, nil
	}
	if err := r.resolve(ctx, r.Reader, fresh); err != nil {
		return false, err
	}
	return fresh.desired.Hold == nil && fresh.desired.Hash == s.desired.Hash, nil
}

// delete asks for the deletion of exactly the incarnation that was observed.
func (r *Reconciler) delete(ctx context.Context, s *subject, a *Action, record v1alpha1.Instance) error {
	seen := recordFound(s.desired, record, s.observed.Instance, r.Clock.Now())
	if a.Reason == v1alpha1.ReasonProvisionTimeout {
		// What does not come up in its time must not keep its place: a few such Proxies would hold up the whole class. Among
		// the replacements it does keep it: user data that no machine starts with must not take the rest of a fleet down.
		r.creates.free(s.key)
	}
	err := s.provider.Delete(ctx, s.observed.Instance.Ref)
	if err == nil || providers.IsNotFound(err) {
		return r.writeDeleting(ctx, s, *a, recordDeleting(seen, messageOf(*a)))
	}
	failure := failed(err)
	var blocked *Finding
	if s.desired.Deleting && failure.Reason != v1alpha1.ReasonRateLimited {
		blocked = &Finding{failure.Reason, failure.Message}
	}
	s.observed.Err = err
	if err := r.write(ctx, s, failure, seen, blocked); err != nil {
		return err
	}
	if failure.After == 0 {
		return fmt.Errorf("delete the instance of Proxy %s: %w", s.key, err)
	}
	a.After = failure.After
	return nil
}

// writeDeleting stores that the provider accepted a deletion. What a user changes wakes core too, whose write most often
// lands during the call: that must not lose the news, or an instance that is gone at once looks as if somebody else had
// taken it. It is written again on top of a change of what others own, and of nothing else.
func (r *Reconciler) writeDeleting(ctx context.Context, s *subject, a Action, record v1alpha1.Instance) error {
	err := r.write(ctx, s, a, record, nil)
	if !apierrors.IsConflict(err) {
		return err
	}
	now := &v1alpha1.Proxy{}
	if readErr := r.Reader.Get(ctx, s.key, now); readErr != nil ||
		now.UID != s.px.UID || now.Generation != s.px.Generation || !equality.Semantic.DeepEqual(now.Status.Instance, s.px.Status.Instance) {
		return err
	}
	s.px = now
	return r.write(ctx, s, a, record, nil)
}

// holdClass makes the class stay until its instances are gone. It is stored before the first of them can exist.
func (r *Reconciler) holdClass(ctx context.Context, s *subject) error {
	if hasFinalizer(s.class, v1alpha1.FinalizerClassInstances) {
		return nil
	}
	return r.patch(ctx, s.class, func() { controllerutil.AddFinalizer(s.class, v1alpha1.FinalizerClassInstances) })
}

// hold makes the Proxy stay until its instance is gone. Its first intent is part of that write.
func (r *Reconciler) hold(ctx context.Context, s *subject, first *v1alpha1.Instance) error {
	err := r.patch(ctx, s.px, func() {
		controllerutil.AddFinalizer(s.px, r.finalizer)
		if first != nil {
			annotateIntent(s.px, *first)
		}
	})
	if err != nil {
		r.creates.free(s.key)
		return err
	}
	s.desired.Finalizer = true
	return nil
}

// patch changes what is not the status, at the resourceVersion that the decision was made on: a release that was decided
// on old knowledge must fail.
func (r *Reconciler) patch(ctx context.Context, obj client.Object, change func()) error {
	before := obj.DeepCopyObject().(client.Object)
	change()
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, obj, patch, client.FieldOwner(r.manager)); err != nil {
		return fmt.Errorf("change the finalizers of %s: %w", obj.GetName(), err)
	}
	return nil
}

func (r *Reconciler) owner(px *v1alpha1.Proxy) providers.Owner {
	return providers.Owner{ClusterID: r.ClusterID, Namespace: px.Namespace, Name: px.Name, UID: px.UID}
}

func hasFinalizer(obj client.Object, finalizer string) bool {
	return controllerutil.ContainsFinalizer(obj, finalizer)
}
