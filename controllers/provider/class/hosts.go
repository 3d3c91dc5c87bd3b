package class

import (
	"cmp"
	"slices"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// maxHosts and maxHostName are what the schema of status.hosts takes; more of it would cost the whole status.
	maxHosts    = 64
	maxHostName = 63
)

// doubts are what is not believed yet of one generation of a class.
type doubts struct {
	generation int64
	// failures is how many checks in a row failed, and unreachable how many looks in a row each host could not be used.
	failures    int
	unreachable map[string]int
}

// hosts are what is to be shown of the hosts of a class, and whether one of them is in doubt: like a class, a host that could
// be used is given up at the second failure in a row. shown is what is shown now.
func (d *doubts) hosts(states []providers.HostState, shown []v1alpha1.ClassHostStatus) (out []v1alpha1.ClassHostStatus, unsure bool) {
	present := map[string]bool{}
	for _, state := range states {
		if state.Name == "" || len(state.Name) > maxHostName || present[state.Name] {
			continue
		}
		present[state.Name] = true
		host, doubted := d.host(state, shown)
		unsure = unsure || doubted
		out = append(out, host)
	}
	for name := range d.unreachable {
		if !present[name] {
			delete(d.unreachable, name)
		}
	}
	slices.SortFunc(out, func(a, b v1alpha1.ClassHostStatus) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), maxHosts)], unsure
}

func (d *doubts) host(state providers.HostState, shown []v1alpha1.ClassHostStatus) (host v1alpha1.ClassHostStatus, doubted bool) {
	before := v1alpha1.ClassHostStatus{Name: state.Name, Reason: v1alpha1.ReasonNotChecked}
	if i := slices.IndexFunc(shown, func(h v1alpha1.ClassHostStatus) bool { return h.Name == state.Name }); i >= 0 {
		before = shown[i]
	}
	switch {
	case state.Err != nil && providers.ReasonOf(state.Err) == providers.RateLimited, state.Err == nil && !state.Checked:
		return before, false
	case state.Err == nil:
		delete(d.unreachable, state.Name)
		return v1alpha1.ClassHostStatus{Name: state.Name, Reachable: new(true)}, false
	}
	d.unreachable[state.Name]++
	if before.Reachable != nil && *before.Reachable && d.unreachable[state.Name] < doubt {
		return before, true
	}
	return v1alpha1.ClassHostStatus{Name: state.Name, Reachable: new(false), Reason: unusable(state.Err)}, false
}
