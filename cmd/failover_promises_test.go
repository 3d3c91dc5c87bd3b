package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// promise is a lease that a client was told to have, until that client gives it back.
type promise struct {
	name, proxy string
	mode        v1alpha1.LeaseMode
	// id for the HTTP API; "" when the lease was asked for by an object.
	id string
}

// promises are kept by the clients' side alone: what they were told and have not given back, whatever is stored.
type promises struct {
	mu       sync.Mutex
	capacity map[string]int
	byName   map[string]promise
	byProxy  map[string]map[string]promise
	// times are when something was promised.
	times    []time.Time
	problems []string
}

func newPromises() *promises {
	return &promises{capacity: map[string]int{}, byName: map[string]promise{}, byProxy: map[string]map[string]promise{}}
}

// hold takes in a new promise and looks whether it can be kept beside the others.
func (p *promises) hold(one promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.times = append(p.times, time.Now())
	if before, ok := p.byName[one.name]; ok {
		p.problem("lease %s was promised on %s and on %s", one.name, before.proxy, one.proxy)
	}
	others := p.byProxy[one.proxy]
	if others == nil {
		others = map[string]promise{}
		p.byProxy[one.proxy] = others
	}
	if len(others) >= p.capacity[one.proxy] {
		p.problem("proxy %s with room for %d was promised to %s beside %d others", one.proxy, p.capacity[one.proxy], one.name, len(others))
	}
	for _, other := range others {
		if one.mode == v1alpha1.LeaseExclusive || other.mode == v1alpha1.LeaseExclusive {
			p.problem("proxy %s was promised to %s (%s) beside %s (%s)", one.proxy, one.name, one.mode, other.name, other.mode)
		}
	}
	p.byName[one.name], others[one.name] = one, one
}

// letGo is called before the client gives a lease back.
func (p *promises) letGo(one promise) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byName, one.name)
	delete(p.byProxy[one.proxy], one.name)
}

// all that are held now, by name.
func (p *promises) all() []promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.byName), func(a, b promise) int { return strings.Compare(a.name, b.name) })
}

// gap is the longest time without a new promise after a moment.
func (p *promises) gap(after time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	longest, last := time.Duration(0), after
	for _, at := range p.times {
		if at.After(after) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return longest
}

func (p *promises) fail(format string, arguments ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.problem(format, arguments...)
}

func (p *promises) problem(format string, arguments ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, arguments...))
}

func (p *promises) found() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.problems)
}

// stored is what a watch has shown of the namespace's leases.
type stored struct {
	mu      sync.Mutex
	leases  map[string]*v1alpha1.ProxyLease
	changed chan struct{}
	// bindings of all leases that ever had one: a lease never moves.
	bindings map[types.UID]record.Binding
	promises *promises
}

// watchLeases watches the leases of a namespace until the test ends.
func watchLeases(t *testing.T, env *testenv.Env, namespace string, p *promises) *stored {
	t.Helper()
	s := &stored{leases: map[string]*v1alpha1.ProxyLease{}, changed: make(chan struct{}), bindings: map[types.UID]record.Binding{}, promises: p}
	testenv.Watch(t, env.Config, &v1alpha1.ProxyLease{}, s.see, namespace)
	return s
}

func (s *stored) see(lease *v1alpha1.ProxyLease, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[lease.Name] = lease
	if gone {
		delete(s.leases, lease.Name)
	}
	if b, ok := record.BindingOf(lease); ok {
		if before, known := s.bindings[lease.UID]; known && before != b {
			s.promises.fail("lease %s moved from %+v to %+v", lease.Name, before, b)
		}
		s.bindings[lease.UID] = b
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// get is the newest state of a lease, nil when there is none, and what is closed when anything changes.
func (s *stored) get(name string) (*v1alpha1.ProxyLease, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[name], s.changed
}

// count is how many leases match.
func (s *stored) count(match func(*v1alpha1.ProxyLease) bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, lease := range s.leases {
		if match(lease) {
			n++
		}
	}
	return n
}
