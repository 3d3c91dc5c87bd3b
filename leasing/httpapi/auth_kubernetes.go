package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// reviewTTL is how long an answer about a token or a right is believed; failedReviewTTL how long a refusal is.
	reviewTTL       = 30 * time.Second
	failedReviewTTL = 5 * time.Second
	// maxReviews bounds what is remembered.
	maxReviews = 4096
	// reviewsPerSecond and reviewBurst bound the reviews of tokens that are not remembered: whoever guesses tokens must
	// not load the API server.
	reviewsPerSecond, reviewBurst = 50, 100
	// unavailableRetry is when to try again while the API server does not answer.
	unavailableRetry = time.Second
)

// Kubernetes authenticates by TokenReview and authorizes by SubjectAccessReview: whoever may create proxyleases in a
// namespace by kubectl may lease there by HTTP.
type Kubernetes struct {
	// Client creates the reviews.
	Client client.Client
	// Audiences the token must be for; none: the API server's own.
	Audiences []string
	Clock     clock.PassiveClock

	tokens   reviews[[sha256.Size]byte, *kubernetesUser]
	accesses reviews[accessKey, bool]

	once    sync.Once
	limiter *rate.Limiter // of reviews of tokens
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
func (k *Kubernetes) Authenticate(ctx context.Context, token string) (Identity, bool, error) {
	key := sha256.Sum256([]byte(token))
	user, known := k.tokens.get(key, k.Clock.Now())
	if !known {
		k.once.Do(func() { k.limiter = rate.NewLimiter(reviewsPerSecond, reviewBurst) })
		if !k.limiter.AllowN(k.Clock.Now(), 1) {
			return Identity{}, false, &Error{
				Status: http.StatusTooManyRequests, Code: wire.CodeTooManyRequests, Detail: "Too many unknown tokens are sent", RetryAfter: unavailableRetry,
			}
		}
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: k.Audiences}}
		if err := k.Client.Create(ctx, review); err != nil {
			return Identity{}, false, reviewFailed("review a token", err)
		}
		ttl := failedReviewTTL
		if s := review.Status; s.Authenticated {
			ttl = reviewTTL
			user = &kubernetesUser{name: s.User.Username, uid: s.User.UID, groups: s.User.Groups, extra: map[string]authorizationv1.ExtraValue{}}
			for name, value := range s.User.Extra {
				user.extra[name] = authorizationv1.ExtraValue(value)
			}
		}
		k.tokens.put(key, user, k.Clock.Now().Add(ttl))
	}
	if user == nil {
		return Identity{}, false, nil
	}
	return Identity{Name: user.name, user: user}, true, nil
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
	key := accessKey{user: sum, Access: access}
	allowed, known := k.accesses.get(key, k.Clock.Now())
	if known {
		return allowed, nil
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: id.user.name, UID: id.user.uid, Groups: id.user.groups, Extra: id.user.extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: access.Namespace, Verb: access.Verb, Group: v1alpha1.GroupName, Resource: access.Resource,
		},
	}}
	if err := k.Client.Create(ctx, review); err != nil {
		return false, reviewFailed("review access", err)
	}
	ttl := failedReviewTTL
	if review.Status.Allowed {
		ttl = reviewTTL
	}
	k.accesses.put(key, review.Status.Allowed, k.Clock.Now().Add(ttl))
	return review.Status.Allowed, nil
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

// reviews remembers answers for a while.
type reviews[K comparable, V any] struct {
	mu      sync.Mutex
	answers map[K]review[V]
}

type review[V any] struct {
	value V
	until time.Time
}

func (r *reviews[K, V]) get(key K, now time.Time) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.answers[key]
	return found.value, ok && now.Before(found.until)
}

func (r *reviews[K, V]) put(key K, value V, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// Forgetting everything is harmless: it is asked again.
	if r.answers == nil || len(r.answers) >= maxReviews {
		r.answers = map[K]review[V]{}
	}
	r.answers[key] = review[V]{value, until}
}
