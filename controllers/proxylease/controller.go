// Package proxylease is the controller of ProxyLeases.
//
// Who gets which proxy is decided by the allocator, which is fed by the same informers directly. The controller does what
// is not urgent: it says on a lease why it waits and how its proxy fares, takes in reports and renewals, and revokes
// leases whose proxy is gone or was replaced.
package proxylease

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/tracing"
)

const controllerName = "proxylease"

const (
	// recoveryPoll is when to look again while leasing has not recovered.
	recoveryPoll = time.Second
	// waitingNotice is how long a lease waits before its status says so: most are bound by then, in one write.
	waitingNotice = time.Second
	// waitingRefresh is how often the reason for waiting is brought up to date.
	waitingRefresh = 30 * time.Second
	// overcommitRefresh is how often a lease is looked at whose proxy carries too many; that it changed is said at once.
	overcommitRefresh = 30 * time.Second
	// mirrorDelay is how old a lease that was granted by HTTP is before it gets a status of its own: shorter ones live
	// and die with two writes.
	mirrorDelay = 10 * time.Second
	// mirrorsPerSecond bounds those writes; under load they are left out.
	mirrorsPerSecond, mirrorBurst = 20, 20
)

// Allocator is what the controller needs of leasing.
type Allocator interface {
	// Recovered is false until the leader knows what there is.
	Recovered() bool
	// Enqueue lets a pending lease wait for a proxy and tells since when it does; false: it is being granted.
	Enqueue(lease *v1alpha1.ProxyLease) (since time.Time, waits bool)
	// WhyWaiting says why a pending lease cannot be granted now.
	WhyWaiting(ctx context.Context, lease *v1alpha1.ProxyLease) (reason, message string)
	// Deadline is when a bound lease expires, by the leader's clock, with what the object asks for taken in.
	Deadline(lease *v1alpha1.ProxyLease) (time.Time, bool)
	// WriteStatus writes what decide makes of the status; nil leaves it.
	WriteStatus(ctx context.Context, lease *v1alpha1.ProxyLease, decide func(*v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus) error
	// Revoke ends a bound lease.
	Revoke(ctx context.Context, lease *v1alpha1.ProxyLease, reason, message string) error
	// TakeReport takes in a report; when it returns nil the consequence is stored.
	TakeReport(ctx context.Context, lease *v1alpha1.ProxyLease, r v1alpha1.LeaseReport, retryAfter time.Duration, first bool) error
	// EnsureExclusive makes the proxy of an exclusive lease name it; taken: it is another lease's.
	EnsureExclusive(ctx context.Context, lease *v1alpha1.ProxyLease) (taken bool, err error)
	// Overcommitted tells whether the proxy of a bound lease carries more leases than its capacity.
	Overcommitted(lease *v1alpha1.ProxyLease) bool
	// OvercommitChanges names proxies for which that changed.
	OvercommitChanges() <-chan event.TypedGenericEvent[types.NamespacedName]
	// LeasesNamed are the leases that hold the proxy of that name, or one that had the name before.
	LeasesNamed(proxy types.NamespacedName) []types.NamespacedName
}

// Options of the controller.
type Options struct {
	Allocator Allocator
	Clock     clock.PassiveClock
}

// Reconciler reconciles ProxyLeases.
type Reconciler struct {
	Options
	Client client.Client
	// Live reads from the API server.
	Live    client.Reader
	mirrors *rate.Limiter
}

// New makes a Reconciler; Add is what a manager needs.
func New(c client.Client, live client.Reader, o Options) *Reconciler {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Reconciler{Options: o, Client: c, Live: live, mirrors: rate.NewLimiter(mirrorsPerSecond, mirrorBurst)}
}

// Add adds the controller to a manager.
func Add(mgr manager.Manager, o Options) error {
	r := New(mgr.GetClient(), mgr.GetAPIReader(), o)
	err := ctrl.NewControllerManagedBy(mgr).Named(controllerName).
		For(&v1alpha1.ProxyLease{}).
		Watches(&v1alpha1.Proxy{}, handler.EnqueueRequestsFromMapFunc(r.ofProxy), builder.WithPredicates(predicate.Funcs{UpdateFunc: proxyChanged})).
		WatchesRawSource(source.TypedChannel(o.Allocator.OvercommitChanges(), handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, proxy types.NamespacedName) []reconcile.Request { return r.ofNamed(proxy) }))).
		Complete(tracing.Reconciler(controllerName, r))
	if err != nil {
		return fmt.Errorf("add the %s controller: %w", controllerName, err)
	}
	return nil
}

// ofProxy are the leases that hold a proxy.
func (r *Reconciler) ofProxy(_ context.Context, px client.Object) []reconcile.Request {
	return r.ofNamed(client.ObjectKeyFromObject(px))
}

func (r *Reconciler) ofNamed(proxy types.NamespacedName) []reconcile.Request {
	var requests []reconcile.Request
	for _, lease := range r.Allocator.LeasesNamed(proxy) {
		requests = append(requests, reconcile.Request{NamespacedName: lease})
	}
	return requests
}

// proxyChanged tells whether something changed that leases of the proxy say or follow. Cooldowns are not.
func proxyChanged(e event.UpdateEvent) bool {
	before, ok := e.ObjectOld.(*v1alpha1.Proxy)
	after, also := e.ObjectNew.(*v1alpha1.Proxy)
	return !ok || !also || outlook(before) != outlook(after)
}
