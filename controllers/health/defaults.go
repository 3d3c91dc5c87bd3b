package health

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Defaults of the health check, used where neither the proxy, nor its class, nor a flag says otherwise.
const (
	// DefaultPeriod is the time between two probes of a proxy whose verdict stands.
	DefaultPeriod = 60 * time.Second
	// DefaultTimeout bounds one whole probe.
	DefaultTimeout = 10 * time.Second
	// DefaultFastPeriod is the time between two probes while the verdict is unknown or challenged.
	DefaultFastPeriod = 5 * time.Second
	// DefaultUnhealthyPeriodMax bounds the back-off of proxies that stay unhealthy.
	DefaultUnhealthyPeriodMax = 300 * time.Second
	// DefaultFailureThreshold and DefaultSuccessThreshold: with 3 and 2 a fleet that loses 2 % of its probes at random
	// flips 265 times per day and 10 000 proxies; with 1 and 1 it flips 570 000 times.
	DefaultFailureThreshold = 3
	DefaultSuccessThreshold = 2
	// DefaultMaxBodyBytes is how much of an answer's body is read.
	DefaultMaxBodyBytes = 64 << 10
)

// Other numbers of the engine.
const (
	// MaxTargets is how many probe targets a proxy may have.
	MaxTargets = 4
	// AccessPeriods is how many periods lie between two negative probes of a proxy that refuses what it should refuse.
	AccessPeriods = 10
	// EgressIPInterval is how rarely a changed exit address is reported; a gateway that rotates its exits would
	// otherwise cause a status write per probe.
	EgressIPInterval = 10 * time.Minute
	// WakesPerSecond and WakeBurst bound how fast transitions are handed to the Proxy controller, and with it the
	// status writes of a mass failure: the Kubernetes client has no limit of its own.
	WakesPerSecond = 50
	WakeBurst      = 100
)

// DefaultTargetURLs are two well-known endpoints of different operators that answer 204 without a body and are meant
// for this purpose. Services that count requests or limit rates are no targets for a fleet.
var DefaultTargetURLs = []string{"https://www.gstatic.com/generate_204", "https://cp.cloudflare.com/generate_204"}

// Names of the flags that errors refer to.
const (
	FlagTargetURLs     = "--health-check-urls"
	FlagCAFile         = "--health-check-ca-file"
	FlagAllowedTargets = "--allow-probe-target-cidrs"
	FlagAllowedProxies = "--allow-proxy-cidrs"
)

// Defaults are the operator's flags: the last place a setting is taken from.
type Defaults struct {
	// Check holds the settings given by flags; Check.Targets must not be empty.
	Check v1alpha1.HealthCheck
	// CABundle is the PEM content of --health-check-ca-file. It is trusted in addition to the system's roots for all
	// targets without a caBundle of their own.
	CABundle string
	// AllowedTargets are the ranges of --allow-probe-target-cidrs.
	AllowedTargets []netip.Prefix
}

// NewDefaults makes Defaults of flag values and checks them, so that a wrong flag is one clear error at start. No urls
// means DefaultTargetURLs.
func NewDefaults(urls []string, caBundle string, allowedTargets []netip.Prefix) (Defaults, error) {
	d := Defaults{CABundle: caBundle, AllowedTargets: allowedTargets}
	if len(urls) == 0 {
		urls = DefaultTargetURLs
	}
	for _, u := range urls {
		d.Check.Targets = append(d.Check.Targets, v1alpha1.ProbeTarget{URL: strings.TrimSpace(u)})
	}
	if caBundle != "" {
		if err := checkBundle(caBundle); err != nil {
			return Defaults{}, fmt.Errorf("%s: %w", FlagCAFile, err)
		}
	}
	if _, err := ResolveSettings(nil, nil, d); err != nil {
		return Defaults{}, err
	}
	return d, nil
}

var errNoTargets = errors.New(FlagTargetURLs + ": no probe target is configured")
