package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// crawlers lease and release again and again, each one lease at a time: half of them by HTTP, the others by objects.
	crawlers = 50
	// crawlTTL outlives the test: nothing expires in it.
	crawlTTL = 900
	// impatience is how long most callers wait for an answer before they ask another core. One in four waits for ever.
	impatience = 3 * time.Second
	// grantsLimit bounds the time until every crawler was given a lease; it is for a machine that is busy with something else.
	grantsLimit = 3 * time.Minute
	// retryPause is the pause before a refused request is sent again.
	retryPause = 250 * time.Millisecond
)

// crawler leases proxies of the group busy.
type crawler struct {
	*failover
	name    string
	byHTTP  bool
	patient bool
	mode    v1alpha1.LeaseMode
	rng     *rand.Rand
	// grants counts the leases it was given, ended the keys whose lease had ended before it was promised; waits is true
	// while it asks for one.
	grants, ended atomic.Int64
	waits         atomic.Bool
	// told is the last answer that granted nothing.
	told atomic.Value
}

// crowd is all crawlers.
type crowd struct {
	all     []*crawler
	stop    func()
	running sync.WaitGroup
}

// newCrowd lets crawlers lease until they are stopped.
func newCrowd(f *failover) *crowd {
	ctx, cancel := context.WithCancel(context.Background())
	c := &crowd{}
	c.stop = func() {
		cancel()
		c.running.Wait()
	}
	f.t.Cleanup(c.stop)
	for i := range crawlers {
		one := &crawler{
			failover: f, name: fmt.Sprint("crawler-", i), byHTTP: i%2 == 0, patient: i%8 == 0, mode: v1alpha1.LeaseShared,
			rng: rand.New(rand.NewPCG(f.seed, uint64(i+1))),
		}
		if i/2%2 == 0 {
			one.mode = v1alpha1.LeaseExclusive
		}
		c.all = append(c.all, one)
		c.running.Go(func() { one.run(ctx) })
	}
	return c
}

// waiting is how many ask for a lease at this moment.
func (c *crowd) waiting() (n int) {
	for _, one := range c.all {
		if one.waits.Load() {
			n++
		}
	}
	return n
}

// awaitGrants waits until every crawler was given so many leases from now on.
func (c *crowd) awaitGrants(f *failover, n int64) {
	f.t.Helper()
	want := map[*crawler]int64{}
	for _, one := range c.all {
		want[one] = one.grants.Load() + n
	}
	var behind []string
	err := f.poll(grantsLimit, func(context.Context) bool {
		behind = nil
		for _, one := range c.all {
			if got := one.grants.Load(); got < want[one] {
				behind = append(behind, fmt.Sprintf("%s (%s, HTTP %t) has %d of %d, was last told %v", one.name, one.mode, one.byHTTP, got, want[one], one.told.Load()))
			}
		}
		return len(behind) == 0
	})
	if err != nil {
		f.t.Fatalf("after %s:\n%s\n%s", grantsLimit, strings.Join(behind, "\n"), f.picture())
	}
}

func (c *crawler) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		acquire, release := c.acquireObject, c.releaseObject
		if c.byHTTP {
			acquire, release = c.acquireHTTP, c.releaseHTTP
		}
		c.waits.Store(true)
		got, ok := acquire(ctx, fmt.Sprintf("%s-%d", c.name, n))
		c.waits.Store(false)
		if !ok {
			return
		}
		c.promises.hold(got)
		c.grants.Add(1)
		linger(ctx, time.Duration(c.rng.IntN(5))*time.Millisecond)
		// What was promised is there until the holder gives it back.
		if problem := c.lost(got); problem != "" {
			c.promises.fail("%s", problem)
		}
		c.promises.letGo(got)
		release(ctx, got)
	}
}

// acquireHTTP asks one core after the other with one key until one of them grants. Only when it is told that the lease of
// the key has ended already does it take another key.
func (c *crawler) acquireHTTP(ctx context.Context, key string) (promise, bool) {
	for {
		core := c.core(c.rng)
		try, cancel := context.WithTimeout(ctx, impatience)
		if c.patient {
			try, cancel = context.WithCancel(ctx)
		}
		status, answer, err := core.Call(try, http.MethodPost, wire.PathLeases, wire.LeaseRequest{
			Selector: map[string]*string{groupLabel: new(groupBusy)}, Holder: c.name, Mode: string(c.mode),
			TTLSeconds: new(int32(crawlTTL)), WaitSeconds: new(int32(2)),
		}, key)
		cancel()
		c.told.Store(fmt.Sprintf("%s: %d %s %v", core.name, status, answer, err))
		switch {
		case ctx.Err() != nil:
			return promise{}, false
		case err != nil: // no core there, or it went away: the key settles it
		case status == http.StatusOK, status == http.StatusCreated:
			return promiseOf(answer, c.mode), true
		case status == http.StatusConflict, status == http.StatusGone:
			key += "+"
			c.ended.Add(1)
		case status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests:
			c.promises.fail("%s asked %s with the key %s and was told %d %s", c.name, core.name, key, status, answer)
			return promise{}, false
		}
		linger(ctx, retryPause)
	}
}

func promiseOf(answer []byte, mode v1alpha1.LeaseMode) promise {
	lease := wire.Lease{}
	if err := json.Unmarshal(answer, &lease); err != nil || strings.Count(lease.LeaseID, ".") != 2 {
		return promise{name: fmt.Sprintf("%s: %v", answer, err)} // of which nothing is stored: it counts as lost
	}
	return promise{name: strings.Split(lease.LeaseID, ".")[1], proxy: lease.Proxy.Name, mode: mode, id: lease.LeaseID}
}

// releaseHTTP goes on until a core confirms it.
func (c *crawler) releaseHTTP(ctx context.Context, p promise) {
	for ctx.Err() == nil {
		core := c.core(c.rng)
		try, cancel := context.WithTimeout(ctx, impatience)
		status, answer, err := core.Call(try, http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(p.id), nil, "")
		cancel()
		if err == nil && status == http.StatusNoContent {
			return
		}
		if err == nil && status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
			c.promises.fail("%s released %s at %s and was told %d %s", c.name, p.name, core.name, status, answer)
			return
		}
		linger(ctx, retryPause)
	}
}

// acquireObject creates a ProxyLease and waits until it is bound.
func (c *crawler) acquireObject(ctx context.Context, name string) (promise, bool) {
	lease := c.lease(name, groupBusy, c.name)
	lease.Spec.Mode = c.mode
	if err := c.env.Client.Create(ctx, lease); err != nil {
		if ctx.Err() == nil {
			c.promises.fail("%s could not create its lease: %v", c.name, err)
		}
		return promise{}, false
	}
	for {
		seen, changed := c.stored.get(name)
		if seen != nil && seen.UID == lease.UID {
			if b, ok := record.BindingOf(seen); ok {
				return promise{name: name, proxy: b.ProxyName, mode: c.mode}, true
			}
			if record.Finished(seen) {
				c.promises.fail("lease %s of an object ended before it was bound: %+v", name, seen.Status)
				return promise{}, false
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return promise{}, false
		}
	}
}

func (c *crawler) releaseObject(ctx context.Context, p promise) {
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: p.name}}
	if err := c.env.Client.Delete(ctx, lease); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		c.promises.fail("%s could not delete its lease: %v", c.name, err)
	}
}

// lost says how what is stored differs from what was promised; "" when it does not.
func (f *failover) lost(p promise) string {
	lease := &v1alpha1.ProxyLease{}
	if err := f.env.Client.Get(context.Background(), client.ObjectKey{Namespace: f.namespace, Name: p.name}, lease); err != nil {
		return fmt.Sprintf("lease %s was promised and is lost: %v", p.name, err)
	}
	return differs(p, lease)
}

func differs(p promise, lease *v1alpha1.ProxyLease) string {
	b, bound := record.BindingOf(lease)
	if !bound || !record.Holds(lease) || b.ProxyName != p.proxy {
		return fmt.Sprintf("lease %s was promised on %s and is %s on %q: %+v", p.name, p.proxy, lease.Status.Phase, b.ProxyName, lease.Status.Conditions)
	}
	return ""
}

// linger waits, but not beyond the end of ctx.
func linger(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
