package leasing

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// Fence knows, without asking anybody, how long this process may still believe that it leads. It wraps the election's lock
// and remembers when it was last renewed; client-go itself only notices the loss of a lease when it gets to run, which a
// paused process does not.
//
// The guarantee needs clocks whose rates differ by less than LeaseDuration/RenewDeadline.
type Fence struct {
	resourcelock.Interface

	clock    clock.PassiveClock
	deadline time.Duration
	renewed  atomic.Pointer[time.Time]
	leader   atomic.Pointer[string]
}

// NewFence wraps the lock of an election with the given RenewDeadline.
func NewFence(lock resourcelock.Interface, renewDeadline time.Duration, c clock.PassiveClock) *Fence {
	return &Fence{Interface: lock, clock: c, deadline: renewDeadline}
}

// Leads tells whether the last renewal is recent enough.
func (f *Fence) Leads() bool {
	at := f.renewed.Load()
	return at != nil && f.clock.Since(*at) < f.deadline
}

// Leader is the identity of who leads as the election last saw it, itself included; empty when nobody does. It may have
// changed since.
func (f *Fence) Leader() string {
	if identity := f.leader.Load(); identity != nil {
		return *identity
	}
	return ""
}

// Get implements resourcelock.Interface. Who does not lead asks all the time.
func (f *Fence) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := f.Interface.Get(ctx)
	if err == nil && record != nil {
		f.leader.Store(&record.HolderIdentity)
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (f *Fence) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return f.watch(r, func() error { return f.Interface.Create(ctx, r) })
}

// Update implements resourcelock.Interface.
func (f *Fence) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return f.watch(r, func() error { return f.Interface.Update(ctx, r) })
}

// watch counts a write from before it was sent: it took effect at that moment or later.
func (f *Fence) watch(r resourcelock.LeaderElectionRecord, write func() error) error {
	before := f.clock.Now()
	mine := r.HolderIdentity == f.Identity()
	if !mine {
		f.renewed.Store(nil) // given up, and before anybody can take over
	}
	if err := write(); err != nil {
		return err
	}
	if mine {
		f.renewed.Store(&before)
	}
	return nil
}

var _ resourcelock.Interface = (*Fence)(nil)
