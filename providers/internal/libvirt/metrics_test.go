package libvirt_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
)

// TestFreeSpaceStaysThroughAChangeOfTheClass: the changed class is opened before the old one is closed; a host that it does not
// name any more goes, and with the class all of them.
func TestFreeSpaceStaysThroughAChangeOfTheClass(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 2)
		registry := prometheus.NewRegistry()
		open := func(name string, hosts int) providers.Provider {
			p, err := b.Factory.Open(t.Context(), b.Class(name, hosts), providers.Runtime{ClusterID: cluster, Clock: b.clock, Registerer: registry})
			b.must(err)
			return p
		}
		series := func(step string, want int) {
			t.Helper()
			got, err := testutil.GatherAndCount(registry, "proxy_operator_libvirt_pool_free_bytes")
			b.must(err)
			if got != want {
				t.Errorf("%s: %d series, want %d", step, got, want)
			}
		}
		first := open("a", 2)
		b.must(first.Check(t.Context()))
		series("open", 2)
		second := open("a", 1)
		b.must(first.Close())
		series("changed", 1)
		third := open("a", 1)
		b.must(second.Close())
		series("changed again", 1)
		other := open("b", 1)
		b.must(other.Check(t.Context()))
		series("another class", 2)
		b.must(third.Close())
		series("one class is gone", 1)
		b.must(other.Close())
		series("both are gone", 0)
		_ = other.Check(t.Context())
		series("a late look", 0)
	})
}
