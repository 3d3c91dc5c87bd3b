package leasing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/cooldown"
	"crawl.example.com/egress-proxies-operator/leasing/grant"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const (
	// choreTimeout bounds one chore.
	choreTimeout = 30 * time.Second
	// choreWorkers do chores at the same time: a proxy whose exclusive lease has ended takes none until its chore is done, so
	// one slow write must not hold up the other proxies.
	choreWorkers = 8
)

// kind is what a chore does.
type kind int

const (
	// requeue: a lease whose grant or end could not be written is looked at again.
	requeue kind = iota
	// unclaim: a proxy names an exclusive lease that does not hold it, as far as the ledger knows.
	unclaim
	// clearCooldowns: a proxy's exit is another one now, so its cooldowns are void.
	clearCooldowns
	// carry: the cooldowns of a proxy that goes away are carried to another one of its exit.
	carry
	// revokeClash: a lease may not be on its proxy, because of another one.
	revokeClash
	// confirmLease: another replica wants to know whether a lease counts that was granted by its creation.
	confirmLease
)

// chore is something to do that nobody waits for. Equal chores that wait are done once.
type chore struct {
	what kind
	key  types.NamespacedName
	// uid of the proxy or the lease that key names.
	uid types.UID
	// lease that is named, for unclaim. over: it has certainly ended, so nothing has to be read to find that out.
	lease types.UID
	over  bool
	// void is what clearCooldowns drops, as stamps has it.
	void string
}

// doChores works until the queue is shut down.
func (a *Allocator) doChores() {
	for {
		c, shutdown := a.chores.Get()
		if shutdown {
			return
		}
		ctx, cancel := context.WithTimeout(a.pipeline.Base, choreTimeout)
		err := a.do(ctx, c)
		cancel()
		a.chores.Done(c)
		if err != nil && !errors.Is(err, grant.ErrGone) {
			a.Log.Error(err, "A chore of leasing failed and is repeated", "object", c.key)
			a.chores.AddRateLimited(c)
			continue
		}
		a.chores.Forget(c)
	}
}

func (a *Allocator) do(ctx context.Context, c chore) error {
	switch c.what {
	case requeue:
		lease := &v1alpha1.ProxyLease{}
		if err := a.Live.Get(ctx, c.key, lease); err != nil {
			return client.IgnoreNotFound(err)
		}
		if lease.UID == c.uid {
			a.onLease(lease)
		}
		return nil
	case unclaim:
		return a.unclaim(ctx, c)
	case clearCooldowns:
		_, err := a.pipeline.UpdateProxy(ctx, c.key, c.uid, func(px *v1alpha1.Proxy) (*v1alpha1.ProxyStatus, error) {
			list := withoutVoid(px.Status.Cooldowns, c.void)
			if len(list) == len(px.Status.Cooldowns) {
				return nil, nil
			}
			status := px.Status.DeepCopy()
			status.Cooldowns = list
			return status, nil
		})
		return err
	case carry:
		return a.carry(ctx, c)
	case revokeClash:
		return a.revokeOutcast(ctx, c.key, c.uid)
	case confirmLease:
		return a.confirm(ctx, c.key, c.uid)
	}
	return nil
}

// checkProxy looks for what has to be done about a proxy besides granting it. old is what was known of it; may be nil.
func (a *Allocator) checkProxy(old, px *v1alpha1.Proxy) {
	a.checkExclusive(px, "")
	a.checkExit(old, px)
	if old == nil || !record.Draining(old) {
		a.checkEmpty(px)
	}
}

// checkExit looks for what has to be done about the cooldowns of a proxy. old is what was known of it; may be nil.
func (a *Allocator) checkExit(old, px *v1alpha1.Proxy) {
	if !px.DeletionTimestamp.IsZero() && (old == nil || old.DeletionTimestamp.IsZero()) {
		a.carryCooldowns(px)
	}
	if old == nil || len(old.Status.Cooldowns) == 0 {
		return
	}
	// Another measured address of the same instance: the targets have not seen it yet.
	before, after := record.EgressIP(old), record.EgressIP(px)
	if before != "" && after != "" && before != after && old.Status.EgressIdentity != px.Status.EgressIdentity {
		// Only what was known by then: a cooldown that is stored before the chore is done is about the new exit.
		a.chores.Add(chore{what: clearCooldowns, key: client.ObjectKeyFromObject(px), uid: px.UID, void: stamps(old.Status.Cooldowns)})
	}
}

// stamp tells a cooldown from another one, and from itself after another report.
func stamp(c v1alpha1.Cooldown) string {
	until := int64(0)
	if c.UntilTime != nil {
		until = c.UntilTime.Unix()
	}
	return fmt.Sprintf("%s %s %d %d\n", c.Target, c.InstanceID, until, c.Hits)
}

// stamps are the stamps of a list as one comparable value.
func stamps(list []v1alpha1.Cooldown) string {
	var b strings.Builder
	for _, c := range list {
		b.WriteString(stamp(c))
	}
	return b.String()
}

// withoutVoid is the list without the cooldowns whose stamps are among the given ones.
func withoutVoid(list []v1alpha1.Cooldown, void string) []v1alpha1.Cooldown {
	dropped := map[string]bool{}
	for line := range strings.Lines(void) {
		dropped[line] = true
	}
	return slices.DeleteFunc(slices.Clone(list), func(c v1alpha1.Cooldown) bool { return dropped[stamp(c)] })
}

// checkExclusive makes a proxy free whose exclusive lease has ended. ended is a lease of which that is certain, because it
// does not exist any more or is finished, and neither can be undone; may be empty.
func (a *Allocator) checkExclusive(px *v1alpha1.Proxy, ended types.UID) {
	if lease := a.ledger.StaleExclusive(px); lease != "" {
		a.chores.Add(chore{what: unclaim, key: client.ObjectKeyFromObject(px), uid: px.UID, lease: lease, over: lease == ended})
	}
}

// unclaim makes a proxy name no exclusive lease when the one it names holds it no more. A lease is named only after it was
// created, so one that a list does not have is gone. One that is still pending was named by a former leader whose write of
// the binding may be under way: the lease is written first, so that such a write meets a conflict.
func (a *Allocator) unclaim(ctx context.Context, c chore) error {
	stale := func() bool {
		px := a.ledger.Proxy(c.key, c.uid)
		return px != nil && a.ledger.StaleExclusive(px) == c.lease
	}
	if !stale() {
		return nil
	}
	// A list of all leases for every one that ends would make them wait for each other.
	leases := &v1alpha1.ProxyLeaseList{}
	for !c.over {
		if err := a.Live.List(ctx, leases, client.InNamespace(c.key.Namespace), client.Limit(500), client.Continue(leases.Continue)); err != nil {
			return fmt.Errorf("list leases: %w", err)
		}
		for i := range leases.Items {
			lease := &leases.Items[i]
			if b, _ := record.BindingOf(lease); lease.UID == c.lease && b.ProxyUID == c.uid && record.Holds(lease) {
				// It lives; its event is only late.
				a.onLease(lease)
				return nil
			}
			if lease.UID == c.lease && record.Pending(lease) {
				if holds, err := a.fence(ctx, lease); holds || err != nil {
					return err
				}
			}
		}
		if leases.Continue == "" {
			break
		}
	}
	if !stale() {
		return nil
	}
	if err := a.pipeline.Disown(ctx, c.key, c.lease); err != nil {
		return fmt.Errorf("free the proxy of an exclusive lease: %w", err)
	}
	return nil
}

// carryCooldowns hands what a target must not see yet on, when the proxy that keeps it goes away.
func (a *Allocator) carryCooldowns(px *v1alpha1.Proxy) {
	if len(cooldown.Live(px.Status.Cooldowns, record.InstanceID(px), a.Clock.Now())) > 0 {
		// Done here and not as a chore when the object is gone: nothing else remembers it then.
		go func() {
			ctx, cancel := context.WithTimeout(a.pipeline.Base, choreTimeout)
			defer cancel()
			if err := a.carryTo(ctx, px); err != nil && !errors.Is(err, grant.ErrGone) {
				a.Log.Error(err, "Carry cooldowns to another proxy of the same exit", "proxy", client.ObjectKeyFromObject(px))
				a.chores.AddRateLimited(chore{what: carry, key: client.ObjectKeyFromObject(px), uid: px.UID})
			}
		}()
	}
}

// carry repeats a hand-over that failed, as long as the proxy is still there.
func (a *Allocator) carry(ctx context.Context, c chore) error {
	px := &v1alpha1.Proxy{}
	if err := a.Live.Get(ctx, c.key, px); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("read proxy: %w", err)
	}
	if px.UID != c.uid {
		return nil
	}
	return a.carryTo(ctx, px)
}

func (a *Allocator) carryTo(ctx context.Context, px *v1alpha1.Proxy) error {
	sibling := a.ledger.Sibling(px)
	if sibling == nil {
		return nil
	}
	now := a.Clock.Now()
	live := cooldown.Live(px.Status.Cooldowns, record.InstanceID(px), now)
	_, err := a.pipeline.UpdateProxy(ctx, client.ObjectKeyFromObject(sibling), sibling.UID, func(other *v1alpha1.Proxy) (*v1alpha1.ProxyStatus, error) {
		if record.InstanceID(other) == "" {
			return nil, nil // a cooldown belongs to an instance
		}
		list, changed := cooldown.Carry(other.Status.Cooldowns, record.InstanceID(other), live, now)
		if !changed {
			return nil, nil
		}
		status := other.Status.DeepCopy()
		status.Cooldowns = list
		return status, nil
	})
	return err
}
