package instance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// spreading places as a provider with three zones does, whatever the specification says.
type spreading struct{}

func (spreading) Place(_ *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
	return providers.Spread(owner, []string{"a", "b", "c"}, tried), nil
}

// TestChooseZone_PoolSpreads: members of a pool differ in nothing but their UID.
func TestChooseZone_PoolSpreads(t *testing.T) {
	count := map[string]int{}
	for n := range 300 {
		zone, err := chooseZone(spreading{}, &v1alpha1.ProxySpec{}, types.UID(fmt.Sprint("uid-", n)), 1, v1alpha1.Instance{}, time.Now(), tableTiming)
		if err != nil {
			t.Fatal(err)
		}
		count[zone]++
	}
	for _, zone := range []string{"a", "b", "c"} {
		if count[zone] < 60 {
			t.Errorf("%d of 300 in %s: %v", count[zone], zone, count)
		}
	}
}

// TestChooseZone_FullPlacesHideNone: with two places that are full, the third is tried at the third attempt.
func TestChooseZone_FullPlacesHideNone(t *testing.T) {
	var zones []string
	record := v1alpha1.Instance{}
	for range 3 {
		zone, err := chooseZone(spreading{}, &v1alpha1.ProxySpec{}, "uid", 1, record, time.Now(), tableTiming)
		if err != nil {
			t.Fatal(err)
		}
		zones = append(zones, zone)
		record = v1alpha1.Instance{Zone: zone, State: v1alpha1.ReasonWaitingForCapacity}
	}
	slices.Sort(zones)
	if !slices.Equal(zones, []string{"a", "b", "c"}) {
		t.Errorf("tried %q, want each place once", zones)
	}
}
