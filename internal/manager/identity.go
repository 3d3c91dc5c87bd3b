package manager

import (
	"regexp"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// identitySeparator is between the parts of a process's identity: the name of its host, a UUID that tells it from others there,
// and perhaps an address.
const identitySeparator = "_"

// identityOf names a process for the election; address is what it advertises, empty for nothing. The host's name alone would let
// a restarted container take its predecessor's lease for its own.
func identityOf(host, address string) string {
	identity := host + identitySeparator + string(uuid.NewUUID())
	if address != "" {
		identity += identitySeparator + address
	}
	return identity
}

// AddressOf is the address that a process advertises by its identity in the election; empty when it does not.
func AddressOf(identity string) string {
	if parts := advertising.FindStringSubmatch(identity); parts != nil {
		return parts[1]
	}
	return ""
}

// advertising matches an identity with an address. Hosts have been seen with the separator in their names, so it goes by the UUID.
var advertising = regexp.MustCompile(`^.*_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}_(.+)$`)
