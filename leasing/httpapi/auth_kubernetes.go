package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// reviewTTL is how long an answer about a token or a right is believed; failedReviewTTL how long a refusal is.
	reviewTTL       = 30 * time.Second
	failedReviewTTL = 5 * time.Second
	// maxReviews bounds what is remembered.
	maxReviews = 4096
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
}

type kubernetesUser struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

type accessKey struct {
	user string
	Access
}

// Authenticate implements Authenticator.
func (k *Kubernetes) Authenticate(ctx context.Context, token string) (Identity, bool, error) {
	key := sha256.Sum256([]byte(token))
	user, known := k.tokens.get(key, k.Clock.Now())
	if !known {
		review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: k.Audiences}}
		if err := k.Client.Create(ctx, review); err != nil {
			return Identity{}, false, fmt.Errorf("review a token: %w", err)
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
	key := accessKey{user: id.user.uid + "/" + id.user.name, Access: access}
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
		return false, fmt.Errorf("review access: %w", err)
	}
	ttl := failedReviewTTL
	if review.Status.Allowed {
		ttl = reviewTTL
	}
	k.accesses.put(key, review.Status.Allowed, k.Clock.Now().Add(ttl))
	return review.Status.Allowed, nil
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
