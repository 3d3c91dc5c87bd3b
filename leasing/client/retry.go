package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// minPause and maxPause bound the pause between two attempts, unless the answer asks for another one.
	minPause = 200 * time.Millisecond
	maxPause = 10 * time.Second
	// releaseTimeout bounds the attempts to give a lease back.
	releaseTimeout = 5 * time.Second
	// spread is the share of a pause that was asked for by which it is lengthened at random, so that those who were refused
	// together do not come back together.
	spread = 10
)

// retryable tells whether the same call may have another outcome a little later.
func retryable(err error) bool {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status == http.StatusTooManyRequests || e.Status == http.StatusRequestTimeout || e.Status >= http.StatusInternalServerError
	}
	_, permanent := errors.AsType[permanentError](err)
	return !permanent && !errors.Is(err, ErrLost)
}

// doubtful tells whether a lease may have been granted in spite of the error.
func doubtful(err error) bool {
	if _, permanent := errors.AsType[permanentError](err); permanent {
		return false // nothing was sent, or nobody was there who could have granted it
	}
	e, ok := errors.AsType[*Error](err)
	return !ok || e.Status >= http.StatusInternalServerError && e.Code != wire.CodeNoProxy
}

// pauseAfter is how long to wait before the next attempt; the first attempt is number 0.
func pauseAfter(err error, attempt int) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok && e.RetryAfter > 0 {
		return e.RetryAfter + rand.N(e.RetryAfter/spread+1)
	}
	pause := min(minPause<<min(attempt, 16), maxPause)
	return pause/2 + rand.N(pause/2)
}

// sleep waits and tells whether the context is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// retry calls until the outcome is certain or the context ends.
func retry(ctx context.Context, call func(context.Context) error) error {
	var last error
	for attempt := 0; ; attempt++ {
		err := call(ctx)
		if err == nil || !retryable(err) {
			return err
		}
		last = telling(ctx, err, last)
		if ctx.Err() != nil || !sleep(ctx, pauseAfter(err, attempt)) {
			return ended(ctx, last)
		}
	}
}

// telling is which of two errors says why the attempts failed: the later one, unless that only says that the context ended.
func telling(ctx context.Context, err, before error) error {
	if before != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return before
	}
	return err
}

// ended is the error of a context that ended while attempts failed with last.
func ended(ctx context.Context, last error) error {
	cause := context.Cause(ctx)
	if last == nil || errors.Is(last, cause) {
		return cause
	}
	return fmt.Errorf("%w; the last attempt: %w", cause, last)
}

// RetryAfter reads the header Retry-After of an answer, which has seconds or a date: 0 when it has none, and a week when it says
// more than that. It is what Report wants to know of an answer with status 429 or 503.
func RetryAfter(h http.Header) time.Duration {
	value := strings.TrimSpace(h.Get("Retry-After"))
	// Of a number that is too large for it, ParseInt gives the largest one there is.
	if n, err := strconv.ParseInt(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(max(n, 0), wire.MaxRetryAfterSeconds)) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return min(max(time.Until(at), 0), maxRetryAfter)
	}
	return 0
}
