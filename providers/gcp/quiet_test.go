package gcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// wayOut notes and refuses every connection beyond the loopback and every question for an address, for the rest of the test.
type wayOut struct {
	mu    sync.Mutex
	tried []string
}

func watchWayOut(t *testing.T) *wayOut {
	t.Helper()
	w := &wayOut{}
	transport, resolver := http.DefaultTransport, net.DefaultResolver
	t.Cleanup(func() { http.DefaultTransport, net.DefaultResolver = transport, resolver })
	guarded := transport.(*http.Transport).Clone()
	guarded.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return nil, w.refuse(address)
		}
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	http.DefaultTransport = guarded
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(_ context.Context, _, address string) (net.Conn, error) {
		return nil, w.refuse("the resolver " + address)
	}}
	return w
}

func (w *wayOut) refuse(what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tried = append(w.tried, what)
	return fmt.Errorf("%s is beyond the loopback", what)
}

// TestGT13_NoRaceNoLeakNoWayOut: all methods at once, with every kind of credentials, with faults, with a Close among them.
// Afterwards no goroutine is left, and nobody tried to leave the machine. Races are found by running it with -race.
func TestGT13_NoRaceNoLeakNoWayOut(t *testing.T) {
	w := watchWayOut(t)
	before := goleak.IgnoreCurrent()
	for name, make := range sources {
		t.Run(name, func(t *testing.T) {
			computetest.Isolate(t)
			s := make(t)
			s.write()
			if host := os.Getenv("GCE_METADATA_HOST"); !strings.HasPrefix(host, "127.0.0.1:") {
				t.Fatalf("the metadata server is looked for at %q", host)
			}
			everythingAtOnce(t, s)
		})
	}
	goleak.VerifyNone(t, before)
	if len(w.tried) > 0 {
		t.Errorf("connections were tried to %q", w.tried)
	}
	// The guard itself: names and addresses beyond the loopback are noticed.
	for _, url := range []string{"http://192.0.2.1/", "http://compute.googleapis.com/"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, err := newTransport(pingAfter, pingTimeout).RoundTrip(request); err == nil {
			_ = response.Body.Close()
			t.Errorf("%s was reached", url)
		}
	}
	if _, err := net.DefaultResolver.LookupHost(t.Context(), "metadata.google.internal"); err == nil || len(w.tried) < 3 {
		t.Errorf("%v; of three ways out %q were noticed", err, w.tried)
	}
}

// everythingAtOnce calls everything from many goroutines, until the provider is closed and a little longer.
func everythingAtOnce(t *testing.T, s source) {
	t.Helper()
	server := computetest.New(t, computetest.Options{Token: testToken, Projects: []string{testProject}, Timing: &computetest.QuickTiming})
	p := openProvider(t, server.URL, clock.RealClock{}, newClass("a"))
	if s.lead != nil {
		s.lead(p)
	}
	for _, f := range []computetest.Fault{
		{Call: computetest.Insert, Skip: 2, Times: 2, Operation: computetest.Stockout(zoneA)},
		{Call: computetest.Insert, Skip: 4, Times: 1, Answer: computetest.QuotaExceeded("CPUS", "europe-west3")},
		{Call: computetest.Get, Skip: 5, Times: 2, Drop: true},
		{Call: computetest.AggregatedList, Skip: 2, Times: 1, Hang: true},
		{Skip: 20, Times: 2, Answer: computetest.Unauthenticated()},
		{Skip: 30, Times: 2, Answer: computetest.RateLimitExceeded()},
	} {
		server.Fail(f)
	}
	var group sync.WaitGroup
	closed := make(chan struct{})
	for n := range 8 {
		group.Go(func() {
			for round := 0; ; round++ {
				last := false
				select {
				case <-closed:
					last = true
				default:
				}
				if err := oneLife(t.Context(), p, fmt.Sprintf("px-%d", n%4), fmt.Sprint(round)); err != nil {
					t.Error(err)
				}
				if last {
					return
				}
			}
		})
	}
	group.Go(func() {
		for server.Count("") < 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if err := p.Check(ctx); providers.ReasonOf(err) == providers.NotFound {
				t.Error(err)
			}
			cancel()
		}
		s.SetToken("another") // tokens of before go on until they are refused
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		close(closed)
	})
	group.Wait()
}

// oneLife asks for a machine, looks at it and deletes it, in whatever order the others leave it. It gives an error that is not
// of the taxonomy.
func oneLife(ctx context.Context, p *Provider, name, attempt string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	spec := newSpec()
	req := newRequest(name, zoneA)
	req.Attempt = attempt
	zone, placeErr := p.Place(&spec, req.Owner.UID, nil)
	receipt, createErr := p.Create(ctx, req)
	ref := refOf(req)
	ref.Operation = receipt.Operation
	_, getErr := p.Get(ctx, ref)
	deleteErr := p.Delete(ctx, ref)
	_, searchErr := p.Get(ctx, providers.Ref{Name: req.Name})
	_, listErr := p.List(ctx)
	if placeErr != nil || !slices.Contains(p.zones, zone) {
		return fmt.Errorf("place: %q, %w", zone, placeErr)
	}
	for _, err := range []error{createErr, getErr, deleteErr, searchErr, listErr} {
		if _, ok := errors.AsType[*providers.Error](err); err != nil && !ok {
			return err
		}
	}
	return nil
}
