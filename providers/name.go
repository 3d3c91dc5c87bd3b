package providers

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// namePrefix starts every instance name; RFC 1035 wants a letter first.
	namePrefix = "px-"
	// readableLength is how much of the Proxy's name is kept, in bytes. It is for people only.
	readableLength = 30
	// suffixLength is how much of the digest is kept: 16 base32 characters are 80 bits.
	suffixLength = 16
	// HashVersion starts every hash. Hashes of different versions are not compared, so that a new operator never rolls a
	// fleet because it computes them differently.
	HashVersion = "v1"
)

// InstanceName is the name of a Proxy's instance at its provider: a function of the cluster and the Proxy's UID, the same
// for every incarnation, so that the provider's own uniqueness of names forbids a second instance. It is an RFC 1035
// label of at most 63 characters; the readable part is cut from the Proxy's name.
func InstanceName(clusterID, proxyName string, uid types.UID) string {
	sum := sha256.Sum256([]byte(clusterID + "/" + string(uid)))
	suffix := strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:]))[:suffixLength]
	readable := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		default:
			return '-'
		}
	}, strings.ToLower(proxyName))
	if len(readable) > readableLength {
		readable = readable[:readableLength]
	}
	readable = strings.Trim(readable, "-")
	if readable == "" {
		return namePrefix + suffix
	}
	return namePrefix + readable + "-" + suffix
}

// InstanceHash is what an instance is made from: placement, port, the resolved user data and the version of the
// credentials, "" without any. The Proxy's UID salts it, so that equal secrets do not show. Class changes are left out on
// purpose: they apply to new instances only.
func InstanceHash(uid types.UID, spec *v1alpha1.ProxySpec, userData []byte, credentialsVersion string) string {
	placement := v1alpha1.Placement{}
	if spec.Placement != nil {
		placement = *spec.Placement
	}
	data, err := json.Marshal(struct {
		UID         types.UID
		Placement   v1alpha1.Placement
		Port        int32
		UserData    []byte
		Credentials string `json:",omitempty"`
	}{uid, placement, spec.Port, userData, credentialsVersion})
	if err != nil {
		// Strings, numbers and bytes always marshal.
		panic(err)
	}
	sum := sha256.Sum256(data)
	return HashVersion + "-" + hex.EncodeToString(sum[:8])
}

// HashDiffers tells whether an instance must be replaced. An unknown hash and a hash of another version never differ.
func HashDiffers(have, want string) bool {
	return have != "" && want != "" && have != want && hashVersion(have) == hashVersion(want)
}

func hashVersion(hash string) string {
	version, _, _ := strings.Cut(hash, "-")
	return version
}
