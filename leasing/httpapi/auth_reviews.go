package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// reviewTTL is how long an answer about a token or a right is believed; failedReviewTTL how long a refusal is.
	reviewTTL       = 30 * time.Second
	failedReviewTTL = 5 * time.Second
	// staleReviewTTL is how much longer the last good answer is believed while no newer one can be had, because the API server
	// does not answer or too many reviews are due. A refusal counts at once.
	staleReviewTTL = time.Minute
	// reviewTimeout bounds a review.
	reviewTimeout = 5 * time.Second
	// unavailableRetry is when to try again while no review can be had.
	unavailableRetry = time.Second
	// maxReviews bounds what is remembered of tokens and of rights: so many good answers, and as many refusals.
	maxReviews = 4096
)

// Whoever guesses tokens must not load the API server, and must not take reviews away from those whose tokens are good.
const (
	// strangerReviewsPerSecond and strangerReviewBurst bound the reviews of tokens that are not known to be good, and
	// sourceReviewsPerSecond and sourceReviewBurst those of one source address (of IPv6: of one network).
	strangerReviewsPerSecond, strangerReviewBurst = 50, 100
	sourceReviewsPerSecond, sourceReviewBurst     = 10, 50
	// knownReviewsPerSecond and knownReviewBurst bound the reviews of tokens that were good when they were last looked at. It
	// is enough to review every token that is remembered before its last answer is too old to be believed.
	knownReviewsPerSecond, knownReviewBurst = 50, 100
	// rightReviewsPerSecond and rightReviewBurst bound the reviews of rights that one user is not known to have: a caller may name
	// any namespace.
	rightReviewsPerSecond, rightReviewBurst = 10, 50
	// maxLimiters bounds the source addresses, and the users, that are remembered.
	maxLimiters = 4096
	// sourceBits is the length of the IPv6 prefix that one subscriber has to choose addresses from.
	sourceBits = 64
)

// budget says which tokens may be reviewed now.
type budget struct {
	strangers, known *rate.Limiter
	sources          *limiters[netip.Prefix]
}

func newBudget() *budget {
	return &budget{
		strangers: rate.NewLimiter(strangerReviewsPerSecond, strangerReviewBurst),
		known:     rate.NewLimiter(knownReviewsPerSecond, knownReviewBurst),
		sources:   newLimiters[netip.Prefix](sourceReviewsPerSecond, sourceReviewBurst),
	}
}

// admit takes a review out of the budget; the error says that there is none left.
func (b *budget) admit(known bool, source netip.Addr, now time.Time) error {
	e := &Error{Status: http.StatusTooManyRequests, Code: wire.CodeTooManyRequests, RetryAfter: unavailableRetry}
	switch {
	case known && !b.known.AllowN(now, 1):
		e.Detail = "Too many tokens must be reviewed"
	case !known && !b.source(source).AllowN(now, 1):
		e.Detail = "Too many unknown tokens are sent from this address"
	case !known && !b.strangers.AllowN(now, 1):
		e.Detail = "Too many unknown tokens are sent"
	default:
		return nil
	}
	return e
}

// source is the limit of a source address. One that is forgotten begins anew; the limit of all strangers holds nevertheless.
func (b *budget) source(address netip.Addr) *rate.Limiter {
	address = address.Unmap().WithZone("")
	bits := address.BitLen()
	if address.Is6() {
		bits = sourceBits
	}
	prefix, _ := address.Prefix(bits) // the zero Prefix of an address that is not known
	return b.sources.of(prefix)
}

// limiters are equal limits of many, of whom those that were quiet for longest are forgotten.
type limiters[K comparable] struct {
	perSecond rate.Limit
	burst     int

	mu   sync.Mutex
	last *lru.Cache // K: *rate.Limiter
}

func newLimiters[K comparable](perSecond rate.Limit, burst int) *limiters[K] {
	return &limiters[K]{perSecond: perSecond, burst: burst, last: lru.New(maxLimiters)}
}

func (l *limiters[K]) of(key K) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.last.Get(key); ok {
		return known.(*rate.Limiter)
	}
	fresh := rate.NewLimiter(l.perSecond, l.burst)
	l.last.Add(key, fresh)
	return fresh
}

// answer is what the API server said to a question.
type answer[V any] struct {
	value V
	good  bool
	// until is when it is asked again; a good answer is believed until stale if there is none then.
	until, stale time.Time
}

// reviews asks the API server and remembers its answers. Good ones and refusals have a room each, so that strangers cannot make
// it forget whose tokens are good.
type reviews[K comparable, V any] struct {
	good, refused *lru.Cache
	flights       singleflight.Group
	// name of a question, equal for equal questions only.
	name func(K) string
}

func newReviews[K comparable, V any](name func(K) string) *reviews[K, V] {
	return &reviews[K, V]{good: lru.New(maxReviews), refused: lru.New(maxReviews), name: name}
}

// get gives the answer to a question: one that is still believed, or a new one. Those who ask the same at the same time share the
// review. review is told whether the last answer was a good one.
func (r *reviews[K, V]) get(ctx context.Context, clk clock.PassiveClock, key K, review func(ctx context.Context, known bool) (V, bool, error)) (answer[V], error) {
	if a, ok := r.find(key); ok && clk.Now().Before(a.until) {
		return a, nil
	}
	got, err, _ := r.flights.Do(r.name(key), func() (any, error) {
		old, ok := r.find(key)
		if ok && clk.Now().Before(old.until) {
			return old, nil // somebody has asked meanwhile
		}
		// Others wait for the answer too: that one of them gives up is no reason to break off.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
		defer cancel()
		value, good, err := review(ctx, old.good)
		now := clk.Now()
		switch {
		case err == nil:
			a := answer[V]{value: value, good: good, until: now.Add(failedReviewTTL)}
			if good {
				a.until = now.Add(reviewTTL)
				a.stale = a.until.Add(staleReviewTTL)
			}
			r.put(key, a)
			return a, nil
		case old.good && now.Before(old.stale) && temporary(err):
			old.until = now.Add(unavailableRetry)
			if old.until.After(old.stale) {
				old.until = old.stale
			}
			r.put(key, old)
			return old, nil
		}
		return answer[V]{}, err
	})
	if err != nil {
		return answer[V]{}, err
	}
	return got.(answer[V]), nil
}

// find gives the last answer. That it was a good one is remembered when it is not believed any more.
func (r *reviews[K, V]) find(key K) (answer[V], bool) {
	for _, room := range []*lru.Cache{r.good, r.refused} {
		if found, ok := room.Get(key); ok {
			return found.(answer[V]), true
		}
	}
	return answer[V]{}, false
}

func (r *reviews[K, V]) put(key K, a answer[V]) {
	room, other := r.refused, r.good
	if a.good {
		room, other = r.good, r.refused
	}
	other.Remove(key)
	room.Add(key, a)
}

// temporary tells whether an error says no more than that there is no answer now.
func temporary(err error) bool {
	_, ok := errors.AsType[*Error](err)
	return ok
}
