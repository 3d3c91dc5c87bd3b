package leasing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/cooldown"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// reportGrace is how long after its end a lease still reports: a late answer of a site is as true as a timely one.
	reportGrace = 120 * time.Second
	// notReadyRetry is when a call is worth repeating that came before the leader was ready.
	notReadyRetry = time.Second
	// noProxyRetry is when a call is worth repeating that found no proxy, unless a cooldown's end is known.
	noProxyRetry = 5 * time.Second
	// callTimeout bounds the writes of a call.
	callTimeout = 15 * time.Second
	// releaseReadTimeout bounds a read before a release, which goes on without it.
	releaseReadTimeout = time.Second
)

// Backend is what the HTTP API does, on the leader and on the other replicas alike.
type Backend struct {
	*Allocator
	// Leader is asked for leases by a replica that does not lead; nil: it goes by objects alone.
	Leader Leader
}

var _ httpapi.Backend = Backend{}

// List implements httpapi.Backend. It reads the cache, on every replica.
func (b Backend) List(ctx context.Context, q httpapi.ListQuery) ([]httpapi.Proxy, error) {
	if err := b.cacheReady(ctx); err != nil {
		return nil, err
	}
	list := &v1alpha1.ProxyList{}
	// Cooldowns count for every proxy of an exit, so those that do not match the query are needed too, in all namespaces.
	opts := []client.ListOption{client.UnsafeDisableDeepCopy}
	if q.Target == "" {
		opts = append(opts, client.InNamespace(q.Namespace))
	}
	if err := b.Client.List(ctx, list, opts...); err != nil {
		return nil, unavailable(err)
	}
	now := b.Clock.Now()
	cooling := map[string]bool{}
	if q.Target != "" {
		for i := range list.Items {
			px := &list.Items[i]
			if !cooldown.Until(px.Status.Cooldowns, record.InstanceID(px), q.Target, now).IsZero() {
				cooling[ledger.Identity(px)] = true
			}
		}
	}
	var out []httpapi.Proxy
	for i := range list.Items {
		px := &list.Items[i]
		if px.Namespace != q.Namespace || !q.Selector.Matches(labels.Set(px.Labels)) || cooling[ledger.Identity(px)] {
			continue
		}
		if view := viewProxy(px); q.Healthy == nil || *q.Healthy == view.Healthy {
			out = append(out, view)
		}
	}
	slices.SortFunc(out, func(a, b httpapi.Proxy) int { return cmp.Compare(a.Name, b.Name) })
	return out, nil
}

// Get implements httpapi.Backend. It reads the API server: a lease that was just released must not look alive.
func (b Backend) Get(ctx context.Context, ref httpapi.Ref) (httpapi.Lease, error) {
	lease, err := b.alive(ctx, ref)
	if err != nil {
		return httpapi.Lease{}, err
	}
	return b.answer(ctx, lease)
}

// Renew implements httpapi.Backend. While more than half of the TTL is left by what is stored, the stored end is repeated
// and nothing is written: nothing is promised that a restart forgets.
func (b Backend) Renew(ctx context.Context, ref httpapi.Ref) (httpapi.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := b.alive(ctx, ref)
	if err != nil {
		return httpapi.Lease{}, err
	}
	written := "false"
	if record.Pending(lease) {
		return httpapi.Lease{}, notReady("The lease is not granted yet")
	}
	if worthRenewing(lease, b.Clock.Now()) {
		written = "true"
		if b.Recovered() {
			lease, err = b.renewHere(ctx, lease)
		} else {
			lease, err = b.renewBySpec(ctx, lease)
		}
		if err != nil {
			return httpapi.Lease{}, err
		}
	}
	b.metrics.renewals.WithLabelValues(written).Inc()
	return b.answer(ctx, lease)
}

// renewHere renews as the leader: one write of the status, which is where the end of a lease is stored. It and the expiry
// exclude each other by resourceVersion, so a renewal that succeeds means that the lease lives.
func (b Backend) renewHere(ctx context.Context, lease *v1alpha1.ProxyLease) (*v1alpha1.ProxyLease, error) {
	renewed, err := b.pipeline.Update(ctx, client.ObjectKeyFromObject(lease), lease.UID, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		now := b.Clock.Now()
		if !record.Holds(l) || !worthRenewing(l, now) {
			return nil
		}
		return record.Renewed(l, b.proxyOf(l), now)
	})
	switch {
	case errors.Is(err, grant.ErrGone):
		return nil, ended(wire.ReasonGone, "The lease was released")
	case err != nil:
		return nil, unavailable(err)
	case record.Finished(renewed):
		return nil, endedBy(renewed)
	}
	b.track(renewed)
	return renewed, nil
}

// Report implements httpapi.Backend.
func (b Backend) Report(ctx context.Context, ref httpapi.Ref, r httpapi.Report) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := b.read(ctx, ref)
	if err != nil {
		return err
	}
	if at := lease.Status.FinishTime; record.Finished(lease) && (at == nil || b.Clock.Since(at.Time) > reportGrace) {
		return endedBy(lease)
	}
	first := !record.Reported(lease, r.Target)
	report := v1alpha1.LeaseReport{Target: r.Target, Result: r.Result, Count: 1}
	if err := b.TakeReport(ctx, lease, report, r.RetryAfter, first); err != nil {
		return unavailable(err)
	}
	if !cooldown.Cools(r.Result) {
		return nil
	}
	if binding, ok := record.BindingOf(lease); ok {
		b.tellLeader(ctx, peer.Notice{Proxy: types.NamespacedName{Namespace: lease.Namespace, Name: binding.ProxyName}})
	}
	if !first {
		return nil
	}
	// So that a restart does not take the next report of this lease for a first one. The cooldown is stored already, so
	// this failing is not worth an error.
	_, err = b.pipeline.Update(ctx, client.ObjectKeyFromObject(lease), lease.UID, func(l *v1alpha1.ProxyLease) *v1alpha1.ProxyLeaseStatus {
		status := record.Mirrored(l, b.proxyOf(l), b.Clock.Now())
		record.Observe(l, status, report)
		return status
	})
	if err != nil && !errors.Is(err, grant.ErrGone) {
		b.Log.Error(err, "Remember a report", "lease", client.ObjectKeyFromObject(lease))
	}
	return nil
}

// Release implements httpapi.Backend, on every replica.
func (b Backend) Release(ctx context.Context, ref httpapi.Ref) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	lease := b.released(ctx, ref)
	namesake, err := b.Allocator.Release(ctx, lease)
	if err != nil {
		return unavailable(err)
	}
	if namesake {
		return nil // the key leases again
	}
	b.consumed.add(key, b.Clock.Now())
	b.metrics.ended.WithLabelValues(v1alpha1.ReasonReleased).Inc()
	b.tellLeader(ctx, peer.Notice{Released: ref, Proxy: b.pipeline.Exclusive(lease)})
	return nil
}

// released is what is known of a lease that is given back. Only of an exclusive one is it needed: it lets go of its proxy. Of one
// that the cache does not show (bound) yet, the leader knows that by itself.
func (b Backend) released(ctx context.Context, ref httpapi.Ref) *v1alpha1.ProxyLease {
	lease := &v1alpha1.ProxyLease{}
	err := b.Client.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, lease)
	if _, bound := record.BindingOf(lease); bound && err == nil && lease.UID == ref.UID {
		return lease
	}
	if !b.Recovered() {
		ctx, cancel := context.WithTimeout(ctx, releaseReadTimeout)
		defer cancel()
		if lease, err = b.read(ctx, ref); err == nil {
			return lease
		}
	}
	return unread(ref)
}

func refOf(lease *v1alpha1.ProxyLease) httpapi.Ref {
	return httpapi.Ref{Namespace: lease.Namespace, Name: lease.Name, UID: lease.UID}
}

// unread is a lease of which no more is known.
func unread(ref httpapi.Ref) *v1alpha1.ProxyLease {
	return &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: ref.Namespace, Name: ref.Name, UID: ref.UID}}
}

// alive reads a lease that has not ended.
func (b Backend) alive(ctx context.Context, ref httpapi.Ref) (*v1alpha1.ProxyLease, error) {
	lease, err := b.read(ctx, ref)
	if err == nil && record.Finished(lease) {
		return nil, endedBy(lease)
	}
	return lease, err
}

// read reads a lease; one that is gone, or only has a namesake, has ended.
func (b Backend) read(ctx context.Context, ref httpapi.Ref) (*v1alpha1.ProxyLease, error) {
	lease := &v1alpha1.ProxyLease{}
	err := b.Live.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, lease)
	if client.IgnoreNotFound(err) != nil {
		return nil, unavailable(err)
	}
	if err != nil || lease.UID != ref.UID || !lease.DeletionTimestamp.IsZero() {
		return nil, ended(wire.ReasonGone, "The lease was released, or it ended a while ago")
	}
	return lease, nil
}

// answer is what the holder of a bound lease is told.
func (b Backend) answer(ctx context.Context, lease *v1alpha1.ProxyLease) (httpapi.Lease, error) {
	binding, ok := record.BindingOf(lease)
	if !ok {
		return httpapi.Lease{}, notReady("The lease is not granted yet")
	}
	out := httpapi.Lease{
		Ref:        refOf(lease),
		ExpireTime: record.Expiry(lease), TTLSeconds: record.TTLSeconds(lease), Mode: lease.Spec.Mode, Holder: lease.Spec.Holder,
	}
	px := b.proxyOf(lease)
	if px == nil {
		px = &v1alpha1.Proxy{}
		err := b.Client.Get(ctx, types.NamespacedName{Namespace: lease.Namespace, Name: binding.ProxyName}, px)
		if client.IgnoreNotFound(err) != nil {
			return httpapi.Lease{}, unavailable(err)
		}
		if err != nil || px.UID != binding.ProxyUID {
			return httpapi.Lease{}, ended(v1alpha1.ReasonProxyDeleted, "The lease's proxy does not exist any more")
		}
	}
	if binding.InstanceID != "" && record.InstanceID(px) != "" && record.InstanceID(px) != binding.InstanceID {
		return httpapi.Lease{}, ended(v1alpha1.ReasonProxyReplaced, "The instance behind the lease's proxy was replaced")
	}
	out.Draining = record.Draining(px)
	if out.Proxy = viewProxy(px); out.Proxy.Host == "" {
		// Its instance is being given up, and the lease with it. A caller who took an empty address for a proxy would crawl
		// without one.
		return httpapi.Lease{}, notReady("The lease's proxy has no address at the moment")
	}
	if ref := px.Spec.CredentialsSecretRef; ref != nil {
		var err error
		if out.Username, out.Password, err = b.Credentials.Read(ctx, px.Namespace, ref.Name); err != nil {
			b.Log.Error(err, "Read the credentials of a leased proxy", "proxy", client.ObjectKeyFromObject(px))
			return httpapi.Lease{}, noCredentials()
		}
	}
	return out, nil
}

func viewProxy(px *v1alpha1.Proxy) httpapi.Proxy {
	zone := ""
	if px.Status.Instance != nil {
		zone = px.Status.Instance.Zone
	}
	mode := px.Spec.Mode
	if mode == "" {
		mode = v1alpha1.ModeManaged
	}
	return httpapi.Proxy{
		Namespace: px.Namespace, Name: px.Name, Host: record.Host(px), Port: px.EndpointPort(), Protocol: px.Spec.Protocol,
		URL: record.URL(px), Labels: px.Labels, Mode: mode, Provider: px.Spec.Provider, Pool: record.Pool(px), Zone: zone,
		Phase: px.Status.Phase, EgressIP: record.EgressIP(px),
		Healthy:  meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionHealthy),
		Leasable: ledger.Closed(px) == "",
	}
}
