package client

import (
	"context"
	"time"
)

// Backend is where leases come from: the HTTP API (New), ProxyLease objects (package kube), or what a test puts in its place.
// What is repeated, renewed and cleaned up is decided by the Client; a Backend makes single attempts.
//
// Its errors are *Error when there was an answer. *LostError means that a lease has ended for good. Anything else is taken
// for a call whose outcome is not known, and repeated.
type Backend interface {
	// Acquire asks for a lease. Asked again with the same key it gives the lease that the key has got, if it has got one.
	// It waits for a proxy as r.Wait and ctx say, or for a shorter time.
	Acquire(ctx context.Context, r Request, key string) (Handle, Terms, error)
	// Forget ends the lease that Acquire may have got for a key without saying so. That there is none is a success.
	Forget(ctx context.Context, r Request, key string) error
}

// Handle is what can be done with one lease. Renew and Check are never called at the same time.
type Handle interface {
	// ID names the lease, and may be all that is needed to use it.
	ID() string
	// Name names the lease for people and logs.
	Name() string
	// Renew makes the lease live for another TTL.
	Renew(ctx context.Context) (Terms, error)
	// Check looks whether the lease lives. Its Terms promise no time.
	Check(ctx context.Context) (Terms, error)
	// Report takes in what was seen at a target. nil means that the consequence is stored.
	Report(ctx context.Context, r Report) error
	// Release ends the lease and frees what the handle needs. That it has ended is a success.
	Release(ctx context.Context) error
}

// Watcher is implemented by handles that are told of changes. Watch blocks until the lease has ended, which it returns as a
// *LostError, or until ctx ends. It is called once, and not after Release.
type Watcher interface {
	Watch(ctx context.Context, changed func(Terms)) error
}

// Terms are what is known about a lease.
type Terms struct {
	Proxy       Proxy
	Credentials *Credentials
	// TTL is how long the lease lives without being renewed.
	TTL time.Duration
	// Until is a moment up to which the lease lives for certain unless it is revoked, by the monotonic clock of this
	// process; zero when nothing is known.
	Until time.Time
	// Draining asks the holder to lease another proxy soon.
	Draining bool
}

// Proxy is a leased proxy.
type Proxy struct {
	Namespace, Name string
	// URL is where it is found, without credentials.
	URL string
	// EgressIP is the address it was last seen to leave from; empty when not known.
	EgressIP string
	// Provider, Pool, Zone and Labels are those of the Proxy; package kube does not know them.
	Provider, Pool, Zone string
	Labels               map[string]string
}

// ID is namespace/name.
func (p Proxy) ID() string { return p.Namespace + "/" + p.Name }
