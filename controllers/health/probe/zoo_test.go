package probe_test

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
)

const (
	// patient is a timeout for probes that must not hit it, on a busy machine.
	patient = 30 * time.Second
	// hasty is a timeout for probes that only it ends. On a busy machine it can strike too early, in an earlier stage:
	// then it is made longer.
	hasty = 300 * time.Millisecond
	// slack is how long after its deadline a probe may return on a busy machine; the engine's goal is 100 ms.
	slack = 5 * time.Second
)

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func newProber() *probe.Prober {
	return &probe.Prober{Policy: probe.AddressPolicy{Allow: loopback}}
}

func newTarget(t *testing.T, ca *proxyzoo.CA, url string, change ...func(*probe.TargetSpec)) *probe.Target {
	t.Helper()
	spec := probe.TargetSpec{URL: url, RootCAs: ca.Pool()}
	for _, c := range change {
		c(&spec)
	}
	target, err := probe.NewTarget(spec)
	if err != nil {
		t.Fatalf("preparing the target: %v", err)
	}
	return target
}

// closedAddr returns an address nobody listens on.
func closedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	return addr
}

// Every beast gets the right verdict and the right reason, over exactly one connection, by its deadline.
func TestZoo(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	for _, b := range world.Beasts(t) {
		t.Run(b.Name, func(t *testing.T) {
			t.Parallel()
			addr, conns := closedAddr(t), func() int64 { return 0 }
			if b.Do != nil {
				p := proxyzoo.Start(t, b.Do)
				addr, conns = p.Addr, p.Conns.Load
			}
			timeout := patient
			if b.Hangs {
				timeout = hasty
			}
			target := newTarget(t, world.Good, b.URL)
			var r probe.Result
			var o classify.Outcome
			for {
				before, start := conns(), time.Now()
				r = newProber().Probe(context.Background(), probe.Request{Proxy: addr, Target: target, Timeout: timeout, MaxBody: 8 << 10})
				o = classify.Classify(r, classify.Expect{})
				if took := time.Since(start); took > timeout+slack || b.Hangs && took < timeout {
					t.Errorf("took %s with a timeout of %s", took, timeout)
				}
				if n := conns() - before; n > 1 || n < 1 && r.Stage > probe.StageConnect {
					t.Errorf("got %d connections, want 1", n)
				}
				if o.Reason == b.Reason || !b.Hangs || timeout >= patient {
					break
				}
				timeout *= 4
			}
			if o.Class != b.Class || o.Reason != b.Reason {
				t.Errorf("got %s %s, want %s %s (stage %s, code %d, error %v)", o.Class, o.Reason, b.Class, b.Reason, r.Stage, r.Code, r.Err)
			}
			if o.Message == "" && o.Class != classify.Local {
				t.Errorf("no message for %s", o.Reason)
			}
			if len(r.Body) > 8<<10 {
				t.Errorf("kept %d bytes of body", len(r.Body))
			}
		})
	}
}

// The strict rule turns what the target answers into the proxy's failure.
func TestE19_StrictExpectations(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	for _, tc := range []struct {
		name, path string
		expect     classify.Expect
		class      classify.Class
		reason     string
	}{
		{"E19 any status without strict", "/status/503", classify.Expect{Statuses: []int32{200}}, classify.Success, classify.ReasonProbeSucceeded},
		{"E19 strict with another status", "/status/503", classify.Expect{Strict: true, Statuses: []int32{200}}, classify.Failure, classify.ReasonUnexpectedStatus},
		{"E19 strict by default range", "/status/404", classify.Expect{Strict: true}, classify.Failure, classify.ReasonUnexpectedStatus},
		{"E19 strict satisfied", "/status/204", classify.Expect{Strict: true}, classify.Success, classify.ReasonProbeSucceeded},
		{"body as expected", "/ip", classify.Expect{BodyContains: "127.0.0.1"}, classify.Success, classify.ReasonProbeSucceeded},
		{"another body is neutral", "/ip", classify.Expect{BodyContains: "192.0.2.1"}, classify.Neutral, classify.ReasonUnexpectedBody},
		{"another body with strict", "/ip", classify.Expect{Strict: true, BodyContains: "192.0.2.1"}, classify.Failure, classify.ReasonUnexpectedBody},
		{"short body with strict", "/short", classify.Expect{Strict: true}, classify.Failure, classify.ReasonUnexpectedBody},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newProber().Probe(context.Background(), probe.Request{
				Proxy: p.Addr, Target: newTarget(t, world.Good, world.Origin.URL+tc.path), Timeout: patient, MaxBody: 1024,
			})
			if o := classify.Classify(r, tc.expect); o.Class != tc.class || o.Reason != tc.reason {
				t.Errorf("got %s %s, want %s %s (error %v)", o.Class, o.Reason, tc.class, tc.reason, r.Err)
			}
		})
	}
}

// A live tunnel says nothing: the next CONNECT decides.
func TestE15_NewConnectDecides(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	request := probe.Request{Proxy: p.Addr, Target: newTarget(t, world.Good, world.Origin.URL+"/ip"), Timeout: patient, MaxBody: 1024}
	if r := newProber().Probe(context.Background(), request); r.Err != nil {
		t.Fatalf("first probe: %v", r.Err)
	}
	p.Become(proxyzoo.Status("503 Service Unavailable"))
	r := newProber().Probe(context.Background(), request)
	if o := classify.Classify(r, classify.Expect{}); o.Reason != classify.ReasonEgressFailed {
		t.Errorf("got %s, want %s", o.Reason, classify.ReasonEgressFailed)
	}
}

// Proxy variables of the environment must not change where a probe goes.
func TestE43_EnvironmentProxiesIgnored(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	wrong := proxyzoo.Start(t, proxyzoo.Close)
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "ALL_PROXY"} {
		t.Setenv(name, "http://"+wrong.Addr)
	}
	t.Setenv("NO_PROXY", "*")
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	r := newProber().Probe(context.Background(), probe.Request{
		Proxy: p.Addr, Target: newTarget(t, world.Good, world.Origin.URL+"/ip"), Timeout: patient, MaxBody: 1024,
	})
	if r.Err != nil || wrong.Conns.Load() != 0 || p.Conns.Load() != 1 {
		t.Errorf("error %v, %d connections to the environment's proxy, %d to ours", r.Err, wrong.Conns.Load(), p.Conns.Load())
	}
}

// Sessions of owned targets are resumed, and a proxy that intercepts is found out all the same.
func TestE11_ResumptionDoesNotHideInterception(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	target := newTarget(t, world.Good, world.Origin.URL+"/ip", func(s *probe.TargetSpec) { s.Owned = true })
	request := probe.Request{Proxy: p.Addr, Target: target, Timeout: patient, MaxBody: 1024}
	first := newProber().Probe(context.Background(), request)
	second := newProber().Probe(context.Background(), request)
	if first.Err != nil || second.Err != nil || first.Resumed || !second.Resumed {
		t.Fatalf("first: resumed %v, error %v; second: resumed %v, error %v", first.Resumed, first.Err, second.Resumed, second.Err)
	}
	for _, b := range world.Beasts(t) {
		if b.Reason != classify.ReasonTLSIntercepted {
			continue
		}
		p.Become(b.Do)
		if o := classify.Classify(newProber().Probe(context.Background(), request), classify.Expect{}); o.Reason != classify.ReasonTLSIntercepted || !o.Immediate {
			t.Errorf("%s: got %s, immediate %v", b.Name, o.Reason, o.Immediate)
		}
	}
	if notOwned := newTarget(t, world.Good, world.Origin.URL+"/ip"); true {
		p.Become(proxyzoo.Tunnel)
		request.Target = notOwned
		newProber().Probe(context.Background(), request)
		if r := newProber().Probe(context.Background(), request); r.Resumed {
			t.Error("a session of a target that is not owned was resumed")
		}
	}
}

func TestCancelEndsProbeAtOnce(t *testing.T) {
	world := proxyzoo.NewWorld(t)
	arrived := make(chan struct{})
	p := proxyzoo.Start(t, func(c net.Conn, br *bufioReader, r *httpRequest) {
		close(arrived)
		proxyzoo.Hang(c, br, r)
	})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-arrived
		cancel()
	}()
	r := newProber().Probe(ctx, probe.Request{
		Proxy: p.Addr, Target: newTarget(t, world.Good, world.Origin.URL+"/ip"), Timeout: patient, MaxBody: 1024,
	})
	if o := classify.Classify(r, classify.Expect{}); o.Class != classify.Local || o.Reason != classify.ReasonCancelled {
		t.Errorf("got %s %s, error %v", o.Class, o.Reason, r.Err)
	}
}

// A probe of an owned target is small: proxies may be paid for by the byte.
func TestE57_BytesPerProbe(t *testing.T) {
	const most = 1600 // with TLS resumption, both directions
	world := proxyzoo.NewWorld(t)
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	var bytes atomic.Int64
	prober := newProber()
	prober.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return countingConn{c, &bytes}, err
	}
	request := probe.Request{
		Proxy: p.Addr, Timeout: patient, MaxBody: 1024,
		Target: newTarget(t, world.Good, world.Origin.URL+"/ip", func(s *probe.TargetSpec) { s.Owned = true }),
	}
	prober.Probe(context.Background(), request)
	bytes.Store(0)
	r := prober.Probe(context.Background(), request)
	t.Logf("%d bytes", bytes.Load())
	if n := bytes.Load(); r.Err != nil || !r.Resumed || n > most || n < 900 || p.Conns.Load() != 2 {
		t.Errorf("%d bytes, resumed %v, %d connections for two probes, error %v", n, r.Resumed, p.Conns.Load(), r.Err)
	}
}

// countingConn counts the bytes of both directions.
type countingConn struct {
	net.Conn
	n *atomic.Int64
}

func (c countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.n.Add(int64(n))
	return n, err
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}
