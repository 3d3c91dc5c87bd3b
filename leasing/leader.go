package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Leader is the replica that leads, as another one asks it. See package peer.
type Leader interface {
	// Lease asks for a lease. The error is peer.ErrNotAsked when the leader does not act, and peer.ErrUnknown when it may.
	Lease(ctx context.Context, call peer.Call) (peer.Answer, error)
	// Tell tells it of what a call has written. The error says that it may not have heard of it.
	Tell(ctx context.Context, n peer.Notice) error
}

// What became of a request to the leader, as metrics name it.
const (
	outcomeAnswered    = "answered"
	outcomeUnreachable = "unreachable"
	outcomeUnsettled   = "unknown"
)

// askingPatience bounds the time in which the leader answers a replica. It answers for a write that hangs within ten seconds.
const askingPatience = 12 * time.Second

// tellingPatience bounds the time in which the leader hears of what a call has written. It will hear of it anyway.
const tellingPatience = time.Second

// passed is what became of a call that was passed to the leader. Unless it is done it goes on by an object; doubt says that the
// leader may act all the same.
type passed struct {
	done, doubt bool
	answer      peer.Answer
	err         error
}

// askLeader passes a call to the leader, which does not let it wait: who waits does so by an object, which keeps its place
// whoever leads, and counts for the limits where it was called. Whenever the leader was not asked, has not answered, or has no
// proxy at the moment, the call goes on by an object of the same name: whichever of the two leases is there first, the API
// server refuses the other. r.Wait is then what is left of it.
func (b Backend) askLeader(ctx context.Context, r *httpapi.LeaseRequest, name string) passed {
	if b.Leader == nil {
		return passed{}
	}
	leave, err := b.calls.enter(callerOf(*r))
	if err != nil {
		return passed{done: true, err: b.refusal(err)}
	}
	defer leave()
	start := b.Clock.Now()
	defer func() { r.Wait = max(0, r.Wait-b.Clock.Since(start).Truncate(time.Second)) }()
	asking, cancel := context.WithTimeout(ctx, askingPatience)
	defer cancel()
	call := peer.Call{Request: *r, Identity: r.Identity, Name: name}
	call.Request.Wait = 0
	answer, err := b.Leader.Lease(asking, call)
	outcome := outcomeAnswered
	switch {
	case errors.Is(err, peer.ErrNotAsked):
		outcome = outcomeUnreachable
	case err != nil:
		outcome = outcomeUnsettled
	}
	b.metrics.asked.WithLabelValues(outcome).Inc()
	switch {
	case r.Key == "" && ctx.Err() != nil && outcome != outcomeUnreachable:
		go b.withdrawNamed(types.NamespacedName{Namespace: r.Namespace, Name: name}) // nobody is there to learn of it
		return passed{done: true, err: outcomeUnknown()}
	case err != nil:
		b.Log.V(1).Info("The leader has not answered; a lease is made for it to find", "lease", r.Namespace+"/"+name, "reason", err.Error())
		return passed{doubt: outcome == outcomeUnsettled}
	case answer.Error != nil && answer.Error.Code == wire.CodeNoProxy && r.Wait > 0:
		return passed{}
	case answer.Error != nil:
		return passed{done: true, err: answer.Error}
	}
	return passed{done: true, answer: answer}
}

// leaseForReplica makes a lease, as the leader, for a call to another replica. It is for that one to take back what its caller
// does not get, so to the leader each of these calls has a key.
func (b Backend) leaseForReplica(ctx context.Context, call peer.Call) (peer.Answer, error) {
	if !b.Recovered() || !b.Leads() {
		return peer.Answer{}, peer.ErrNotAsked
	}
	call.Request.Key = cmp.Or(call.Request.Key, call.Name)
	lease, replayed, err := b.lease(ctx, call.Request, wanted(call.Request, call.Name))
	if refused, ok := errors.AsType[*httpapi.Error](err); ok {
		return peer.Answer{Error: refused}, nil
	}
	if err != nil {
		b.Log.Error(err, "A call of another replica failed", "lease", call.Request.Namespace+"/"+call.Name)
		return peer.Answer{Error: httpapi.Failed()}, nil
	}
	return peer.Answer{Lease: lease, Replayed: replayed}, nil
}

// tellLeader tells the leader of what a call has written, so that what the caller asks next, of whichever replica, finds it.
// When that fails the leader learns of it by its watch alone.
func (b Backend) tellLeader(ctx context.Context, n peer.Notice) {
	if b.Leader == nil || role(b.role.Load()) != follows {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, tellingPatience)
	defer cancel()
	if err := b.Leader.Tell(ctx, n); err != nil {
		b.Log.V(1).Info("The leader was not told of what a call has changed; its watch will", "notice", n, "reason", err.Error())
	}
}

// noticed takes in, as the leader, what a call to another replica has written. How a Proxy is now is asked of the API server:
// the watch may have shown something newer.
func (b Backend) noticed(ctx context.Context, n peer.Notice) error {
	if !b.Recovered() || !b.Leads() {
		return peer.ErrNotAsked
	}
	var unreadable error
	if n.Proxy.Name != "" {
		px := &v1alpha1.Proxy{}
		switch err := b.Live.Get(ctx, n.Proxy, px); {
		case err == nil:
			b.pipeline.Written(px)
		case client.IgnoreNotFound(err) != nil:
			unreadable = fmt.Errorf("read proxy %s: %w", n.Proxy, err)
		}
	}
	if n.Released.UID != "" {
		lease := unread(n.Released)
		key := client.ObjectKeyFromObject(lease)
		if !n.Withdrawn {
			b.consumed.add(key, b.Clock.Now())
		}
		defer b.ended(lease)
		exclusive := n.Proxy
		if exclusive.Name == "" {
			exclusive = b.pipeline.Exclusive(lease)
		}
		return errors.Join(unreadable, b.pipeline.Deleted(ctx, key, lease.UID, exclusive))
	}
	return unreadable
}
