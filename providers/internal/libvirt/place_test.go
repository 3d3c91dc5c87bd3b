package libvirt

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestChoose: hosts with most free space, not those that are down, and in the end all of them.
func TestChoose(t *testing.T) {
	const gib = int64(1) << 30
	for name, c := range map[string]struct {
		rooms []room
		tried []string
		want  map[string]bool
	}{
		"one":                         {rooms: []room{{host: "a"}}, want: map[string]bool{"a": true}},
		"nothing is known":            {rooms: []room{{host: "a", free: -1}, {host: "b", free: -1}}, want: map[string]bool{"a": true, "b": true}},
		"the freest":                  {rooms: []room{{host: "a", free: 10 * gib}, {host: "b", free: 100 * gib}}, want: map[string]bool{"b": true}},
		"those that are as free":      {rooms: []room{{host: "a", free: 60 * gib}, {host: "b", free: 100 * gib}, {host: "c", free: gib}}, want: map[string]bool{"a": true, "b": true}},
		"not one that is down":        {rooms: []room{{host: "a", free: 10 * gib}, {host: "b", free: 100 * gib, down: true}}, want: map[string]bool{"a": true}},
		"all are down":                {rooms: []room{{host: "a", down: true}, {host: "b", down: true}}, want: map[string]bool{"a": true, "b": true}},
		"the freest was tried":        {rooms: []room{{host: "a", free: 10 * gib}, {host: "b", free: 100 * gib}}, tried: []string{"b"}, want: map[string]bool{"a": true}},
		"all were tried":              {rooms: []room{{host: "a", free: gib}, {host: "b", free: gib}}, tried: []string{"a", "b"}, want: map[string]bool{"a": true, "b": true}},
		"tried, and the other down":   {rooms: []room{{host: "a", free: gib}, {host: "b", down: true}}, tried: []string{"a"}, want: map[string]bool{"b": true}},
		"a host that is overpromised": {rooms: []room{{host: "a", free: 0}, {host: "b", free: gib}}, want: map[string]bool{"b": true}},
	} {
		got := map[string]bool{}
		for n := range 64 {
			got[choose(types.UID(fmt.Sprint("owner-", n)), c.rooms, c.tried)] = true
		}
		for host := range c.want {
			if name != "all were tried" && !got[host] {
				t.Errorf("%s: never %s, but %v", name, host, got)
			}
		}
		for host := range got {
			if !c.want[host] {
				t.Errorf("%s: got %s", name, host)
			}
		}
	}
}
