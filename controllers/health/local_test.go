package health

import (
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// Trouble that looks like ours is the proxy's when others are reached meanwhile; while nobody is reached it is nobody's.
func TestLocalTroubleOfOneProxyOnlyIsTheProxys(t *testing.T) {
	noRoute := probe.Result{Stage: probe.StageDial, Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}
	noResolver := probe.Result{Stage: probe.StageResolve, Err: &net.DNSError{Err: "server misbehaving", IsTemporary: true}}
	for _, tc := range []struct {
		name          string
		bad           probe.Result
		bads, others  string // addresses
		othersSucceed bool
		falls         bool
		reason        string
	}{
		{"no route to one", noRoute, "192.0.2.7:3128", "192.0.2.8:3128", true, true, classify.ReasonConnectionFailed},
		{"no route to any", noRoute, "192.0.2.7:3128", "192.0.2.8:3128", false, false, ""},
		{"one name", noResolver, "a.example:3128", "b.example:3128", true, true, classify.ReasonNameNotResolved},
		{"any name", noResolver, "a.example:3128", "b.example:3128", false, false, ""},
		{"any name, addresses work", noResolver, "a.example:3128", "192.0.2.8:3128", true, false, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fakeProber{}
			inBubble(t, f, func(b *bench) {
				b.Upsert(proxy(0, func(x *Target) { x.Address = tc.bads }))
				b.Upsert(proxy(1, func(x *Target) { x.Address = tc.others }))
				b.pass(2 * time.Minute)
				if v := b.verdict(0); !v.Healthy {
					t.Fatalf("at first %+v", v)
				}
				f.set(func(r probe.Request) probe.Result {
					if r.Proxy == tc.bads || !tc.othersSucceed {
						return tc.bad
					}
					return good()
				})
				b.pass(30 * time.Minute)
				if v := b.verdict(0); v.Healthy == tc.falls || tc.falls && v.Reason != tc.reason {
					t.Errorf("got %+v", v)
				}
				if v := b.verdict(1); !v.Healthy {
					t.Errorf("the other one: %+v", v)
				}
			})
		})
	}
}
