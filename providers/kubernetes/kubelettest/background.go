package kubelettest

import (
	"context"
	"testing"
	"time"
)

// patience is how long the work may fail, as while a test starts the API server again.
const patience = 2 * time.Minute

// background does a piece of work every period until the test ends. The test fails when the work does not succeed for as
// long as patience.
func background(t testing.TB, name string, period time.Duration, work func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- repeat(ctx, period, work) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	})
}

func repeat(ctx context.Context, period time.Duration, work func(context.Context) error) error {
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for worked := time.Now(); ; {
		start := time.Now()
		err := work(ctx)
		if err == nil || time.Since(start) > period {
			// A watch that served for a while has worked.
			worked = time.Now()
		}
		if ctx.Err() != nil {
			return nil
		}
		if time.Since(worked) > patience {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
