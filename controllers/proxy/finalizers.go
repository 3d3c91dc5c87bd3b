package proxy

import (
	"slices"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// DrainPollInterval is how often a deletion that waits for leases looks at their number, besides being woken.
const DrainPollInterval = 2 * time.Second

// finalizerPlan is what core wants to do about the finalizers of a Proxy.
type finalizerPlan struct {
	// want is the complete list.
	want []string
	// abandoned are finalizers of providers that are given up, because the user says that the instance may stay.
	abandoned []string
	// recheck is when to look again; 0 for not at all.
	recheck time.Duration
}

// planFinalizers decides about core's lease-drain finalizer and about the instance finalizer under skip-cleanup. It is
// pure.
//
// A Proxy with a drain timeout is held when it is deleted, on whatever path, until no lease is left or the timeout has
// passed, or a deadline that was set before; then the allocator revokes what is left, as it does for every deleted Proxy.
// While leasing still recovers after a restart, no number of leases is believed.
func planFinalizers(px *v1alpha1.Proxy, in Input) finalizerPlan {
	plan := finalizerPlan{want: slices.Clone(px.Finalizers)}
	timeout := record.DrainTimeout(px)
	held := drainHeld(px)
	drop := func(name string) {
		plan.want = slices.DeleteFunc(plan.want, func(have string) bool { return have == name })
	}
	if px.DeletionTimestamp.IsZero() {
		switch {
		case timeout > 0 && !held:
			plan.want = append(plan.want, v1alpha1.FinalizerLeaseDrain)
		case timeout == 0 && held:
			drop(v1alpha1.FinalizerLeaseDrain)
		}
		return plan
	}
	if held {
		left := record.EmptyBy(px).Sub(in.Now)
		if left <= 0 || in.LeasesKnown && in.Leases == 0 {
			drop(v1alpha1.FinalizerLeaseDrain)
		} else {
			plan.recheck = min(left, DrainPollInterval)
		}
	}
	if px.Annotations[v1alpha1.AnnotationSkipCleanup] == "true" {
		plan.abandoned = instanceFinalizers(px)
		for _, name := range plan.abandoned {
			drop(name)
		}
	}
	return plan
}
