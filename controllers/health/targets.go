package health

import (
	"crypto/x509"
	"hash/fnv"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/breaker"
	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// target is a probe target that is shared by all entries with an equal TargetKey.
type target struct {
	key     TargetKey
	name    string // host:port, for logs
	probe   *probe.Target
	breaker breaker.Breaker
	users   int
}

// assigned is a target as one entry uses it.
type assigned struct {
	*target
	expect classify.Expect
}

// targetSet interns targets: one TLS configuration, session cache and breaker per target, whatever the fleet's size.
type targetSet map[TargetKey]*target

// acquire returns the targets of a check. Those that cannot be prepared are left out; ResolveSettings refuses them
// earlier.
func (s targetSet) acquire(check Settings) []assigned {
	var out []assigned
	for _, spec := range check.Targets {
		t, ok := s[spec.TargetKey]
		if !ok {
			prepared, err := probe.NewTarget(probe.TargetSpec{
				URL: spec.URL, RootCAs: rootCAs(spec.TargetKey), Owned: spec.Owned, Nonce: spec.Nonce,
			})
			if err != nil {
				continue
			}
			t = &target{key: spec.TargetKey, name: prepared.Authority(), probe: prepared}
			s[spec.TargetKey] = t
		}
		t.users++
		out = append(out, assigned{target: t, expect: spec.Expect})
	}
	return out
}

func (s targetSet) release(targets []assigned) {
	for _, t := range targets {
		if t.users--; t.users == 0 {
			delete(s, t.key)
		}
	}
}

// rootCAs returns nil for the system's roots alone.
func rootCAs(key TargetKey) *x509.CertPool {
	if key.CABundle == "" {
		return nil
	}
	pool := x509.NewCertPool()
	if key.SystemRoots {
		if system, err := x509.SystemCertPool(); err == nil {
			pool = system
		}
	}
	pool.AppendCertsFromPEM([]byte(key.CABundle))
	return pool
}

// usable counts the targets that are not suspect.
func usable(targets []assigned) int {
	n := 0
	for _, t := range targets {
		if !t.breaker.Open() {
			n++
		}
	}
	return n
}

// pickTarget rotates through the targets, so that a failure is followed by a probe of another one. Suspect targets are
// left out while there are others, but for a trial now and then, which closes their breaker when they are back.
func (e *Engine) pickTarget(en *entry, now time.Time) int {
	n := len(en.targets)
	h := fnv.New32a()
	_, _ = h.Write([]byte(en.target.UID))
	first := (int(h.Sum32()%uint32(n)) + en.attempts) % n
	if usable(en.targets) == 0 {
		return first
	}
	for i := range n {
		index := (first + i) % n
		t := en.targets[index]
		if !t.breaker.Open() || t.breaker.TryTrial(now) {
			return index
		}
	}
	return first
}
