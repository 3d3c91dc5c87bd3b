package health

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
)

// Healthy proxies that all appear at once are all found healthy: no probe fails for being one of many.
func TestE24_StartOfAFleet(t *testing.T) {
	if testing.Short() {
		t.Skip("probes 1000 proxies over real sockets: not with -short")
	}
	const n = 1000
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, "127.0.0.1")
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	check := quickSettings(ca, origin.URL+"/ip")
	check.Period, check.Timeout = time.Hour, 5*time.Second
	check.Targets[0].Owned = true
	e := startEngine(t)
	for i := range n {
		e.Upsert(proxy(i, func(x *Target) { x.Address, x.Check = p.Addr, check }))
	}
	waitFor(t, "all verdicts", func() bool { return e.snapshot().States["unknown"] == 0 })
	if s := e.snapshot(); s.States["healthy"] != n {
		t.Errorf("got %v", s.States)
	}
}

// Waiting for a slot is not held against a proxy: its time begins with its probe.
func TestE25_TimeoutCountsFromDispatch(t *testing.T) {
	const n, takes = 60, 50 * time.Millisecond
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, "127.0.0.1")
	p := proxyzoo.Start(t, func(c net.Conn, br *bufio.Reader, r *http.Request) {
		<-time.After(takes)
		proxyzoo.Tunnel(c, br, r)
	})
	check := quickSettings(ca, origin.URL+"/ip")
	check.Period, check.Timeout = time.Hour, n*takes/2 // the last ones wait for twice their timeout
	e := startEngine(t, func(o *Options) { o.Slots = 1 })
	for i := range n {
		e.Upsert(proxy(i, func(x *Target) { x.Address, x.Check = p.Addr, check }))
	}
	waitFor(t, "all verdicts", func() bool { return e.snapshot().States["unknown"] == 0 })
	if s := e.snapshot(); s.States["healthy"] != n || s.Slots != 1 {
		t.Errorf("got %v with %d slots", s.States, s.Slots)
	}
}

// Many proxies behind one address each get their own credentials.
func TestE40_OneAddressManyCredentials(t *testing.T) {
	const n = 50
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, "127.0.0.1")
	var mu sync.Mutex
	seen := map[string]int{}
	p := proxyzoo.Start(t, func(c net.Conn, br *bufio.Reader, r *http.Request) {
		raw, _ := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.Header.Get("Proxy-Authorization"), "Basic "))
		mu.Lock()
		seen[string(raw)]++
		mu.Unlock()
		proxyzoo.Tunnel(c, br, r)
	})
	check := quickSettings(ca, origin.URL+"/ip")
	check.Period, check.Timeout = time.Hour, squidLimit // one probe each
	e := startEngine(t)
	for i := range n {
		e.Upsert(proxy(i, func(x *Target) {
			x.Address, x.Check = p.Addr, check
			x.Credentials, _ = NewCredentials(fmt.Sprintf("user-%d", i), "x")
		}))
	}
	waitFor(t, "all verdicts", func() bool { return e.snapshot().States["healthy"] == n })
	mu.Lock()
	defer mu.Unlock()
	for i := range n {
		if seen[fmt.Sprintf("user-%d:x", i)] != 1 {
			t.Errorf("user-%d was seen %d times", i, seen[fmt.Sprintf("user-%d:x", i)])
		}
	}
}

// An address that the dial policy denies is refused by the engine as by the prober, at the first probe.
func TestE47_EngineRefusesAddress(t *testing.T) {
	e := New(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Start(ctx)
	}()
	defer func() {
		cancel()
		<-done
	}()
	p := proxyzoo.Start(t, proxyzoo.Tunnel)
	e.Upsert(proxy(0, func(x *Target) { x.Address = p.Addr }))
	waitFor(t, "a verdict", func() bool { v, _ := e.Verdict(uid(0)); return v.Known })
	if v, _ := e.Verdict(uid(0)); v.Healthy || v.Reason != classify.ReasonAddressNotAllowed || p.Conns.Load() != 0 {
		t.Errorf("got %+v after %d connections", v, p.Conns.Load())
	}
}

// Nothing is left after the end: no goroutine and no connection, whatever was under way.
func TestE39_StopLeavesNothing(t *testing.T) {
	ca := proxyzoo.NewCA(t, "origin")
	origin := proxyzoo.NewOrigin(t, ca, "127.0.0.1")
	hanging := proxyzoo.Start(t, proxyzoo.Hang)
	before := goleak.IgnoreCurrent()
	e := New(Options{AllowedProxies: mustPrefixes(t, "127.0.0.0/8")})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = e.Start(ctx)
	}()
	const n = 20
	for i := range n {
		e.Upsert(proxy(i, func(x *Target) { x.Address, x.Check = hanging.Addr, quickSettings(ca, origin.URL) }))
	}
	waitFor(t, "probes under way", func() bool { return hanging.Conns.Load() == n })
	stop := time.Now()
	cancel()
	<-done
	if took := time.Since(stop); took > 4*time.Second {
		t.Errorf("stopping took %s", took)
	}
	for i := range n {
		if v, _ := e.Verdict(uid(i)); v.Known {
			t.Errorf("stopping decided: %+v", v)
		}
	}
	// The hanging proxy's handlers end when their connections do.
	goleak.VerifyNone(t, before)
}
