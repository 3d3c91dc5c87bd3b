package gcp

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
	"crawl.example.com/egress-proxies-operator/providers/providertest"
)

const (
	// conformancePage makes a few VMs several pages.
	conformancePage = 3
	// conformanceWait is what the server asks of those who call too often.
	conformanceWait = 7 * time.Second
)

// pagedFactory makes providers that list a few VMs at a time.
type pagedFactory struct{ *Factory }

func (f pagedFactory) Open(ctx context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	p, err := f.Factory.Open(ctx, class, rt)
	if err != nil {
		return nil, err
	}
	p.(*Provider).pageSize = conformancePage
	return p, nil
}

// TestConformance: the provider keeps the contract, against a server held against Google's discovery document, over HTTP.
func TestConformance(t *testing.T) {
	useAccount(t)
	zones := []string{zoneA, zoneB, zoneC}
	invalid := func(change func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec { return newSpec(change) }
	bad := func(change func(*v1alpha1.GCPClass)) *v1alpha1.ProviderClass {
		return newClass("a", func(s *v1alpha1.ProviderClassSpec) { change(s.GCP) })
	}
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
		server := computetest.New(t, computetest.Options{Clock: clock, Token: testToken, Projects: []string{testProject}, Timing: &computetest.Timing{
			Visible: 2 * time.Second, Staging: 3 * time.Second, Running: 5 * time.Second, Address: 7 * time.Second, Delete: 6 * time.Second,
		}})
		b := &behind{Server: server, zones: zones}
		return providertest.Harness{
			Factory: pagedFactory{&Factory{Endpoint: server.URL}},
			Runtime: providers.Runtime{ClusterID: "cluster", Clock: clock},
			Class: func(name string) *v1alpha1.ProviderClass {
				return newClass(name, func(s *v1alpha1.ProviderClassSpec) { s.GCP.Zones = b.named() })
			},
			Spec:     func() v1alpha1.ProxySpec { return newSpec() },
			Tick:     func() { clock.Step(time.Second) },
			Patience: 60,
			Invalid: map[string]v1alpha1.ProxySpec{
				fieldMachineType: invalid(func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "" }),
				fieldImage:       invalid(func(s *v1alpha1.ProxySpec) { s.Placement.Image = "../images/x" }),
				fieldZone:        invalid(func(s *v1alpha1.ProxySpec) { s.Placement.Zone = "somewhere" }),
				fieldCloudInit: invalid(func(s *v1alpha1.ProxySpec) {
					s.CloudInit = &v1alpha1.CloudInit{Inline: strings.Repeat("x", MaxUserData+1)}
				}),
			},
			InvalidClasses: map[string]*v1alpha1.ProviderClass{
				"spec.gcp.project":        bad(func(c *v1alpha1.GCPClass) { c.Project = "My Project" }),
				"spec.gcp.network":        bad(func(c *v1alpha1.GCPClass) { c.Network = "../x" }),
				"spec.gcp.zones[1]":       bad(func(c *v1alpha1.GCPClass) { c.Zones = []string{zoneA, "?"} }),
				"spec.gcp.diskSizeGb":     bad(func(c *v1alpha1.GCPClass) { c.DiskSizeGb = new(int32(9)) }),
				"spec.gcp.serviceAccount": bad(func(c *v1alpha1.GCPClass) { c.ServiceAccount = "me" }),
			},
			UserData:      []byte("#cloud-config\npackages: [squid]\n"),
			UserDataLimit: MaxUserData,
			Secrets:       []string{testToken},
			Zones:         zones,
			PageSize:      conformancePage,
			Calls:         func() int { return server.Count("") },
			Exists: func(ref providers.Ref) bool {
				_, ok := server.VM(testProject, ref.Zone, ref.Name)
				return ok
			},
			Missing: map[string]func(*providers.CreateRequest){
				"its image": func(req *providers.CreateRequest) {
					server.SetMissing(testImage, true)
					t.Cleanup(func() { server.SetMissing(testImage, false) })
				},
				"its zone": func(req *providers.CreateRequest) {
					req.Zone, req.Spec = "europe-west9-z", newSpec(inZone("europe-west9-z"))
				},
				"its network": func(req *providers.CreateRequest) { server.SetMissing("global/networks/default", true) },
			},
			Shrink: b.shrink,
			Foreign: func(t testing.TB, ref providers.Ref) {
				server.Seed(computetest.Seed{Project: testProject, Zone: ref.Zone, Name: ref.Name})
				t.Cleanup(func() { server.Remove(testProject, ref.Zone, ref.Name) })
			},
			Fail:       b.fail,
			RetryAfter: conformanceWait,
			Hang:       func() func() { return sync.OnceFunc(server.Fail(computetest.Fault{Hang: true})) },
			Partial: map[string]providertest.Partial{
				"a later page": {Shown: b.shown, Hide: func() func() {
					server.ForgetRequests()
					return server.Fail(computetest.Fault{Call: computetest.AggregatedList, Skip: 1, Answer: computetest.BackendError(http.StatusServiceUnavailable)})
				}},
				"a zone": {Shown: b.shown, Hide: func() func() {
					server.ForgetRequests()
					server.SetUnreachable(zoneC, true)
					return func() { server.SetUnreachable(zoneC, false) }
				}},
			},
		}
	})
}

// behind is the server as the harness needs it.
type behind struct {
	*computetest.Server
	zones  []string
	mu     sync.Mutex
	shrunk bool
}

func (b *behind) named() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shrunk {
		return slices.Clone(b.zones[:len(b.zones)-1])
	}
	return slices.Clone(b.zones)
}

func (b *behind) shrink() (restore func()) {
	set := func(shrunk bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.shrunk = shrunk
	}
	set(true)
	return func() { set(false) }
}

func (b *behind) fail(reason providers.Reason) (restore func()) {
	f := computetest.Fault{}
	switch reason {
	case providers.Unavailable:
		f.Drop = true
	case providers.Auth:
		f.Answer = computetest.Unauthenticated()
	case providers.RateLimited:
		f.Answer = computetest.RateQuotaExceeded().Retry(int(conformanceWait / time.Second))
	case providers.Capacity:
		f.Call, f.Answer = computetest.Insert, computetest.QuotaExceeded("IN_USE_ADDRESSES", "europe-west3")
	default:
		return nil
	}
	return sync.OnceFunc(b.Fail(f))
}

// shown is how many VMs were listed since the requests were forgotten.
func (b *behind) shown() int {
	n := 0
	for _, r := range b.Requests() {
		if r.Call == computetest.AggregatedList && r.Status == http.StatusOK {
			n += r.Listed
		}
	}
	return n
}
