package leasing

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
)

// Leader is the replica that leads, as another one asks it. See package peer.
type Leader interface {
	// Lease asks for a lease. The error is peer.ErrNotAsked when the leader does not act, and peer.ErrUnknown when it may.
	Lease(ctx context.Context, call peer.Call) (peer.Answer, error)
}

// What became of a request to the leader, as metrics name it.
const (
	outcomeAnswered    = "answered"
	outcomeUnreachable = "unreachable"
	outcomeUnsettled   = "unknown"
)

// askLeader passes a call to the leader. When it was not asked, or has not answered a call that has a key, the call goes on by
// an object of the same name: whichever of the two is there first, the API server refuses the other. r.Wait then is what is
// left of it.
func (b Backend) askLeader(ctx context.Context, r *httpapi.LeaseRequest, name string) (asked bool, answer peer.Answer, err error) {
	if b.Leader == nil {
		return false, answer, nil
	}
	start := b.Clock.Now()
	waiting, cancel := context.WithTimeout(ctx, r.Wait+leaderPatience)
	defer cancel()
	answer, err = b.Leader.Lease(waiting, peer.Call{Request: *r, Identity: r.Identity, Name: name})
	switch {
	case err == nil && answer.Error != nil:
		b.metrics.asked.WithLabelValues(outcomeAnswered).Inc()
		return true, peer.Answer{}, answer.Error
	case err == nil:
		b.metrics.asked.WithLabelValues(outcomeAnswered).Inc()
		return true, answer, nil
	case errors.Is(err, peer.ErrNotAsked):
		b.metrics.asked.WithLabelValues(outcomeUnreachable).Inc()
		b.Log.V(1).Info("The leader cannot be asked; a lease is made for it to find", "lease", r.Namespace+"/"+name, "reason", err.Error())
		return false, answer, nil
	}
	b.metrics.asked.WithLabelValues(outcomeUnsettled).Inc()
	b.Log.V(1).Info("The leader has not answered", "lease", r.Namespace+"/"+name, "reason", err.Error())
	if r.Key == "" {
		go b.withdrawNamed(types.NamespacedName{Namespace: r.Namespace, Name: name}) // nobody can ask for it again
		return true, answer, outcomeUnknown()
	}
	if ctx.Err() != nil {
		return true, answer, outcomeUnknown()
	}
	r.Wait = max(0, r.Wait-b.Clock.Since(start)).Truncate(time.Second)
	return false, answer, nil
}

// leaseForReplica makes a lease, as the leader, for a call to another replica.
func (b Backend) leaseForReplica(ctx context.Context, call peer.Call) (peer.Answer, error) {
	if !b.Recovered() {
		return peer.Answer{}, peer.ErrNotAsked
	}
	lease, replayed, err := b.lease(ctx, call.Request, wanted(call.Request, call.Name))
	if refused, ok := errors.AsType[*httpapi.Error](err); ok {
		return peer.Answer{Error: refused}, nil
	}
	return peer.Answer{Lease: lease, Replayed: replayed}, err
}
