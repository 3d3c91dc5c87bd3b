package proxy

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

const (
	// StartingPatience is how long an instance may be starting before Ready says what it waits for. Most run by then, and of
	// those each word would be a write.
	StartingPatience = 30 * time.Second
	// DrainRefresh is how often the number of leases of a proxy that is asked to drain is looked at, besides when there are
	// none any more.
	DrainRefresh = 10 * time.Second
	// leasesShown is up to what number of leases a draining proxy says it exactly: each other number is a write.
	leasesShown = 10
)

// drainingMessage says how many leases hold a draining proxy, and until when. While that is not known, what was said stands.
func (c *composer) drainingMessage() string {
	if !c.in.LeasesKnown {
		if said := c.get(v1alpha1.ConditionDrained); said.Reason == v1alpha1.ReasonDraining {
			return said.Message
		}
		return "Leases may still hold the proxy; no new ones are granted."
	}
	until := ""
	if end := record.EmptyBy(c.px); !end.IsZero() {
		until = fmt.Sprintf(" until %s at the latest", end.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("%s the proxy%s; no new ones are granted.", leasesHold(c.in.Leases), until)
}

func leasesHold(leases int) string {
	switch {
	case leases == 1:
		return "1 lease holds"
	case leases <= leasesShown:
		return fmt.Sprintf("%d leases hold", leases)
	}
	return fmt.Sprintf("More than %d leases hold", leasesShown)
}

// untilStalled is when an instance will have been starting for so long that Ready says what it waits for: 0 when it has, and
// negative when it is not starting or nothing is known of it.
func untilStalled(status *v1alpha1.ProxyStatus, now time.Time) time.Duration {
	provisioned, instance := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProvisioned), status.Instance
	if provisioned == nil || provisioned.Status == metav1.ConditionTrue || provisioned.Reason != v1alpha1.ReasonStarting ||
		instance == nil || instance.StartedTime == nil || instance.Message == "" {
		return -1
	}
	return max(0, StartingPatience-now.Sub(instance.StartedTime.Time))
}

// again is when a proxy has to be looked at although nothing happens; 0: never.
func again(px *v1alpha1.Proxy, status *v1alpha1.ProxyStatus, in Input) time.Duration {
	if px.DeletionTimestamp.IsZero() {
		if wait := untilStalled(status, in.Now); wait > 0 {
			return wait
		}
	}
	if record.Draining(px) && in.LeasesKnown && in.Leases > 0 {
		return DrainRefresh
	}
	return 0
}
