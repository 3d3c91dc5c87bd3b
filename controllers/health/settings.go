package health

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/fsm"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// Settings is a health check with every field decided.
type Settings struct {
	// Disabled proxies are not probed and their health is unknown.
	Disabled                           bool
	Targets                            []TargetSettings
	Period, Timeout, FastPeriod        time.Duration
	UnhealthyPeriodMax                 time.Duration
	FailureThreshold, SuccessThreshold int
	MaxBodyBytes                       int
	// ReportExitIP takes the exit address from the answer's body, where it has one.
	ReportExitIP bool
}

// TargetSettings is one probe target.
type TargetSettings struct {
	TargetKey
	Expect classify.Expect
}

// TargetKey is what makes targets different: proxies whose targets have equal keys share TLS sessions and a breaker.
type TargetKey struct {
	URL string
	// CABundle is PEM; SystemRoots says whether the system's roots are trusted as well.
	CABundle     string
	SystemRoots  bool
	Owned, Nonce bool
}

// Hash tells one Settings from another.
func (s Settings) Hash() string {
	// Marshalling a struct of plain values cannot fail.
	raw, _ := json.Marshal(s)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

func (s Settings) timing() fsm.Timing {
	return fsm.Timing{Period: s.Period, Fast: s.FastPeriod, UnhealthyMax: s.UnhealthyPeriodMax}
}

// layer is one source of settings, first the proxy, then its class, then the flags.
type layer struct {
	check *v1alpha1.HealthCheck
	// path names a field of the layer in errors.
	path func(field string) string
	// flags marks the operator's own defaults, which give way to what a user sets.
	flags bool
}

func layers(proxy, class *v1alpha1.HealthCheck, flags Defaults) []layer {
	var out []layer
	if proxy != nil {
		out = append(out, layer{check: proxy, path: func(f string) string { return "Proxy spec.healthCheck." + f }})
	}
	if class != nil {
		out = append(out, layer{check: class, path: func(f string) string { return "ProviderClass spec.healthCheck." + f }})
	}
	return append(out, layer{check: &flags.Check, path: func(string) string { return FlagTargetURLs }, flags: true})
}

// ResolveSettings decides every field: the proxy's value, else its class's, else the flags', else the default. Lists
// are taken whole. The error names the field that is wrong and where it stands. A default gives way where a set field
// leaves it no room (a timeout must be shorter than the period); two set fields that contradict each other are an
// error.
func ResolveSettings(proxy, class *v1alpha1.HealthCheck, flags Defaults) (Settings, error) {
	ls := layers(proxy, class, flags)
	var s Settings
	var err error
	if s.Disabled, err = disabled(ls); err != nil || s.Disabled {
		return s, err
	}
	for _, step := range []func([]layer, Defaults) error{s.setNumbers, s.setTargets, s.setExitIP} {
		if err := step(ls, flags); err != nil {
			return Settings{}, err
		}
	}
	return s, nil
}

func disabled(ls []layer) (bool, error) {
	for _, l := range ls {
		switch l.check.Mode {
		case "":
		case v1alpha1.HealthCheckEnabled:
			return false, nil
		case v1alpha1.HealthCheckDisabled:
			return true, nil
		default:
			return false, fmt.Errorf("%s: %q is neither Enabled nor Disabled", l.path("mode"), l.check.Mode)
		}
	}
	return false, nil
}

func (s *Settings) setTargets(ls []layer, flags Defaults) error {
	for _, l := range ls {
		if len(l.check.Targets) == 0 {
			continue
		}
		if n := len(l.check.Targets); n > MaxTargets {
			return fmt.Errorf("%s: %d targets, but at most %d are allowed", l.path("targets"), n, MaxTargets)
		}
		for i, t := range l.check.Targets {
			settings, field, err := resolveTarget(t, flags, s.MaxBodyBytes)
			if err != nil {
				path := l.path(fmt.Sprintf("targets[%d].%s", i, field))
				if l.flags {
					path = fmt.Sprintf("%s: URL %d", path, i+1)
				}
				return fmt.Errorf("%s: %w", path, err)
			}
			s.Targets = append(s.Targets, settings)
		}
		return nil
	}
	return errNoTargets
}

func resolveTarget(t v1alpha1.ProbeTarget, flags Defaults, maxBody int) (TargetSettings, string, error) {
	u, err := probe.ParseTargetURL(t.URL)
	if err != nil {
		return TargetSettings{}, "url", err
	}
	policy := probe.AddressPolicy{Allow: flags.AllowedTargets, DenyPrivate: true}
	if err := policy.CheckTargetHost(u.Hostname()); err != nil {
		return TargetSettings{}, "url", fmt.Errorf("%w (%s opens ranges)", err, FlagAllowedTargets)
	}
	out := TargetSettings{TargetKey: TargetKey{
		URL: t.URL, CABundle: flags.CABundle, SystemRoots: true, Owned: t.Owned != nil && *t.Owned,
	}}
	if t.CABundle != "" {
		if err := checkBundle(t.CABundle); err != nil {
			return TargetSettings{}, "caBundle", err
		}
		out.CABundle, out.SystemRoots = t.CABundle, false
	}
	if e := t.Expect; e != nil {
		if len(e.BodyContains) > maxBody {
			return TargetSettings{}, "expect.bodyContains", fmt.Errorf("is longer than maxBodyBytes (%d)", maxBody)
		}
		out.Nonce = e.Nonce != nil && *e.Nonce
		out.Expect = classify.Expect{Strict: e.Strict != nil && *e.Strict, Statuses: e.Statuses, BodyContains: e.BodyContains}
	}
	return out, "", nil
}

func (s *Settings) setExitIP(ls []layer, _ Defaults) error {
	s.ReportExitIP = true
	for _, l := range ls {
		if l.check.ExitIP == nil {
			continue
		}
		switch l.check.ExitIP.Mode {
		case "", "Report":
		case "Ignore":
			s.ReportExitIP = false
		default:
			return fmt.Errorf("%s: %q is not supported by this version; use Report or Ignore", l.path("exitIP.mode"), l.check.ExitIP.Mode)
		}
		return nil
	}
	return nil
}

// checkBundle wants at least one certificate and no broken one: a bundle that silently lost its only useful
// certificate would show up as a fleet of intercepted proxies.
func checkBundle(bundle string) error {
	_, err := parseBundle(bundle)
	return err
}

func parseBundle(bundle string) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for rest := []byte(bundle); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("contains a PEM block of type %q; only CERTIFICATE is allowed", block.Type)
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d cannot be parsed: %w", len(out)+1, err)
		}
		out = append(out, certificate)
	}
	if len(out) == 0 {
		return nil, errors.New("contains no PEM certificate")
	}
	return out, nil
}
