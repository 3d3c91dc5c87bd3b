package instance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// maxDecisions of one reconcile: finalizer, look, intent, create. More would be a loop.
	maxDecisions = 6
	// conflictRetry is when a reconcile that met another writer is tried again; the cache needs a moment.
	conflictRetry = 200 * time.Millisecond
	// jitter spreads what would otherwise come in step, as a fraction.
	jitter = 0.2
	// DefaultProvisionTimeout of a class that does not say.
	DefaultProvisionTimeout = 10 * time.Minute
)

// subject is one Proxy with everything that was read for it.
type subject struct {
	key types.NamespacedName
	px  *v1alpha1.Proxy
	// asOf is when the reconcile began.
	asOf        time.Time
	class       *v1alpha1.ProviderClass
	provider    providers.Provider
	desired     Desired
	name        string
	userData    []byte
	credentials *providers.Credentials
	// cloudInit tells whether there is user data to resolve; unresolved why it cannot be had.
	cloudInit  bool
	unresolved *Finding
	observed   *Observed
	// accepted is the attempt that the provider accepted and whose record does not say so yet.
	accepted attempt
}

// Reconcile brings one Proxy a step further.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	again := r.clearLost(ctx, req.NamespacedName)
	px := &v1alpha1.Proxy{}
	err := r.Client.Get(ctx, req.NamespacedName, px)
	if client.IgnoreNotFound(err) != nil {
		return reconcile.Result{}, fmt.Errorf("read Proxy %s: %w", req, err)
	}
	if before := r.accepted.of(req.NamespacedName).proxy; before != nil && before.UID != px.UID && r.lost.note(before) {
		r.accepted.forget(req.NamespacedName)
		again = conflictRetry
	}
	if err != nil {
		r.release(req.NamespacedName)
		return reconcile.Result{RequeueAfter: again}, nil
	}
	s, err := r.gather(ctx, px)
	if s == nil || err != nil {
		return reconcile.Result{RequeueAfter: again}, err
	}
	result, err := r.advance(ctx, s)
	var fromProvider *providers.Error
	switch {
	case errors.As(err, &fromProvider):
		return reconcile.Result{}, err
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		// Somebody else wrote, or the Proxy is gone: decide again on what is there now.
		if apierrors.IsNotFound(err) {
			r.lost.note(s.px)
		}
		return reconcile.Result{RequeueAfter: wait.Jitter(conflictRetry, 1)}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	if again > 0 && (result.RequeueAfter == 0 || again < result.RequeueAfter) {
		result.RequeueAfter = again
	}
	if result.RequeueAfter > 0 {
		result.RequeueAfter = wait.Jitter(result.RequeueAfter, jitter)
	}
	return result, nil
}

// gather reads what a decision needs, except the provider's answer. It returns nil for a Proxy that is not ours to touch.
func (r *Reconciler) gather(ctx context.Context, px *v1alpha1.Proxy) (*subject, error) {
	binding := px.Status.Binding
	if px.Spec.Mode != v1alpha1.ModeManaged || binding == nil || binding.Type != r.kind {
		return nil, nil
	}
	s := r.newSubject(px)
	if s.desired.Deleting {
		// Its deletion may take for ever, and nobody else has to wait for that.
		r.creates.free(s.key)
		r.replacements.free(s.key)
	}
	if s.desired.Deleting && (!s.desired.Finalizer || px.Annotations[v1alpha1.AnnotationSkipCleanup] == "true") {
		// Nothing of ours is left, or the instance is given up: then core releases the Proxy.
		r.release(s.key)
		return nil, nil
	}
	if s.desired.Deleting && slices.Contains(px.Finalizers, v1alpha1.FinalizerLeaseDrain) {
		// Leases run out on it first; that core lets go of it wakes this controller.
		return nil, nil
	}
	mine, err := r.openClass(ctx, s)
	if !mine || err != nil {
		return nil, err
	}
	if s.desired.Deleting || s.provider == nil {
		return s, nil
	}
	return s, r.resolve(ctx, r.Client, s)
}

func (r *Reconciler) newSubject(px *v1alpha1.Proxy) *subject {
	key := client.ObjectKeyFromObject(px)
	return &subject{
		key: key, px: px, asOf: r.Clock.Now(), name: providers.InstanceName(r.ClusterID, px.Name, px.UID), accepted: r.accepted.of(key),
		desired: Desired{
			UID:       px.UID,
			Port:      px.Spec.Port,
			Deleting:  !px.DeletionTimestamp.IsZero(),
			Finalizer: hasFinalizer(px, r.finalizer),
			OnDelete:  px.Spec.ReplacePolicy == v1alpha1.ReplaceOnDelete,
		},
	}
}

// openClass finds the class and opens its provider, or says why not. mine is false for a class of another installation.
func (r *Reconciler) openClass(ctx context.Context, s *subject) (mine bool, err error) {
	binding, class := s.px.Status.Binding, &v1alpha1.ProviderClass{}
	err = r.Client.Get(ctx, client.ObjectKey{Name: binding.ClassName}, class)
	switch {
	case apierrors.IsNotFound(err):
		s.desired.Blind = &Finding{v1alpha1.ReasonClassNotFound, fmt.Sprintf("ProviderClass %s does not exist", binding.ClassName)}
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read ProviderClass %s: %w", binding.ClassName, err)
	case class.Spec.ControllerName != r.ControllerName:
		return false, nil
	case class.UID != binding.ClassUID || class.Spec.Type != r.kind:
		s.desired.Blind = &Finding{v1alpha1.ReasonClassReplaced, fmt.Sprintf("ProviderClass %s was deleted and made anew", binding.ClassName)}
		return true, nil
	}
	s.class = class
	s.desired.ClassGeneration = class.Generation
	s.desired.ProvisionTimeout = DefaultProvisionTimeout
	if seconds := class.Spec.ProvisionTimeoutSeconds; seconds != nil {
		s.desired.ProvisionTimeout = time.Duration(*seconds) * time.Second
	}
	s.provider, err = r.Set.Open(ctx, class)
	switch {
	case errors.Is(err, providers.ErrInvalidClass):
		s.desired.Blind = &Finding{v1alpha1.ReasonClassNotAccepted, fmt.Sprintf("the configuration of ProviderClass %s is not valid", class.Name)}
	case err != nil:
		log.FromContext(ctx).Error(err, "Opening the provider failed", "class", class.Name)
		s.desired.Blind = &Finding{errorReason(err), providers.StableMessage(err)}
	}
	return true, nil
}

// resolve finds what the instance should be made from, and what forbids to make it. Secrets are read by reader.
func (r *Reconciler) resolve(ctx context.Context, reader client.Reader, s *subject) error {
	px, d := s.px, &s.desired
	if err := s.provider.ValidateSpec(px.Spec.DeepCopy()); err != nil {
		d.Hold = &Finding{errorReason(err), providers.StableMessage(err)}
		return nil
	}
	if px.Spec.CloudInit != nil && s.class.Spec.UserCloudInit == v1alpha1.UserCloudInitDenied {
		d.Hold = &Finding{v1alpha1.ReasonCloudInitDenied, fmt.Sprintf("spec.cloudInit: ProviderClass %s denies user data", s.class.Name)}
		return nil
	}
	var err error
	s.cloudInit = px.Spec.CloudInit != nil
	if s.userData, s.unresolved, err = userData(ctx, reader, px); err != nil {
		return err
	}
	if s.unresolved != nil {
		d.Hold = s.unresolved
		return nil
	}
	if s.cloudInit && px.Spec.CloudInit.SecretKeyRef != nil {
		// The provider can judge a Secret's user data only now. It must do so before what runs is given up for it.
		resolved := px.Spec.DeepCopy()
		resolved.CloudInit = &v1alpha1.CloudInit{Inline: string(s.userData)}
		if err := s.provider.ValidateSpec(resolved); err != nil {
			d.Hold = &Finding{errorReason(err), providers.StableMessage(err)}
			return nil
		}
	}
	credentialsVersion := ""
	if r.ResolveCredentials {
		if s.credentials, credentialsVersion, d.Hold, err = credentials(ctx, reader, px); err != nil || d.Hold != nil {
			return err
		}
	}
	d.Hash = providers.InstanceHash(px.UID, &px.Spec, s.userData, credentialsVersion)
	if d.Hold == nil && !s.class.DeletionTimestamp.IsZero() {
		d.Hold = &Finding{v1alpha1.ReasonClassTerminating, fmt.Sprintf("ProviderClass %s is being deleted", s.class.Name)}
	}
	return nil
}

// advance decides and acts until an action ends the reconcile.
func (r *Reconciler) advance(ctx context.Context, s *subject) (reconcile.Result, error) {
	for range maxDecisions {
		a := Decide(s.desired, s.record(), s.observed, r.Clock.Now(), r.Timing)
		a, err := r.pace(ctx, s, a)
		if err != nil {
			return reconcile.Result{}, err
		}
		more, err := r.act(ctx, s, &a)
		if err != nil {
			return reconcile.Result{}, err
		}
		if more {
			continue
		}
		result := reconcile.Result{RequeueAfter: a.After, Priority: new(0)}
		if a.Reason == v1alpha1.ReasonRunning {
			// A look at what runs gives way to everything else.
			result.Priority = new(handler.LowPriority)
			n, err := r.sizes.of(s.class.UID, r.Clock.Now(), func() (int, error) {
				names, err := r.proxiesOf(ctx, s.class, func(*v1alpha1.Proxy) bool { return true })
				return len(names), err
			})
			if err != nil {
				return reconcile.Result{}, err
			}
			if a.After >= r.Timing.Slow {
				result.RequeueAfter = pollEvery(a.After, n, r.limits)
			}
		}
		return result, nil
	}
	return reconcile.Result{}, fmt.Errorf("provision Proxy %s: no end after %d decisions", s.key, maxDecisions)
}

// pace makes an action wait when the class has no place for it.
func (r *Reconciler) pace(ctx context.Context, s *subject, a Action) (Action, error) {
	var (
		b     *budget
		limit int32
		at    func(*v1alpha1.Proxy) bool
	)
	switch {
	case a.Kind == RecordFirstIntent || a.Kind == RecordIntent || (a.Kind == Look && !s.desired.Finalizer):
		b, limit, at = r.creates, ptr.Deref(s.class.Spec.MaxConcurrentCreates, DefaultMaxConcurrentCreates), beingCreated
	case a.Kind == Delete && a.Reason == v1alpha1.ReasonSpecChanged && serving(s.observed.Instance):
		b, limit, at = r.replacements, ptr.Deref(s.class.Spec.MaxConcurrentReplacements, DefaultMaxConcurrentReplacements), beingReplaced
	case a.Kind == Delete && a.Reason == v1alpha1.ReasonSpecChanged, a.Kind == Report && a.Reason == v1alpha1.ReasonReplacing:
		// It is down already: it never came up, or a predecessor took it away and died before it could say so. It counts,
		// but it has nothing to wait for.
		b, limit, at = r.replacements, math.MaxInt32, beingReplaced
	default:
		return a, nil
	}
	ok, err := b.take(s.class.UID, s.key, int(limit), func() ([]types.NamespacedName, error) {
		return r.proxiesOf(ctx, s.class, at)
	})
	if ok || err != nil {
		return a, err
	}
	wait := Action{Kind: Report, Reason: v1alpha1.ReasonPending, After: r.Timing.PollMax}
	if a.Kind == Delete {
		// It goes on running until its turn.
		wait.Reason = v1alpha1.ReasonRunning
		wait.After = turn(r.Timing.PollMax, b.waits(s.class.UID), int(limit), r.limits)
	}
	return wait, nil
}

// provisionedReason is what Provisioned says now.
func provisionedReason(px *v1alpha1.Proxy) string {
	if c := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionProvisioned); c != nil {
		return c.Reason
	}
	return ""
}

// record is what is stored of the instance, and what this process knows of it besides.
func (s *subject) record() v1alpha1.Instance {
	r := plausible(stored(s.px), s.asOf)
	if recorded(r) {
		r.Name = cmp.Or(r.Name, s.name)
	}
	return s.accepted.addTo(s.px.UID, r)
}

// silent are the reasons of Provisioned that every instance goes through on its way to Running; the condition tells them, and
// an event for each would double the writes of a start.
var silent = map[string]bool{
	"": true, v1alpha1.ReasonPending: true, v1alpha1.ReasonCreating: true, v1alpha1.ReasonStarting: true,
}

// warnings are the reasons of Provisioned that are worth a Warning event.
var warnings = map[string]bool{
	v1alpha1.ReasonWaitingForCapacity: true, v1alpha1.ReasonInvalidSpec: true, v1alpha1.ReasonAuthFailed: true,
	v1alpha1.ReasonNameCollision: true, v1alpha1.ReasonInstanceLost: true, v1alpha1.ReasonInstanceFailed: true,
	v1alpha1.ReasonCreateVanished: true, v1alpha1.ReasonProvisionTimeout: true, v1alpha1.ReasonCloudInitError: true,
	v1alpha1.ReasonCredentialsNotFound: true,
}

// write stores the record and the conditions that belong to an action.
func (r *Reconciler) write(ctx context.Context, s *subject, a Action, record v1alpha1.Instance, blocked *Finding) error {
	before := provisionedReason(s.px)
	next := compose(s.px.Status, composition{
		generation: s.px.Generation, action: a, desired: s.desired,
		cloudInit: s.cloudInit, unresolved: s.unresolved,
		unanswered: s.desired.Blind != nil || (s.observed != nil && s.observed.Err != nil),
		blocked:    blocked, instance: record, now: r.Clock.Now(),
	})
	if err := statusapply.Proxy(ctx, r.Client, r.manager, s.px, &next); err != nil {
		return err
	}
	after := provisionedReason(s.px)
	expected := silent[after] || (after == v1alpha1.ReasonRunning && silent[before])
	if after != before && !expected {
		kind := corev1.EventTypeNormal
		if warnings[after] {
			kind = corev1.EventTypeWarning
		}
		message := meta.FindStatusCondition(s.px.Status.Conditions, v1alpha1.ConditionProvisioned).Message
		r.Recorder.Eventf(s.px, nil, kind, after, string(a.Kind), "%s", message)
	}
	return nil
}
