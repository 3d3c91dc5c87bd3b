package proxypool

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// What a pool says in its condition Ready besides numbers: sentences that begin with a space, or nothing.

// obstacle is why a pool does not have what it should have. What refuses members comes before what they wait for, and of the
// members the first by name speaks: the others most likely say the same.
func (p *planner) obstacle() string {
	refused := func(m *member) string { return refusal(m.Proxy) }
	unready := func(m *member) string { return unreadiness(m.Proxy) }
	var text string
	if text = p.firstToSay(refused); text == "" && p.in.Refused != "" {
		text = " " + p.in.Refused
	}
	if text == "" {
		text = p.firstToSay(unready)
	}
	if p.held {
		text += fmt.Sprintf(" No more are made, since with those that are leaving (%d) the limit of %d proxies is reached.", len(p.all)-len(p.active), p.limit())
	}
	return text
}

func (p *planner) firstToSay(what func(*member) string) string {
	name, text := "", ""
	for i := range p.active {
		m := &p.active[i]
		if said := what(m); said != "" && (name == "" || m.Name < name) {
			name, text = m.Name, said
		}
	}
	if name == "" {
		return ""
	}
	return fmt.Sprintf(" Proxy %s: %s", name, text)
}

// refusal is why a proxy that has no instance is not given one; "" when nobody refuses.
func refusal(px *v1alpha1.Proxy) string {
	accepted := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionAccepted)
	if accepted != nil && accepted.Status == metav1.ConditionFalse {
		return accepted.Message
	}
	provisioned := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionProvisioned)
	if px.Status.Phase == v1alpha1.PhaseFailed && provisioned != nil && provisioned.Status == metav1.ConditionFalse {
		return provisioned.Message
	}
	return ""
}

// unreadiness is why a proxy is not ready; "" when it is, or nobody says.
func unreadiness(px *v1alpha1.Proxy) string {
	ready := meta.FindStatusCondition(px.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil || ready.Status == metav1.ConditionTrue {
		return ""
	}
	return ready.Message
}

// besides tells of proxies that are not replicas any more and are still there for somebody's sake. A pool whose replicas are
// as they should be is Ready all the same: leases may run for hours.
func (p *planner) besides() string {
	var drained, held int
	var until time.Time
	endless := false
	var requesters []string
	for i := range p.all {
		m := &p.all[i]
		switch {
		case !m.leaving || m.deleting && !slices.Contains(m.Finalizers, v1alpha1.FinalizerLeaseDrain):
		case m.foreign():
			held++
			for _, request := range m.Spec.DrainRequests {
				requesters = append(requesters, request.Requester)
			}
		default:
			drained++
			if end := record.EmptyBy(m.Proxy); end.IsZero() {
				endless = true
			} else if end.After(until) {
				until = end
			}
		}
	}
	text := ""
	switch {
	case drained > 0 && endless:
		text = fmt.Sprintf(" Draining besides: %d, until their leases end.", drained)
	case drained > 0:
		text = fmt.Sprintf(" Draining besides: %d, until their leases end or %s.", drained, until.UTC().Format(time.RFC3339))
	}
	if held > 0 {
		slices.Sort(requesters)
		text += fmt.Sprintf(" Kept from leases by drain requests of %s, which the pool does not lift: %d.", strings.Join(slices.Compact(requesters), ", "), held)
	}
	return text
}
