package main

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"crawl.example.com/egress-proxies-operator/internal/squidtest"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// machines are what runs on VMs: a real Squid, which the VM's own user data configures, on a loopback address of its own.
type machines struct {
	t      *testing.T
	port   uint16
	origin netip.AddrPort
	// installed, once closed, lets cloud-init go on: until then machines run without a proxy.
	installed chan struct{}
	serving   atomic.Int64
	group     sync.WaitGroup

	mu   sync.Mutex
	last netip.Addr
	gone map[uint64]chan struct{}
}

// newMachines comes before the server that they belong to: they end when it tells them so.
func newMachines(t *testing.T, port uint16, origin netip.AddrPort) *machines {
	t.Helper()
	squidtest.Program(t)
	m := &machines{
		t: t, port: port, origin: origin, installed: make(chan struct{}), last: netip.MustParseAddr("127.0.9.0"), gone: map[uint64]chan struct{}{},
	}
	t.Cleanup(m.group.Wait)
	return m
}

func (m *machines) hooks() computetest.Hooks {
	return computetest.Hooks{OnRunning: m.boot, OnGone: m.end}
}

// boot starts a machine; its proxy follows a little later, as it does on a VM. No address is used twice.
func (m *machines) boot(vm computetest.VM) (natIP string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.last = m.last.Next()
	gone, address := make(chan struct{}), netip.AddrPortFrom(m.last, m.port)
	m.gone[vm.ID] = gone
	m.group.Go(func() { m.run(vm, address, gone) })
	return address.Addr().String()
}

func (m *machines) end(vm computetest.VM) {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.gone[vm.ID])
	delete(m.gone, vm.ID)
}

func (m *machines) run(vm computetest.VM, address netip.AddrPort, gone <-chan struct{}) {
	select {
	case <-m.installed:
	case <-gone:
		return
	}
	conf, err := squidtest.FromCloudConfig(vm.Metadata["user-data"])
	if err != nil {
		m.t.Errorf("%s: %v", vm.Name, err)
		return
	}
	config, err := squidtest.OnLoopback(conf, m.origin)
	if err != nil {
		m.t.Errorf("%s: %v", vm.Name, err)
		return
	}
	squid := squidtest.StartOn(m.t, address, config)
	m.serving.Add(1)
	<-gone
	squid.Stop()
	m.serving.Add(-1)
}
