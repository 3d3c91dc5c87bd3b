package sched

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// inBubble runs a scheduler in a bubble of fake time until the function returns.
func inBubble(t *testing.T, o Options, run Run[string], f func(*Scheduler[string])) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := New[string](o)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.Start(ctx, run)
		}()
		synctest.Wait()
		f(s)
		cancel()
		<-done
	})
}

// log records runs.
type log struct {
	mu   sync.Mutex
	runs map[string][]time.Time
}

func (l *log) add(key string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.runs == nil {
		l.runs = map[string][]time.Time{}
	}
	l.runs[key] = append(l.runs[key], time.Now())
}

func (l *log) count(key string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.runs[key])
}

func TestRunsAtDueTimes(t *testing.T) {
	var l log
	run := func(_ context.Context, key string, due time.Time) (time.Time, bool) {
		l.add(key)
		if !time.Now().Equal(due) {
			t.Errorf("%s: due %s, started %s", key, due, time.Now())
		}
		return due.Add(time.Minute), false
	}
	inBubble(t, Options{}, run, func(s *Scheduler[string]) {
		begin := time.Now()
		s.Set("late", begin.Add(30*time.Second), false)
		s.Set("soon", begin.Add(time.Second), false)
		<-time.After(10*time.Minute + 45*time.Second)
		if l.count("soon") != 11 || l.count("late") != 11 {
			t.Errorf("soon ran %d times, late %d times", l.count("soon"), l.count("late"))
		}
	})
}

func TestSetMovesBothWays(t *testing.T) {
	var l log
	run := func(_ context.Context, key string, due time.Time) (time.Time, bool) {
		l.add(key)
		return due.Add(time.Hour), false
	}
	inBubble(t, Options{}, run, func(s *Scheduler[string]) {
		s.Set("a", time.Now().Add(time.Hour), false)
		<-time.After(time.Minute)
		s.Set("a", time.Now().Add(time.Second), false)
		<-time.After(2 * time.Second)
		if l.count("a") != 1 {
			t.Errorf("moved forward: ran %d times", l.count("a"))
		}
		s.Set("a", time.Now().Add(3*time.Hour), false)
		<-time.After(2 * time.Hour)
		if l.count("a") != 1 {
			t.Errorf("moved back: ran %d times", l.count("a"))
		}
		s.Remove("a")
		s.Remove("never there")
		<-time.After(10 * time.Hour)
		if l.count("a") != 1 {
			t.Errorf("removed: ran %d times", l.count("a"))
		}
	})
}

// One run at a time per key; a Set during a run decides when the next one is.
func TestOneRunPerKey(t *testing.T) {
	var mu sync.Mutex
	running, most, total := 0, 0, 0
	run := func(_ context.Context, _ string, due time.Time) (time.Time, bool) {
		mu.Lock()
		running++
		total++
		most = max(most, running)
		mu.Unlock()
		<-time.After(10 * time.Second)
		mu.Lock()
		running--
		mu.Unlock()
		return due.Add(time.Hour), false
	}
	inBubble(t, Options{}, run, func(s *Scheduler[string]) {
		s.Set("a", time.Now(), false)
		<-time.After(time.Second)
		s.Set("a", time.Now(), false)
		<-time.After(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if most != 1 || total != 2 {
			t.Errorf("%d at once, %d in all", most, total)
		}
	})
}

func TestRemovedWhileRunning(t *testing.T) {
	var l log
	run := func(_ context.Context, key string, due time.Time) (time.Time, bool) {
		l.add(key)
		<-time.After(10 * time.Second)
		return due.Add(20 * time.Second), false
	}
	inBubble(t, Options{Slots: 1}, run, func(s *Scheduler[string]) {
		s.Set("a", time.Now(), false)
		<-time.After(time.Second)
		s.Remove("a")
		s.Set("b", time.Now(), false)
		<-time.After(15 * time.Second)
		if l.count("a") != 1 || l.count("b") != 1 {
			t.Errorf("a ran %d times, b %d times", l.count("a"), l.count("b"))
		}
		if n, slots := s.Load(); n != 1 || slots != 1 {
			t.Errorf("load %d of %d", n, slots)
		}
	})
}

// With all slots taken nothing blocks, the oldest due goes first, and missed ticks are not made up for.
func TestBoundedSlots(t *testing.T) {
	var mu sync.Mutex
	inFlight, most := 0, 0
	var order []string
	run := func(_ context.Context, key string, due time.Time) (time.Time, bool) {
		mu.Lock()
		inFlight++
		most = max(most, inFlight)
		order = append(order, key)
		mu.Unlock()
		<-time.After(3 * time.Second)
		mu.Lock()
		inFlight--
		mu.Unlock()
		return Next(due, time.Now(), time.Hour), false
	}
	inBubble(t, Options{Slots: 2}, run, func(s *Scheduler[string]) {
		base := time.Now()
		for i := range 6 {
			s.Set(fmt.Sprint(i), base.Add(time.Duration(6-i)*time.Millisecond), false)
		}
		<-time.After(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if most != 2 || fmt.Sprint(order) != "[5 4 3 2 1 0]" {
			t.Errorf("%d at once in order %v", most, order)
		}
	})
}

// Dead proxies that hang cannot take all slots from the living.
func TestE26_BackgroundLeavesRoom(t *testing.T) {
	var l log
	var worst time.Duration
	var mu sync.Mutex
	run := func(_ context.Context, key string, due time.Time) (time.Time, bool) {
		l.add(key)
		if key[0] == 'd' {
			<-time.After(10 * time.Second)
			return Next(due, time.Now(), 10*time.Second), true
		}
		mu.Lock()
		worst = max(worst, time.Since(due))
		mu.Unlock()
		<-time.After(20 * time.Millisecond)
		return Next(due, time.Now(), 30*time.Second), false
	}
	inBubble(t, Options{Slots: 16}, run, func(s *Scheduler[string]) {
		for i := range 300 {
			s.Set(fmt.Sprintf("dead-%d", i), time.Now(), true)
		}
		for i := range 700 {
			key := fmt.Sprintf("live-%d", i)
			s.Set(key, FirstDue(time.Now(), key, 30*time.Second), false)
		}
		<-time.After(10 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if worst > time.Second {
			t.Errorf("a living proxy was probed %s late", worst)
		}
		if l.count("dead-0") == 0 || l.count("live-0") < 19 {
			t.Errorf("dead-0 ran %d times, live-0 %d times", l.count("dead-0"), l.count("live-0"))
		}
	})
}

// 10 000 keys, 30 % of which hang for 3 s, in 30 s periods: the default number of slots is enough.
func TestE26_DefaultSlotsForTheBadDay(t *testing.T) {
	var mu sync.Mutex
	var worst time.Duration
	late := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		worst = max(worst, d)
	}
	run := func(_ context.Context, key string, due time.Time) (time.Time, bool) {
		if key[0] == 'h' {
			<-time.After(3 * time.Second)
		} else {
			<-time.After(20 * time.Millisecond)
		}
		return Next(due, time.Now(), 30*time.Second), false
	}
	inBubble(t, Options{Late: late}, run, func(s *Scheduler[string]) {
		for i := range 10000 {
			key := fmt.Sprintf("l-%d", i)
			if i%10 < 3 {
				key = fmt.Sprintf("h-%d", i)
			}
			s.Set(key, FirstDue(time.Now(), key, 30*time.Second), false)
		}
		<-time.After(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if worst > time.Second {
			t.Errorf("probed up to %s late", worst)
		}
	})
}

// Short of CPU time the scheduler starts little, and catches up afterwards.
func TestE38_BusyStartsLittle(t *testing.T) {
	var mu sync.Mutex
	inFlight, most := 0, 0
	run := func(_ context.Context, _ string, _ time.Time) (time.Time, bool) {
		mu.Lock()
		inFlight++
		most = max(most, inFlight)
		mu.Unlock()
		<-time.After(10 * time.Second)
		mu.Lock()
		inFlight--
		mu.Unlock()
		return time.Now().Add(time.Hour), false
	}
	inBubble(t, Options{}, run, func(s *Scheduler[string]) {
		s.SetBusy(true)
		for i := range 100 {
			s.Set(fmt.Sprint(i), time.Now(), false)
		}
		<-time.After(15 * time.Second)
		mu.Lock()
		if most != BusySlots {
			t.Errorf("%d in flight while busy", most)
		}
		mu.Unlock()
		s.SetBusy(false)
		<-time.After(time.Second)
		if n, _ := s.Load(); n != 100-BusySlots {
			t.Errorf("%d in flight afterwards", n)
		}
	})
}

func TestStopWaitsForRuns(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := New[string](Options{})
	ctx, cancel := context.WithCancel(context.Background())
	started, ended := make(chan struct{}), make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Start(ctx, func(ctx context.Context, _ string, due time.Time) (time.Time, bool) {
			close(started)
			<-ctx.Done()
			close(ended)
			return due, false
		})
	}()
	s.Set("a", time.Now(), false)
	<-started
	cancel()
	<-done
	select {
	case <-ended:
	default:
		t.Error("Start returned before the run had ended")
	}
}

func TestE27_FirstDue(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 7, 0, time.UTC)
	const period = time.Minute
	buckets := make([]int, 60)
	for i := range 6000 {
		id := fmt.Sprintf("7f9c24e8-3b1d-4b8a-9c1e-%012d", i)
		due := FirstDue(now, id, period)
		if due.Before(now) || !due.Before(now.Add(period)) {
			t.Fatalf("due %s", due)
		}
		buckets[int(due.Sub(now)/time.Second)]++
		// After a restart some time later it is the same phase.
		later := FirstDue(now.Add(1234567*time.Millisecond), id, period)
		if later.Sub(due)%period != 0 {
			t.Fatalf("phase moved by %s", later.Sub(due)%period)
		}
	}
	for s, n := range buckets {
		if n < 50 || n > 160 { // 100 expected, standard deviation 10
			t.Errorf("%d of 6000 in second %d", n, s)
		}
	}
}

func TestNextSkipsMissedTicks(t *testing.T) {
	due := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		after, want time.Duration // since due
	}{
		{0, time.Minute},
		{10 * time.Second, time.Minute},
		{time.Minute, 2 * time.Minute},
		{61 * time.Second, 2 * time.Minute},
		{8*time.Hour + 30*time.Second, 8*time.Hour + time.Minute},
	} {
		if got := Next(due, due.Add(tc.after), time.Minute).Sub(due); got != tc.want {
			t.Errorf("%s after due: next at %s, want %s", tc.after, got, tc.want)
		}
	}
}

func TestJitter(t *testing.T) {
	low, high := time.Hour, time.Duration(0)
	for range 10000 {
		d := Jitter(time.Minute, rand.Float64())
		low, high = min(low, d), max(high, d)
	}
	if low < 57*time.Second || high > 63*time.Second || low > 58*time.Second || high < 62*time.Second {
		t.Errorf("from %s to %s", low, high)
	}
}

func TestSpreader(t *testing.T) {
	var s Spreader
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	if got := s.Next(now); !got.Equal(now) {
		t.Errorf("the first one waits until %s", got)
	}
	var last time.Time
	for range 5000 - 1 {
		last = s.Next(now)
	}
	if got := last.Sub(now); got != 4999*StartGap {
		t.Errorf("5000 at once are spread over %s", got)
	}
	if later := now.Add(time.Hour); !s.Next(later).Equal(later) {
		t.Error("a single one an hour later had to wait")
	}
}
