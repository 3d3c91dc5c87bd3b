package instance

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// placer is the part of a provider that chooses places.
type placer interface {
	Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error)
}

// chooseZone is where the next attempt goes: where the last one was, unless it came to nothing there, the class was
// changed or the specification names a place.
func chooseZone(
	p placer, spec *v1alpha1.ProxySpec, owner types.UID, classGeneration int64, r v1alpha1.Instance, now time.Time, t providers.Timing,
) (string, error) {
	if r.Zone == "" || (spec.Placement != nil && spec.Placement.Zone != "") {
		return p.Place(spec, owner, nil)
	}
	vanished := r.ID == "" && r.IntentTime != nil && !unsettled(r, now, t)
	if vanished || r.State == v1alpha1.ReasonWaitingForCapacity {
		return p.Place(spec, owner, []string{r.Zone})
	}
	if r.ClassGeneration != 0 && r.ClassGeneration != classGeneration {
		return p.Place(spec, owner, nil)
	}
	return r.Zone, nil
}
