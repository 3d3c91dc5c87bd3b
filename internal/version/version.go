// Package version says which build this is.
package version

import "runtime"

// Version and Commit are set by the linker: -X crawl.example.com/egress-proxies-operator/internal/version.Commit=...
var (
	Version = "v0.1.0-dev"
	Commit  = "unknown"
)

// BundleVersion is the version of the CRDs this build needs, as annotated on them. It grows when a schema changes.
const BundleVersion = 1

// String is what `version` prints and what user agents carry.
func String() string {
	return Version + " (" + Commit + ", " + runtime.Version() + ")"
}
