package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

const (
	// A renewal begins when between renewLeft and renewLeft+renewSpread percent of the TTL are left, at random: late enough
	// that the API has something to renew (it answers with what it has while more than half is left), early enough for
	// many attempts.
	renewLeft, renewSpread = 35, 10
	// minRenewal is the share of the TTL that lies between two renewals at least.
	minRenewal = 20
	// attemptShare is the share of the remaining time that one attempt may take, so that there is time for others.
	attemptShare = 3
	// minAttempt is how long an attempt may take at least.
	minAttempt = time.Second
	// checkPeriod is how often trouble with the proxy makes the lease be looked at, at most, and checkTimeout bounds a look.
	checkPeriod, checkTimeout = 5 * time.Second, 5 * time.Second
)

// keep renews the lease until it ends.
func (l *Lease) keep() {
	for l.await() && l.renew() {
	}
}

// await waits until it is time to renew, and looks at the lease when something is wrong with its proxy. It tells whether the
// lease still lives.
func (l *Lease) await() bool {
	timer := time.NewTimer(l.untilRenewal())
	defer timer.Stop()
	var checked time.Time
	for {
		select {
		case <-timer.C:
			return l.ctx.Err() == nil
		case <-l.ctx.Done():
			return false
		case <-l.suspect:
			if !checked.IsZero() && time.Since(checked) < checkPeriod {
				continue
			}
			ctx, cancel := context.WithTimeout(l.ctx, min(checkTimeout, time.Until(l.ExpiresAt())))
			terms, err := l.handle.Check(ctx)
			cancel()
			if l.lostBy(err) {
				return false
			}
			if err == nil {
				l.accept(terms)
			}
			checked = time.Now()
		}
	}
}

func (l *Lease) untilRenewal() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	ttl := l.terms.TTL
	left := ttl*renewLeft/100 + rand.N(ttl*renewSpread/100+1)
	return max(time.Until(l.terms.Until.Add(-left)), min(ttl/minRenewal, time.Until(l.terms.Until)))
}

// renew tries until it has succeeded. It tells whether the lease still lives. Whatever is answered, only the operator's word
// and the end of its time end a lease: a token may be replaced, and a right be given back.
func (l *Lease) renew() bool {
	for attempt := 0; ; attempt++ {
		left := time.Until(l.ExpiresAt())
		if left <= 0 {
			l.expire()
			return false
		}
		ctx, cancel := context.WithTimeout(l.ctx, min(left, max(left/attemptShare, minAttempt)))
		terms, err := l.handle.Renew(ctx)
		cancel()
		if l.ctx.Err() != nil || l.lostBy(err) {
			return false
		}
		l.mu.Lock()
		l.trouble = err
		l.mu.Unlock()
		if err == nil {
			l.accept(terms)
			return true
		}
		// A pause that was asked for is kept as long as it leaves time for others.
		left = time.Until(l.ExpiresAt())
		if !sleep(l.ctx, min(pauseAfter(err, attempt), max(left/2, minPause), max(left, 0))) {
			return false
		}
	}
}

// follow takes in what a backend tells by itself.
func (l *Lease) follow(w Watcher) {
	l.lostBy(w.Watch(l.ctx, l.accept))
}

// lostBy ends the lease if the error says that it has ended.
func (l *Lease) lostBy(err error) bool {
	lost, ok := errors.AsType[*LostError](err)
	if ok {
		l.finish(lost, true)
	}
	return ok
}

func (l *Lease) accept(terms Terms) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.terms = l.terms.merge(terms)
}

// doubt asks for a look at the lease: its proxy does not do what it should.
func (l *Lease) doubt() {
	select {
	case l.suspect <- struct{}{}:
	default:
	}
}
