package providers

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Spread chooses a place for an owner, for Provider.Place: the same one for the same question, in every process and
// whatever the order of places is. Owners spread evenly over the places, and when a place is added only those owners move
// that go to it. tried are left out as long as another place is left; then it begins anew. The answer is the one that
// follows the last of tried in the owner's own order, so that a caller who remembers only one place still comes round to
// all. "" when there are no places.
func Spread(owner types.UID, places, tried []string) string {
	if len(places) == 0 {
		return ""
	}
	order := ranked(owner, places)
	next := 0
	if len(tried) > 0 {
		next = slices.Index(order, tried[len(tried)-1]) + 1
	}
	for step := range order {
		if place := order[(next+step)%len(order)]; !slices.Contains(tried, place) {
			return place
		}
	}
	return order[next%len(order)]
}

// ranked is the owner's order of the places, by rendezvous hashing: each place has a rank of its own for each owner, which
// depends on no other place.
func ranked(owner types.UID, places []string) []string {
	ranks := make(map[string]uint64, len(places))
	for _, place := range places {
		// The separator keeps pairs apart: no UID contains it.
		sum := sha256.Sum256([]byte(string(owner) + "\x00" + place))
		ranks[place] = binary.BigEndian.Uint64(sum[:])
	}
	order := slices.Clone(places)
	slices.SortFunc(order, func(a, b string) int {
		return cmp.Or(cmp.Compare(ranks[b], ranks[a]), cmp.Compare(a, b))
	})
	return slices.Compact(order)
}
