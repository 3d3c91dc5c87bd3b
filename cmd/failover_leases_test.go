package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/ledger"
	"crawl.example.com/egress-proxies-operator/leasing/record"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// groupLabel says to which group a proxy belongs.
	groupLabel = "group"
	// groupFull has as many slots as there are bound leases, groupBusy is what the crawlers compete for.
	groupFull, groupBusy      = "full", "busy"
	fullProxies, fullCapacity = 40, boundLeases / fullProxies
	busyProxies, busyCapacity = 48, 2
	// pendingHolders take turns.
	pendingHolders = 4
	// pendingPace is the time between two leases that wait: they come in several seconds, which is what is stored of their
	// age.
	pendingPace = 20 * time.Millisecond
	// fillers create bound leases at the same time.
	fillers = 16
	// settleTime bounds the time until what a deposed leader has left is settled.
	settleTime = 30 * time.Second
)

// makeProxies creates external proxies, each with an address of its own.
func (f *failover) makeProxies() {
	f.t.Helper()
	create := func(group string, network, n, capacity int) {
		for i := range n {
			px := &v1alpha1.Proxy{ObjectMeta: metav1.ObjectMeta{
				Namespace: f.namespace, Name: fmt.Sprintf("%s-%d", group, i), Labels: map[string]string{groupLabel: group},
			}}
			px.Spec.Mode, px.Spec.Port = v1alpha1.ModeExternal, f.proxyPort
			px.Spec.External = &v1alpha1.External{Host: fmt.Sprintf("127.0.%d.%d", network, 1+i)}
			px.Spec.Capacity = new(int32(capacity))
			px.Spec.HealthCheck = &v1alpha1.HealthCheck{TimeoutSeconds: new(int32(30)), ExitIP: &v1alpha1.ExitIP{Mode: "Ignore"}}
			if err := f.env.Client.Create(f.t.Context(), px); err != nil {
				f.t.Fatal(err)
			}
			f.promises.capacity[px.Name] = capacity
		}
	}
	create(groupFull, 10, fullProxies, fullCapacity)
	create(groupBusy, 11, busyProxies, busyCapacity)
}

// awaitProxies waits until every proxy can be leased.
func (f *failover) awaitProxies() {
	f.t.Helper()
	closed := ""
	f.await("all proxies can be leased", takeoverLimit, func(ctx context.Context) bool {
		list := &v1alpha1.ProxyList{}
		if err := f.env.Client.List(ctx, list, client.InNamespace(f.namespace)); err != nil {
			return false
		}
		closed = ""
		for i := range list.Items {
			if reason := ledger.Closed(&list.Items[i]); reason != "" {
				closed = list.Items[i].Name + ": " + reason
			}
		}
		return closed == "" && len(list.Items) == fullProxies+busyProxies
	})
}

// lease is a ProxyLease for a proxy of a group.
func (f *failover) lease(name, group, holder string) *v1alpha1.ProxyLease {
	lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name}}
	lease.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{groupLabel: group}}
	lease.Spec.Holder, lease.Spec.TTLSeconds = holder, crawlTTL
	return lease
}

// fill takes all slots of the group full: every other one by HTTP, at all cores, and the others by objects.
func (f *failover) fill() {
	f.t.Helper()
	group, ctx := errgroup.WithContext(f.t.Context())
	group.SetLimit(fillers)
	var mu sync.Mutex
	got := func(p promise) {
		f.promises.hold(p)
		mu.Lock()
		defer mu.Unlock()
		f.full = append(f.full, p)
	}
	for i := range boundLeases {
		name := fmt.Sprint("full-", i)
		group.Go(func() error {
			if i%2 == 0 {
				core := f.cores[i/2%len(f.cores)]
				status, answer, err := core.Call(ctx, http.MethodPost, wire.PathLeases, wire.LeaseRequest{
					Selector: map[string]*string{groupLabel: new(groupFull)}, Holder: "full", TTLSeconds: new(int32(crawlTTL)), WaitSeconds: new(int32(30)),
				}, name)
				if err != nil || status != http.StatusCreated {
					return fmt.Errorf("lease %s at %s: %d %s %w", name, core.name, status, answer, err)
				}
				got(promiseOf(answer, v1alpha1.LeaseShared))
				return nil
			}
			if err := f.env.Client.Create(ctx, f.lease(name, groupFull, "full")); err != nil {
				return err
			}
			for {
				seen, changed := f.stored.get(name)
				if seen != nil {
					if b, ok := record.BindingOf(seen); ok {
						got(promise{name: name, proxy: b.ProxyName, mode: v1alpha1.LeaseShared})
						return nil
					}
				}
				select {
				case <-changed:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
	}
	if err := group.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// makePending creates leases that have to wait, one after the other.
func (f *failover) makePending(n int) {
	f.t.Helper()
	for i := range n {
		lease := f.lease(fmt.Sprintf("pending-%d", i), groupFull, fmt.Sprint("waiter-", i%pendingHolders))
		if err := f.env.Client.Create(f.t.Context(), lease); err != nil {
			f.t.Fatal(err)
		}
		linger(f.t.Context(), pendingPace)
	}
}

func isPending(lease *v1alpha1.ProxyLease) bool {
	return strings.HasPrefix(lease.Name, "pending-") && record.Pending(lease)
}

// awaitPending waits until so many leases wait, and no more.
func (f *failover) awaitPending(n int) {
	f.t.Helper()
	f.await(fmt.Sprintf("%d leases wait", n), takeoverLimit, func(context.Context) bool { return f.stored.count(isPending) == n })
}

// free gives back some of the leases on the group full, those by HTTP in the one way and the others in the other.
func (f *failover) free(n int) {
	f.t.Helper()
	f.rng.Shuffle(len(f.full), func(i, j int) { f.full[i], f.full[j] = f.full[j], f.full[i] })
	for _, p := range f.full[:n] {
		f.promises.letGo(p)
		if p.id == "" {
			lease := &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: p.name}}
			if err := f.env.Client.Delete(f.t.Context(), lease); err != nil {
				f.t.Fatal(err)
			}
			continue
		}
		f.await("a lease is given back", takeoverLimit, func(ctx context.Context) bool {
			core := f.core(f.rng)
			status, _, err := core.Call(ctx, http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(p.id), nil, "")
			return err == nil && status == http.StatusNoContent
		})
	}
	f.full = slices.Clone(f.full[n:])
}

// checkFull looks at every lease that was promised before the leader changed: it is stored, bound to that same proxy, and a
// core tells its holder so.
func (f *failover) checkFull() {
	f.t.Helper()
	lost := 0
	for _, p := range f.full {
		problem := f.lost(p)
		if problem == "" && p.id != "" {
			f.await("a core tells of a lease", takeoverLimit, func(ctx context.Context) bool {
				core := f.core(f.rng)
				status, answer, err := core.Call(ctx, http.MethodGet, wire.PathLeases+"/"+url.PathEscape(p.id), nil, "")
				if err != nil || status == http.StatusServiceUnavailable {
					return false
				}
				if status != http.StatusOK || promiseOf(answer, p.mode).proxy != p.proxy {
					problem = fmt.Sprintf("lease %s was promised on %s, and its holder is told %d %s", p.name, p.proxy, status, answer)
				}
				return true
			})
		}
		if problem != "" {
			f.t.Error(problem)
			lost++
		}
	}
	f.t.Logf("%d promised leases, %d lost", len(f.full), lost)
}

// awaitConsistent waits until what is stored is in order: no proxy above its capacity, and none with an Exclusive lease and
// another one. A deposed leader may have left something to settle, which nobody was promised.
func (f *failover) awaitConsistent() {
	f.t.Helper()
	var problems []string
	err := f.poll(settleTime, func(ctx context.Context) bool {
		leases := &v1alpha1.ProxyLeaseList{}
		if err := f.env.Client.List(ctx, leases, client.InNamespace(f.namespace)); err != nil {
			problems = []string{err.Error()}
			return false
		}
		problems = f.clashes(leases.Items)
		return len(problems) == 0
	})
	if err != nil {
		f.t.Errorf("after %s:\n%s", settleTime, strings.Join(problems, "\n"))
	}
}

// picture is how the group of the crawlers looks, for a test that fails.
func (f *failover) picture() string {
	leases, proxies := &v1alpha1.ProxyLeaseList{}, &v1alpha1.ProxyList{}
	if err := errors.Join(f.env.Client.List(context.Background(), leases, client.InNamespace(f.namespace)),
		f.env.Client.List(context.Background(), proxies, client.InNamespace(f.namespace), client.MatchingLabels{groupLabel: groupBusy})); err != nil {
		return err.Error()
	}
	lines := map[string]string{}
	for i := range proxies.Items {
		px := &proxies.Items[i]
		lines[px.Name] = fmt.Sprintf("%s closed %q exclusive %+v:", px.Name, ledger.Closed(px), px.Status.Exclusive)
	}
	held := f.promises.all()
	for i := range leases.Items {
		lease := &leases.Items[i]
		if !strings.HasPrefix(lease.Spec.Holder, "crawler-") {
			continue
		}
		b, _ := record.BindingOf(lease)
		promised := slices.ContainsFunc(held, func(p promise) bool { return p.name == lease.Name })
		lines[b.ProxyName] += fmt.Sprintf(" [%s %s %s %s epoch %d uid %s promised %t age %s]", lease.Name, lease.Spec.Holder, lease.Spec.Mode,
			lease.Status.Phase, b.Epoch, lease.UID, promised, time.Since(lease.CreationTimestamp.Time).Round(time.Second))
	}
	return strings.Join(slices.Sorted(maps.Values(lines)), "\n")
}

// clashes are how the live leases do not fit together.
func (f *failover) clashes(leases []v1alpha1.ProxyLease) []string {
	var problems []string
	on := map[string][]string{}
	exclusive := map[string]bool{}
	for i := range leases {
		lease := &leases[i]
		b, ok := record.BindingOf(lease)
		if !ok || !record.Holds(lease) {
			continue
		}
		on[b.ProxyName] = append(on[b.ProxyName], fmt.Sprintf("%s (%s, epoch %d)", lease.Name, lease.Spec.Mode, b.Epoch))
		exclusive[b.ProxyName] = exclusive[b.ProxyName] || lease.Spec.Mode == v1alpha1.LeaseExclusive
	}
	for name, holders := range on {
		if exclusive[name] && len(holders) > 1 || len(holders) > f.promises.capacity[name] {
			problems = append(problems, fmt.Sprintf("proxy %s with room for %d carries %s", name, f.promises.capacity[name], strings.Join(holders, ", ")))
		}
	}
	return problems
}

func compareGrants(a, b *v1alpha1.ProxyLeaseStatus) int {
	return cmp.Or(cmp.Compare(a.GrantEpoch, b.GrantEpoch), cmp.Compare(a.GrantSeq, b.GrantSeq))
}

// checkOrder looks at the order in which the leases that waited were granted. What is stored of their age is seconds, so
// that is what a successor knows: it serves a holder's leases of one second in the order of their UIDs.
func (f *failover) checkOrder() {
	f.t.Helper()
	list := &v1alpha1.ProxyLeaseList{}
	if err := f.env.Client.List(f.t.Context(), list, client.InNamespace(f.namespace)); err != nil {
		f.t.Fatal(err)
	}
	waited := slices.DeleteFunc(list.Items, func(l v1alpha1.ProxyLease) bool { return !strings.HasPrefix(l.Name, "pending-") })
	slices.SortFunc(waited, func(a, b v1alpha1.ProxyLease) int {
		return compareGrants(&a.Status, &b.Status)
	})
	if len(waited) != servedBefore+pendingLeases {
		f.t.Fatalf("%d leases have waited, want %d", len(waited), servedBefore+pendingLeases)
	}
	last := map[string]*v1alpha1.ProxyLease{}
	served := map[string]int{}
	for i := range waited {
		lease := &waited[i]
		holder := lease.Spec.Holder
		if before := last[holder]; before != nil {
			if before.CreationTimestamp.After(lease.CreationTimestamp.Time) {
				f.t.Errorf("%s of %s was served before %s of %s", before.Name, before.CreationTimestamp, lease.Name, lease.CreationTimestamp)
			}
			if before.CreationTimestamp.Equal(&lease.CreationTimestamp) && before.Status.GrantEpoch == lease.Status.GrantEpoch &&
				i > servedBefore && before.UID > lease.UID {
				f.t.Errorf("%s (%s) was served before %s (%s) of the same second", before.Name, before.UID, lease.Name, lease.UID)
			}
		}
		last[holder] = lease
		served[holder]++
		for other := range pendingHolders {
			if n := served[fmt.Sprint("waiter-", other)]; n < served[holder]-2 {
				f.t.Errorf("%s was served %d times when waiter-%d was served %d times", holder, served[holder], other, n)
			}
		}
	}
	f.t.Logf("%d leases that waited, created within %s, were served in their order", len(waited),
		waited[len(waited)-1].CreationTimestamp.Sub(waited[0].CreationTimestamp.Time))
}
