package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// elect lets leaders come and go: some are killed, some frozen and woken up later, some hand over.
func (w *simWorld) elect(until time.Time) {
	r := rand.New(rand.NewPCG(w.seed, 3))
	for n := 0; ; n++ {
		p := newSimProcess(w, fmt.Sprint("leader", n))
		w.mu.Lock()
		w.procs, w.leader = append(w.procs, p), p
		w.mu.Unlock()
		ctx, resign := context.WithCancel(p.ctx)
		p.lead(ctx)
		reign := time.Now().Add(time.Duration(5_000+r.IntN(40_000)) * time.Millisecond)
		switch {
		case w.storm():
			reign = time.Now().Add(time.Duration(2_000+r.IntN(8_000)) * time.Millisecond)
		case w.seed%7 == 0:
			reign = until
		}
		for time.Now().Before(reign) && time.Now().Before(until) {
			_ = pause(context.Background(), simRetryPeriod)
			p.renew()
		}
		if !time.Now().Before(until) {
			resign()
			w.mu.Lock()
			w.quiet = true
			w.mu.Unlock()
			p.kill()
			return
		}
		how := ending(r.IntN(3))
		if w.storm() && r.IntN(2) == 0 {
			how = killed
		}
		if len(w.ends) > 0 {
			how = w.ends[int(how)%len(w.ends)]
		}
		switch how {
		case killed:
			p.hit(unanswered)
			p.kill()
			_ = pause(context.Background(), simLeaseDuration)
		case frozen:
			if !p.hit([]strike{beforeSending, afterWriting}[r.IntN(2)]) {
				p.freeze()
			}
			w.mu.Lock()
			w.leader = nil
			w.mu.Unlock()
			// It goes on as the leader until its election gets to run.
			asleep := simLeaseDuration + time.Duration(r.IntN(30_000))*time.Millisecond
			time.AfterFunc(asleep, p.thaw)
			time.AfterFunc(asleep+time.Duration(r.IntN(int(simRetryPeriod))), resign)
			time.AfterFunc(asleep+time.Duration(10_000+r.IntN(20_000))*time.Millisecond, p.kill)
			_ = pause(context.Background(), simLeaseDuration)
		default:
			resign()
			<-p.done
			p.renewed.Store(nil)
			p.kill()
		}
	}
}
