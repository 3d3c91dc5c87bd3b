package proxypool

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"strconv"
	"strings"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

const (
	// revisionLength is how many base32 characters of the digest make a revision: 40 bits.
	revisionLength = 8
	// defaultPort and defaultProtocol are those of the API; they are left out of a revision, so that spelling them out
	// replaces nothing.
	defaultPort     = 3128
	defaultProtocol = "HTTP"
)

// replaced are the parts of a template whose change needs a new proxy. The JSON of this struct is what a revision is made
// from, for every version of the operator: a new field must be left out while it has its default, or an upgrade would
// replace every fleet.
type replaced struct {
	Provider    string           `json:"provider,omitempty"`
	Zone        string           `json:"zone,omitempty"`
	MachineType string           `json:"machineType,omitempty"`
	Image       string           `json:"image,omitempty"`
	Inline      string           `json:"inline,omitempty"`
	Secret      *revisedKeyOfRef `json:"secret,omitempty"`
	Protocol    string           `json:"protocol,omitempty"`
	Port        int32            `json:"port,omitempty"`
	Credentials string           `json:"credentials,omitempty"`
}

type revisedKeyOfRef struct {
	Name string `json:"name"`
	Key  string `json:"key"`
}

// RevisionOf is a short name of what a proxy is made from: equal for templates that make equal proxies. Labels, capacity
// and the like are not in it, since they reach proxies in place.
func RevisionOf(spec *v1alpha1.ProxyTemplateSpec) string {
	parts := replaced{Provider: spec.Provider}
	if p := spec.Placement; p != nil {
		parts.Zone, parts.MachineType, parts.Image = p.Zone, p.MachineType, p.Image
	}
	if c := spec.CloudInit; c != nil {
		parts.Inline = c.Inline
		if c.SecretKeyRef != nil {
			parts.Secret = &revisedKeyOfRef{Name: c.SecretKeyRef.Name, Key: c.SecretKeyRef.Key}
		}
	}
	if spec.Protocol != defaultProtocol {
		parts.Protocol = spec.Protocol
	}
	if spec.Port != defaultPort {
		parts.Port = spec.Port
	}
	if spec.CredentialsSecretRef != nil {
		parts.Credentials = spec.CredentialsSecretRef.Name
	}
	data, err := json.Marshal(parts)
	if err != nil {
		// Strings and numbers always marshal.
		panic(err)
	}
	sum := sha256.Sum256(data)
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:revisionLength]
}

// memberName is the name of the member of a revision in a slot. That it is the same whenever it is computed is what keeps
// an outdated view from making a proxy twice.
func memberName(pool, revision string, ordinal int) string {
	return pool + "-" + revision + "-" + strconv.Itoa(ordinal)
}

// freeNames are the n names of the lowest slots that are not taken.
func freeNames(pool, revision string, n int, taken map[string]bool) []string {
	out := make([]string, 0, n)
	for ordinal := 0; len(out) < n; ordinal++ {
		if name := memberName(pool, revision, ordinal); !taken[name] {
			out = append(out, name)
		}
	}
	return out
}
