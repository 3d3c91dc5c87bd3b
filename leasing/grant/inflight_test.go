package grant

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestInflight_WaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i inflight
		i.wait(t.Context()) // nothing is

		var ended atomic.Int32
		for n := range 3 {
			i.Go(func() {
				<-time.After(time.Duration(n+1) * time.Second)
				ended.Add(1)
			})
		}
		bounded, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		i.wait(bounded)
		cancel()
		if n := ended.Load(); n != 1 {
			t.Errorf("%d had ended when the context did", n)
		}
		var waiters sync.WaitGroup
		for range 2 {
			waiters.Go(func() {
				i.wait(t.Context())
				if n := ended.Load(); n != 3 {
					t.Errorf("%d had ended when the wait did", n)
				}
			})
		}
		waiters.Wait()
	})
}

// The race detector is what looks here: something begins in the moment in which somebody begins to wait.
func TestInflight_BeginsWhileSomebodyWaits(t *testing.T) {
	for range 200 {
		var i inflight
		var both sync.WaitGroup
		both.Go(func() { i.Go(func() {}) })
		both.Go(func() { i.wait(t.Context()) })
		both.Wait()
		i.wait(t.Context())
	}
}
