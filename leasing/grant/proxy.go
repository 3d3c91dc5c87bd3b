package grant

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// UpdateProxy writes leasing's slice of a Proxy's status as decide wants it; nil means nothing to write. The write carries
// the resourceVersion it was decided on, and is decided again on a fresh read after a conflict: a paused leader's late
// write can neither erase nor undo what its successor promised. Errors: ErrGone, what decide returns, or the API server's.
func (p *Pipeline) UpdateProxy(ctx context.Context, key types.NamespacedName, uid types.UID, decide func(*v1alpha1.Proxy) (*v1alpha1.ProxyStatus, error)) (*v1alpha1.Proxy, error) {
	unlock, err := p.lockProxy(ctx, key)
	if err != nil {
		return nil, err
	}
	defer unlock()
	px := &v1alpha1.Proxy{}
	if known := p.Ledger.Proxy(key, uid); known != nil {
		px = known.DeepCopy()
	} else {
		err = p.Client.Get(ctx, key, px)
	}
	for {
		if err == nil && px.UID == uid {
			desired, problem := decide(px)
			if desired == nil || problem != nil {
				return px, problem
			}
			err = attempt(ctx, func(ctx context.Context) error {
				return statusapply.Proxy(ctx, p.Client, v1alpha1.ManagerLeasing, px, desired)
			})
			switch {
			case err == nil:
				p.Written(px)
				return px, nil
			case ctx.Err() != nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err):
				return nil, fmt.Errorf("write status of proxy %s: %w", key, err)
			}
		}
		px = &v1alpha1.Proxy{}
		err = attempt(ctx, func(ctx context.Context) error { return p.Live.Get(ctx, key, px) })
		switch {
		case apierrors.IsNotFound(err), err == nil && px.UID != uid:
			return nil, ErrGone
		case err != nil:
			return nil, fmt.Errorf("read proxy %s: %w", key, err)
		}
	}
}

// Written takes in a Proxy as it is after a write of its status, by this replica or another one. What is known already, by the
// event for one, is no news.
func (p *Pipeline) Written(px *v1alpha1.Proxy) {
	before := p.Ledger.AnswerProxy(px)
	if before == nil || before.ResourceVersion == px.ResourceVersion {
		return
	}
	if p.OnProxy != nil {
		p.OnProxy(before, px)
	}
	p.changed()
}

// Claim makes a Proxy name an exclusive lease that exists, unless it names another one: of two leases, whoever wrote them,
// only one can be named. Together with the check of the leadership after it this is the guard of exclusive grants; each
// alone is not enough.
//
// The lease exists before it is named, so a named lease that does not exist is gone for good.
func (p *Pipeline) Claim(ctx context.Context, lease *v1alpha1.ProxyLease, b record.Binding) error {
	key := types.NamespacedName{Namespace: lease.Namespace, Name: b.ProxyName}
	_, err := p.UpdateProxy(ctx, key, b.ProxyUID, func(px *v1alpha1.Proxy) (*v1alpha1.ProxyStatus, error) {
		x := px.Status.Exclusive
		switch {
		case x != nil && x.LeaseUID != "" && x.LeaseUID != lease.UID:
			return nil, fmt.Errorf("claim proxy %s: %w", key, ErrTaken)
		case x != nil && x.LeaseUID == lease.UID && x.Epoch >= b.Epoch:
			return nil, nil
		case !p.Leads():
			return nil, fmt.Errorf("claim proxy %s: %w", key, ErrDeposed)
		}
		// Named for a former leader's grant it is named anew: what that leader may still send to free the proxy meets a conflict.
		status := px.Status.DeepCopy()
		status.Exclusive = &v1alpha1.Exclusive{LeaseUID: lease.UID, Epoch: b.Epoch}
		return status, nil
	})
	return err
}

// Unclaim makes a Proxy name no exclusive lease, if it names this one, which is gone or has ended for good. Any replica may.
func (p *Pipeline) Unclaim(ctx context.Context, key types.NamespacedName, lease types.UID) error {
	return p.unname(ctx, key, lease, func() bool { return true })
}

// Disown is Unclaim of a lease that may yet be bound: only the leader may say that it is not bound to this proxy.
func (p *Pipeline) Disown(ctx context.Context, key types.NamespacedName, lease types.UID) error {
	return p.unname(ctx, key, lease, p.Leads)
}

func (p *Pipeline) unname(ctx context.Context, key types.NamespacedName, lease types.UID, may func() bool) error {
	px := p.Ledger.Proxy(key, "")
	if px == nil {
		px = &v1alpha1.Proxy{}
		if err := p.Client.Get(ctx, key, px); err != nil {
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("read proxy %s: %w", key, err)
		}
	}
	_, err := p.UpdateProxy(ctx, key, px.UID, func(px *v1alpha1.Proxy) (*v1alpha1.ProxyStatus, error) {
		if x := px.Status.Exclusive; x == nil || x.LeaseUID != lease {
			return nil, nil
		}
		if !may() {
			return nil, fmt.Errorf("free proxy %s: %w", key, ErrDeposed)
		}
		status := px.Status.DeepCopy()
		status.Exclusive = nil
		return status, nil
	})
	if errors.Is(err, ErrGone) {
		return nil
	}
	return err
}
