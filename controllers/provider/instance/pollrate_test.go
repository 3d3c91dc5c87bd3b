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

func TestTurn_TheWaitingTogetherAreNoBurden(t *testing.T) {
	limits := providers.Limits{CallsPerSecond: 10, Burst: 50}
	for _, tt := range []struct {
		n, places int
		want      time.Duration
	}{{1, 1, 10 * time.Second}, {300, 1, 300 * time.Second}, {300, 2, 150 * time.Second}, {300, 50, 120 * time.Second}, {0, 1, 10 * time.Second}} {
		if got := turn(10*time.Second, tt.n, tt.places, limits); got != tt.want {
			t.Errorf("%d waiting for %d places: %v, want %v", tt.n, tt.places, got, tt.want)
		}
	}
}
