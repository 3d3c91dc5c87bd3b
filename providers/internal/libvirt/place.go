package libvirt

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// room is what is known of a host when a place is chosen.
type room struct {
	host string
	// free is the space of its pool, in bytes; negative when it is not known.
	free int64
	// down is set when it could not be used lately.
	down bool
}

// choose picks the hosts with most free space: of those that can be used, the ones with at least half as much as the
// freest, since the figures are a minute old and all members of a pool would go to the one. tried are left out as long as
// another host is left, however full.
func choose(owner types.UID, rooms []room, tried []string) string {
	left := func(r room) bool { return !r.down && !slices.Contains(tried, r.host) }
	most, some := int64(0), false
	for _, r := range rooms {
		if left(r) {
			most, some = max(most, r.free), true
		}
	}
	var places []string
	for _, r := range rooms {
		switch {
		case !some, left(r) && (r.free < 0 || r.free >= most/2), slices.Contains(tried, r.host):
			// Those that were tried keep their place in the round, and are left out by it.
			places = append(places, r.host)
		}
	}
	return providers.Spread(owner, places, tried)
}

// Place implements providers.Provider: the host that the Proxy names, else one of those with most free space.
func (p *Provider) Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
	if spec.Placement != nil && spec.Placement.Zone != "" {
		return spec.Placement.Zone, nil
	}
	rooms := make([]room, 0, len(p.hosts))
	for _, name := range p.names {
		rooms = append(rooms, p.hosts[name].room())
	}
	return choose(owner, rooms, tried), nil
}
