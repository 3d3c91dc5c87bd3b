package instance

import (
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// TestOneLookWithoutAddressesDeletesNothing: a machine has served for hours, and one look does not show its address.
func TestOneLookWithoutAddressesDeletesNothing(t *testing.T) {
	now := time.Unix(1e9, 0)
	r := v1alpha1.Instance{Name: "px", ID: "1", Hash: "h", StartedTime: stamp(now.Add(-5 * time.Hour)), IntentTime: stamp(now.Add(-5 * time.Hour)),
		State: string(providers.StateRunning), Addresses: []string{"192.0.2.1"}}
	i := providers.Instance{Ref: providers.Ref{Name: "px", ID: "1"}, Owner: providers.Owner{UID: "u"}, Hash: "h", State: providers.StateRunning}
	a := decideFound(Desired{UID: "u", Hash: "h", ProvisionTimeout: 10 * time.Minute}, r, i, now, now, providers.Timing{})
	if a.Kind == Delete {
		t.Errorf("%+v", a)
	}
}
