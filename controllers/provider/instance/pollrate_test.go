package instance

import (
	"errors"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/providers"
)

func TestPollEvery_LeavesRoomForWhatIsOnItsWay(t *testing.T) {
	limits := providers.Limits{CallsPerSecond: 10, Burst: 50}
	for n, want := range map[int]time.Duration{0: 5 * time.Minute, 1: 5 * time.Minute, 700: 5 * time.Minute, 5000: 2000 * time.Second} {
		got := pollEvery(5*time.Minute, n, limits)
		if got != want {
			t.Errorf("%d instances: every %v, want %v", n, got, want)
		}
		if rate := float64(n) / got.Seconds(); rate > PollShare*limits.CallsPerSecond {
			t.Errorf("%d instances: %v looks a second", n, rate)
		}
	}
}

func TestSizes_AreCountedNowAndThen(t *testing.T) {
	s, now, counts := newSizes(), time.Unix(1e9, 0), 0
	count := func() (int, error) { counts++; return counts, nil }
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {sizeAge - 1, 1}, {sizeAge, 2}} {
		if n, err := s.of("class", now.Add(step.after), count); n != step.want || err != nil {
			t.Errorf("after %v: %d, %v", step.after, n, err)
		}
	}
	failure := errors.New("no cache")
	if _, err := s.of("other", now, func() (int, error) { return 0, failure }); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	if n, _ := s.of("other", now, count); n != 3 {
		t.Error("a failure was remembered")
	}
}
