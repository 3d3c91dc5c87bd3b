package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Kubernetes authenticates by TokenReview and authorizes by SubjectAccessReview: whoever may create proxyleases in a
// namespace by kubectl may lease there by HTTP.
type Kubernetes struct {
	// Client creates the reviews.
	Client client.Client
	// Audiences the token must be for; none: the API server's own.
	Audiences []string
	Clock     clock.PassiveClock

	once     sync.Once
	budget   *budget // of reviews of tokens
	tokens   *reviews[[sha256.Size]byte, *kubernetesUser]
	accesses *reviews[accessKey, struct{}]
	rights   *limiters[[sha256.Size]byte] // of reviews of rights, by user
}

func (k *Kubernetes) prepare() {
	k.once.Do(func() {
		k.budget = newBudget()
		k.tokens = newReviews[[sha256.Size]byte, *kubernetesUser](func(sum [sha256.Size]byte) string { return string(sum[:]) })
		k.rights = newLimiters[[sha256.Size]byte](rightReviewsPerSecond, rightReviewBurst)
		k.accesses = newReviews[accessKey, struct{}](func(a accessKey) string {
			return strings.Join([]string{string(a.user[:]), a.Verb, a.Resource, a.Namespace}, "\x00")
		})
	})
}

type kubernetesUser struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

// accessKey is all that a right depends on: two tokens of one user may differ in their groups and extra fields.
type accessKey struct {
	user [sha256.Size]byte
	Access
}

// sum is equal for users about whom the answers are equal.
func (u *kubernetesUser) sum() ([sha256.Size]byte, error) {
	data, err := json.Marshal(struct {
		Name, UID string
		Groups    []string
		Extra     map[string]authorizationv1.ExtraValue
	}{u.name, u.uid, slices.Sorted(slices.Values(u.groups)), u.extra})
	if err != nil {
		return [sha256.Size]byte{}, fmt.Errorf("marshal a user: %w", err)
	}
	return sha256.Sum256(data), nil
}

// Authenticate implements Authenticator.
func (k *Kubernetes) Authenticate(ctx context.Context, token string, source netip.Addr) (Identity, bool, error) {
	k.prepare()
	a, err := k.tokens.get(ctx, k.Clock, sha256.Sum256([]byte(token)), func(ctx context.Context, known bool) (*kubernetesUser, bool, error) {
		if err := k.budget.admit(known, source, k.Clock.Now()); err != nil {
			return nil, false, err
		}
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: k.Audiences}}
		if err := k.Client.Create(ctx, review); err != nil {
			return nil, false, reviewFailed("review a token", err)
		}
		s := review.Status
		user := &kubernetesUser{name: s.User.Username, uid: s.User.UID, groups: s.User.Groups, extra: map[string]authorizationv1.ExtraValue{}}
		for name, value := range s.User.Extra {
			user.extra[name] = authorizationv1.ExtraValue(value)
		}
		return user, s.Authenticated, nil
	})
	if err != nil || !a.good {
		return Identity{}, false, err
	}
	return Identity{Name: a.value.name, user: a.value}, true, nil
}

// Authorize implements Authenticator.
func (k *Kubernetes) Authorize(ctx context.Context, id Identity, access Access) (bool, error) {
	if id.user == nil {
		return false, errors.New("an identity of another kind")
	}
	sum, err := id.user.sum()
	if err != nil {
		return false, err
	}
	k.prepare()
	a, err := k.accesses.get(ctx, k.Clock, accessKey{user: sum, Access: access}, func(ctx context.Context, known bool) (struct{}, bool, error) {
		if !known && !k.rights.of(sum).AllowN(k.Clock.Now(), 1) {
			return struct{}{}, false, &Error{
				Status: http.StatusTooManyRequests, Code: wire.CodeTooManyRequests, Detail: "Too many rights must be reviewed", RetryAfter: unavailableRetry,
			}
		}
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: id.user.name, UID: id.user.uid, Groups: id.user.groups, Extra: id.user.extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: access.Namespace, Verb: access.Verb, Group: v1alpha1.GroupName, Resource: access.Resource,
			},
		}}
		if err := k.Client.Create(ctx, review); err != nil {
			return struct{}{}, false, reviewFailed("review access", err)
		}
		return struct{}{}, review.Status.Allowed, nil
	})
	return a.good, err
}

// reviewFailed says that the API server does not answer. That it refuses is a fault of the operator's rights and no fault of
// the caller: it belongs into the log.
func reviewFailed(what string, err error) error {
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return fmt.Errorf("%s: %w: %w", what, err, &Error{
		Status: http.StatusServiceUnavailable, Code: wire.CodeUnavailable, Detail: "The Kubernetes API does not answer", RetryAfter: unavailableRetry,
	})
}
