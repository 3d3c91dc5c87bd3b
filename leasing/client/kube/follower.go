package kube

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// minPause and maxPause bound the pause after a watch that broke off or could not be started.
	minPause = 100 * time.Millisecond
	maxPause = 10 * time.Second
)

// follower gives the states of one object in their order: by one watch, taken up again where it broke off, and from a list
// when the server has forgotten that point.
type follower struct {
	client ctrlclient.WithWatch
	key    ctrlclient.ObjectKey
	// ctx is that of the watch, which outlives the call that began it.
	ctx    context.Context
	cancel context.CancelFunc

	// version is where to take the watch up; empty: from a list.
	version string
	broken  int // watches in a row that gave nothing

	mu    sync.Mutex
	watch watch.Interface
}

// follow follows a lease from a state that is known already.
func follow(ctx context.Context, c ctrlclient.WithWatch, lease *v1alpha1.ProxyLease) *follower {
	f := &follower{client: c, key: ctrlclient.ObjectKeyFromObject(lease), version: lease.ResourceVersion}
	f.ctx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return f
}

// stop ends the watch for good. It may be called while next is.
func (f *follower) stop() {
	f.cancel()
	f.set(nil)
}

// set replaces the watch.
func (f *follower) set(w watch.Interface) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch != nil {
		f.watch.Stop()
	}
	f.watch = w
	if w != nil && f.ctx.Err() != nil { // stopped meanwhile
		w.Stop()
		f.watch = nil
	}
}

// events are those of the watch; nil when there is none.
func (f *follower) events() <-chan watch.Event {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watch == nil {
		return nil
	}
	return f.watch.ResultChan()
}

// next waits for the next state; nil: the object is gone. What the server refuses for good is an error, and so is the end of
// ctx; then it may be called again.
func (f *follower) next(ctx context.Context) (*v1alpha1.ProxyLease, error) {
	for {
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case f.ctx.Err() != nil:
			return nil, f.ctx.Err()
		}
		events := f.events()
		if events == nil {
			lease, known, err := f.begin(ctx)
			switch {
			case err != nil && permanent(err):
				f.broken++
				return nil, fmt.Errorf("watch the lease: %w", apiError(err))
			case err != nil:
				f.end(err)
			case known:
				return lease, nil
			}
			continue
		}
		select {
		case event, open := <-events:
			if !open {
				f.end(nil)
				continue
			}
			if lease, known, err := f.take(event); err != nil {
				f.end(err)
			} else if known {
				return lease, nil
			}
		case <-ctx.Done():
		case <-f.ctx.Done():
		}
	}
}

// take reads an event; ok is false when it tells nothing about the object.
func (f *follower) take(event watch.Event) (lease *v1alpha1.ProxyLease, ok bool, err error) {
	if event.Type == watch.Error {
		return nil, false, apierrors.FromObject(event.Object)
	}
	lease, isLease := event.Object.(*v1alpha1.ProxyLease)
	if !isLease {
		return nil, false, nil
	}
	f.version, f.broken = lease.ResourceVersion, 0
	switch event.Type {
	case watch.Bookmark:
		return nil, false, nil
	case watch.Deleted:
		return nil, true, nil
	}
	return lease, true, nil
}

func (f *follower) options(version string) *ctrlclient.ListOptions {
	return &ctrlclient.ListOptions{
		Namespace: f.key.Namespace, FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, f.key.Name),
		Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: version != ""},
	}
}

// begin starts a watch, or lists the object when it is not known from where. known says that lease is a new state.
func (f *follower) begin(ctx context.Context) (lease *v1alpha1.ProxyLease, known bool, err error) {
	if f.broken > 0 && !f.pause(ctx) {
		return nil, false, nil
	}
	if f.version == "" {
		lease, err := f.list(ctx)
		return lease, err == nil, err
	}
	w, err := f.client.Watch(f.ctx, &v1alpha1.ProxyLeaseList{}, f.options(f.version))
	if err == nil {
		f.set(w)
	}
	return nil, false, err
}

// end ends a watch that broke off. The next one begins with a list when the server has forgotten its point.
func (f *follower) end(err error) {
	f.set(nil)
	f.broken++
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		f.version = ""
	}
}

func (f *follower) list(ctx context.Context) (*v1alpha1.ProxyLease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list := &v1alpha1.ProxyLeaseList{}
	if err := f.client.List(ctx, list, f.options("")); err != nil {
		return nil, err
	}
	f.version = list.ResourceVersion
	if len(list.Items) == 0 {
		return nil, nil
	}
	return &list.Items[0], nil
}

// pause waits before the next attempt and tells whether there is one.
func (f *follower) pause(ctx context.Context) bool {
	pause := min(minPause<<min(f.broken-1, 16), maxPause)
	timer := time.NewTimer(pause/2 + rand.N(pause/2))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-f.ctx.Done():
	}
	return false
}

// permanent tells whether the server will answer the same again.
func permanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) ||
		apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err)
}
