package instance

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// PollShare is the part of a class's rate of calls that goes to looks at instances that run. The rest is for what is on
	// its way: the larger a fleet, the rarer each look, or the looks would use up the rate.
	PollShare = 0.25
	// sizeAge is how old a count of a class's Proxies may be.
	sizeAge = time.Minute
)

// pollEvery is the time between two looks at each of n running instances of a class: slow, or more.
func pollEvery(slow time.Duration, n int, l providers.Limits) time.Duration {
	return max(slow, time.Duration(float64(n)/(PollShare*l.CallsPerSecond)*float64(time.Second)))
}

// turn is the time between two looks of one of n running Proxies that wait to be replaced. They ask the provider each time,
// so that together they look no more often than a place can become free, a few times a second, and never use up the rate.
func turn(least time.Duration, n, places int, l providers.Limits) time.Duration {
	perSecond := min(float64(places), PollShare*l.CallsPerSecond)
	return max(least, time.Duration(float64(n)/perSecond*float64(time.Second)))
}

// sizes counts the Proxies of classes, now and then.
type sizes struct {
	mu      sync.Mutex
	classes map[types.UID]size
}

type size struct {
	n  int
	at time.Time
}

func newSizes() *sizes { return &sizes{classes: map[types.UID]size{}} }

func (s *sizes) of(class types.UID, now time.Time, count func() (int, error)) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	known, ok := s.classes[class]
	if ok && now.Sub(known.at) < sizeAge {
		return known.n, nil
	}
	n, err := count()
	if err != nil {
		return 0, err
	}
	s.classes[class] = size{n, now}
	return n, nil
}
