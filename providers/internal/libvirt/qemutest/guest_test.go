//go:build libvirt

package qemutest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// TestV23_TheAddressComesFromTheLeaseOrTheAgent: libvirt knows the leases of its own network only; on a plain bridge the guest
// itself has to tell, and it has a loopback interface and one of IPv6 as well.
func TestV23_TheAddressComesFromTheLeaseOrTheAgent(t *testing.T) {
	t.Parallel()
	h := libvirtlab.Hosts(t)[0]
	leased, bridged := mini(t, kvm2.NewFactory, h), mini(t, kvm.NewFactory, h)
	bridged.bridged = true
	clouds := []*cloud{leased.open(t), bridged.open(t)}
	requests := []providers.CreateRequest{
		clouds[0].request("leased", h.Name, "#cloud-config\n# leased\n"), clouds[1].request("bridged", h.Name, "#cloud-config\n# bridged\n"),
	}
	for i, c := range clouds {
		c.create(t, requests[i])
	}
	for i, prefix := range []string{h.NetworkPrefix, h.BridgePrefix} {
		r := requests[i]
		got := clouds[i].serving(t, r, libvirtlab.BootLimit)
		addr, err := netip.ParseAddr(got.Addresses[0])
		if err != nil || !netip.MustParsePrefix(prefix).Contains(addr) {
			t.Errorf("%s: %v, %v; want one of %s", r.Owner.Name, got.Addresses, err, prefix)
		}
		if data, err := guest(got).Seed(t.Context(), "user-data"); err != nil || data != string(r.UserData) {
			t.Errorf("%s: user-data %q, %v", r.Owner.Name, data, err)
		}
		if got.Owner != r.Owner || got.Hash != r.Hash || !strings.HasPrefix(got.ProviderID, "libvirt://"+h.Name+"/") {
			t.Errorf("%s: %+v", r.Owner.Name, got)
		}
	}
}

// TestV22_AGuestThatStopsIsFoundOut: by itself, by the host, or without libvirt noticing.
func TestV22_AGuestThatStopsIsFoundOut(t *testing.T) {
	t.Parallel()
	h := libvirtlab.Hosts(t)[0]
	for _, test := range []struct {
		name  string
		stop  func(*testing.T, providers.CreateRequest, providers.Instance) error
		state providers.State
	}{
		{"poweroff", func(t *testing.T, _ providers.CreateRequest, i providers.Instance) error {
			return guest(i).PowerOff(t.Context())
		}, providers.StateStopped},
		{"killed", func(t *testing.T, r providers.CreateRequest, _ providers.Instance) error {
			h.Exec(t, "sh", "-c", "kill -9 $(cat /run/libvirt/qemu/"+r.Name+".pid)")
			return nil
		}, providers.StateFailed},
		{"panic", func(t *testing.T, _ providers.CreateRequest, i providers.Instance) error {
			return guest(i).Panic(t.Context())
		}, providers.StateRunning},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := mini(t, kvm2.NewFactory, h).open(t)
			r := c.request(test.name, h.Name, "")
			c.create(t, r)
			before := c.serving(t, r, libvirtlab.BootLimit)
			if err := test.stop(t, r, before); err != nil {
				t.Fatal(err)
			}
			after := c.await(t, r, libvirtlab.SettleLimit, test.state)
			if after.ID != before.ID {
				t.Errorf("%s became %s", before.ID, after.ID)
			}
			if test.state != providers.StateRunning {
				return
			}
			// libvirt sees a machine that runs; who asks for a page does not.
			origin := libvirtlab.Origin(t, h)
			libvirtlab.Eventually(t, libvirtlab.SettleLimit, "pages end", func(ctx context.Context) error {
				if _, err := guest(before).Fetch(ctx, origin, "/"); err == nil {
					return errors.New("a page still comes")
				}
				return nil
			})
			if i, err := c.get(t.Context(), ref(r)); err != nil || i.State != providers.StateRunning {
				t.Errorf("%s, %v: want a machine that runs for all libvirt knows", i.State, err)
			}
		})
	}
}

// squid is user-data as a user writes it.
const squid = `#cloud-config
write_files:
  - path: /etc/squid/squid.conf
    content: |
      http_port 3128
      acl lab dst 10.77.0.1
      http_access allow CONNECT lab
      http_access deny all
      cache deny all
      access_log none
      cache_log /dev/null
      shutdown_lifetime 1 seconds
      pinger_enable off
runcmd:
  - [systemctl, start, squid]
`

// TestV3_UserDataAndTheAgentsScriptBothRun: real cloud-init starts Squid by the user's commands, and by the class's vendor data
// installs the agent, without which nothing would know the address on a bridge.
func TestV3_UserDataAndTheAgentsScriptBothRun(t *testing.T) {
	t.Parallel()
	h := libvirtlab.Hosts(t)[0]
	s := setup{factory: kvm2.NewFactory, hosts: []libvirtlab.Host{h}, source: serve(t, libvirtlab.FullImage(t)), memory: "512Mi", bridged: true}
	s.alter = func(block *v1alpha1.LibvirtClass) { block.InstallGuestAgent = new(true) }
	c := s.open(t)
	r := c.request("full", h.Name, squid)
	c.create(t, r)
	i := c.serving(t, r, libvirtlab.FullBootLimit)
	// It is the Squid that user-data configured: what that does not allow is refused.
	listener, err := net.Listen("tcp", net.JoinHostPort(h.LabAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	plain := httptest.NewUnstartedServer(http.NotFoundHandler())
	_ = plain.Listener.Close()
	plain.Listener = listener
	plain.Start()
	t.Cleanup(plain.Close)
	if _, err := guest(i).Fetch(t.Context(), plain, "/"); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("a request that is not allowed: %v, want 403", err)
	}
}

// TestV7_DaemonsRestartUnderAFleet: machines run on without libvirtd and without a way to it, nobody takes them for gone, and
// the connections come back by themselves.
func TestV7_DaemonsRestartUnderAFleet(t *testing.T) {
	hosts := libvirtlab.Hosts(t)[:2]
	first, second := mini(t, kvm.NewFactory, hosts...).open(t), mini(t, kvm2.NewFactory, hosts...).open(t)
	type machine struct {
		cloud *cloud
		host  libvirtlab.Host
		asked providers.CreateRequest
		got   providers.Instance
		qemu  string
	}
	fleet := []*machine{
		{cloud: first, host: hosts[0], asked: first.request("kvm-on-first", hosts[0].Name, "")},
		{cloud: second, host: hosts[0], asked: second.request("kvm2-on-first", hosts[0].Name, "")},
		{cloud: second, host: hosts[1], asked: second.request("kvm2-on-second", hosts[1].Name, "")},
	}
	for _, m := range fleet {
		m.cloud.create(t, m.asked)
	}
	for _, m := range fleet {
		m.got = m.cloud.serving(t, m.asked, libvirtlab.BootLimit)
		m.qemu = m.host.QEMU(t, m.asked.Name)
	}
	back := func(what string) {
		for _, m := range fleet {
			libvirtlab.Eventually(t, libvirtlab.SettleLimit, what+": "+m.asked.Owner.Name+" is seen again", func(ctx context.Context) error {
				i, err := m.cloud.get(ctx, ref(m.asked))
				if err != nil && !providers.IsNotFound(err) {
					return err
				}
				if err != nil || i.ID != m.got.ID || i.State != providers.StateRunning {
					t.Fatalf("%s: after the restart of %s: %+v, %v", m.asked.Owner.Name, what, i, err)
				}
				return nil
			})
			m.cloud.serving(t, m.asked, libvirtlab.SettleLimit)
			if now := m.host.QEMU(t, m.asked.Name); now != m.qemu {
				t.Errorf("%s: another machine runs after the restart of %s", m.asked.Owner.Name, what)
			}
		}
	}

	for _, h := range hosts {
		h.StopLibvirtd(t)
	}
	origin := libvirtlab.Origin(t, hosts[0])
	for _, m := range fleet {
		if i, err := m.cloud.get(t.Context(), ref(m.asked)); err == nil || providers.IsNotFound(err) {
			t.Errorf("%s: without libvirtd: %+v, %v", m.asked.Owner.Name, i, err)
		}
		if _, err := guest(m.got).Fetch(t.Context(), origin, "/"); err != nil {
			t.Errorf("%s: a page without libvirtd: %v", m.asked.Owner.Name, err)
		}
	}
	for _, h := range hosts {
		h.StartLibvirtd(t)
	}
	back("libvirtd")
	for _, h := range hosts {
		h.RestartSSH(t)
	}
	back("sshd")
	// Deleting them, which is left to the cleanup, takes a connection that works in every respect.
}
