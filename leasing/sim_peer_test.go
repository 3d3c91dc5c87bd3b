package leasing

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"crawl.example.com/egress-proxies-operator/leasing/peer"
)

// simPeer is how a process asks the leader. It may take another process for it, and what it sends or is sent is late, is lost,
// or is acted upon after it has given up.
type simPeer struct {
	proc *simProcess

	mu    sync.Mutex
	calls map[string]int
}

// asks tells whether the replicas of a schedule ask the leader.
func (w *simWorld) asks() bool { return w.seed%4 < 2 }

func (s *simPeer) dice(name string) *rand.Rand {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[string]int{}
	}
	s.calls[name]++
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, "peer", s.proc.name, name, s.calls[name])
	return rand.New(rand.NewPCG(s.proc.world.seed, h.Sum64()))
}

// believed is the process that is taken for the leader: at times a former one, or the next.
func (w *simWorld) believed(r *rand.Rand) *simProcess {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.IntN(4) > 0 {
		return w.leader
	}
	return w.procs[r.IntN(len(w.procs))]
}

// Lease implements Leader.
func (s *simPeer) Lease(ctx context.Context, call peer.Call) (peer.Answer, error) {
	patience := 8 * time.Second
	if call.Request.Wait > 0 {
		patience = 20 * time.Second
	}
	return convey(ctx, s, call.Name, patience, func(ctx context.Context, leader Backend) (peer.Answer, error) {
		return leader.leaseForReplica(ctx, call)
	})
}

// Tell implements Leader.
func (s *simPeer) Tell(ctx context.Context, n peer.Notice) error {
	_, err := convey(ctx, s, fmt.Sprint("notice", n), 8*time.Second, func(ctx context.Context, leader Backend) (struct{}, error) {
		return struct{}{}, leader.noticed(ctx, n)
	})
	return err
}

// convey brings a request to the one that is taken for the leader, and its answer back, or does not.
func convey[T any](ctx context.Context, s *simPeer, name string, patience time.Duration, act func(ctx context.Context, leader Backend) (T, error)) (T, error) {
	var nothing T
	w := s.proc.world
	r := s.dice(name)
	leader, there, back := w.believed(r), time.Duration(1+r.IntN(5_000_000)), time.Duration(1+r.IntN(5_000_000))
	fate, cut := r.IntN(8), r.IntN(2) == 0
	if r.IntN(100) >= w.badness() {
		fate = 100
	}
	if leader == nil || leader == s.proc || leader.dead() || fate == 0 {
		_ = pause(ctx, there)
		return nothing, peer.ErrNotAsked
	}
	s.proc.gate()
	if s.proc.dead() {
		return nothing, peer.ErrUnknown
	}
	if fate == 1 { // lost on the way there
		_ = pause(ctx, 6*time.Second)
		return nothing, peer.ErrUnknown
	}
	if fate == 2 {
		there += time.Duration(r.IntN(20_000)) * time.Millisecond
	}
	// That the one who asks has given up may be noticed, or not.
	acting, notice := context.WithTimeout(leader.ctx, time.Minute)
	type result struct {
		answer T
		err    error
	}
	answered := make(chan result, 1)
	go func() {
		defer notice()
		_ = pause(leader.ctx, there)
		leader.gate()
		if leader.dead() {
			return
		}
		answer, err := act(acting, leader.backend)
		leader.gate()
		if !leader.dead() {
			answered <- result{answer, err}
		}
	}()
	gaveUp := func() (T, error) {
		if cut {
			notice()
		}
		return nothing, peer.ErrUnknown
	}
	silence := time.NewTimer(patience)
	defer silence.Stop()
	select {
	case <-ctx.Done():
		return gaveUp()
	case <-silence.C:
		return gaveUp()
	case <-leader.ctx.Done():
		return gaveUp()
	case got := <-answered:
		_ = pause(ctx, back)
		s.proc.gate()
		if fate == 3 || s.proc.dead() { // the answer is lost
			return nothing, peer.ErrUnknown
		}
		return got.answer, got.err
	}
}
