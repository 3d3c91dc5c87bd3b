//go:build libvirt

package qemutest

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// small is a host whose pool is on a file system of that many MiB.
func small(t *testing.T, name string, mib int) libvirtlab.Host {
	t.Helper()
	h := libvirtlab.Start(t, name)
	h.Exec(t, "mount", "-t", "tmpfs", "-o", fmt.Sprintf("size=%dm,mode=711", mib), "tmpfs", h.PoolPath)
	return h
}

// TestV20_APoolWithoutSpaceMakesTheProxyWait: there is room for one disk and a half, of which nobody has written anything yet.
func TestV20_APoolWithoutSpaceMakesTheProxyWait(t *testing.T) {
	t.Parallel()
	libvirtlab.Hosts(t)
	h := small(t, "small", 1600)
	c := mini(t, kvm2.NewFactory, h).open(t)
	requests := []providers.CreateRequest{c.request("one", h.Name, ""), c.request("other", h.Name, "")}
	errs := c.createAtOnce(t, requests)
	winner, loser := requests[0], requests[1]
	if errs[0] != nil {
		winner, loser = loser, winner
		errs[0], errs[1] = errs[1], errs[0]
	}
	if errs[0] != nil || providers.ReasonOf(errs[1]) != providers.Capacity {
		t.Fatalf("%v and %v, want one machine and one refusal for lack of space", errs[0], errs[1])
	}
	c.serving(t, winner, libvirtlab.BootLimit)
	// Nor does it fit beside one that runs, and nothing is left of the attempt.
	if _, err := c.Create(t.Context(), loser); providers.ReasonOf(err) != providers.Capacity {
		t.Errorf("beside a machine that runs: %v", err)
	}
	if got := h.Domains(t); len(got) != 1 {
		t.Errorf("the host has %v", got)
	}
	c.remove(t, ref(winner))
	if _, err := c.Create(t.Context(), loser); err != nil {
		t.Fatalf("when there is room again: %v", err)
	}
	c.serving(t, loser, libvirtlab.BootLimit)
}

// TestV21_AGuestThatFillsTheDiskIsFoundOutAndCanBeReplaced: its thin disk meets the end of the host's file system.
func TestV21_AGuestThatFillsTheDiskIsFoundOutAndCanBeReplaced(t *testing.T) {
	t.Parallel()
	libvirtlab.Hosts(t)
	h := small(t, "full", 96)
	c := mini(t, kvm.NewFactory, h).open(t) // kvm looks at no space before
	r := c.request("greedy", h.Name, "")
	c.create(t, r)
	before := c.serving(t, r, libvirtlab.BootLimit)
	if err := guest(before).Fill(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := c.await(t, r, libvirtlab.SettleLimit, providers.StateFailed)
	if after.ID != before.ID || after.Message == "" {
		t.Errorf("%+v", after)
	}
	c.remove(t, ref(r))
	r.Attempt = "greedy-2"
	c.create(t, r)
	if again := c.serving(t, r, libvirtlab.BootLimit); again.ID == before.ID || again.Addresses[0] == before.Addresses[0] {
		t.Errorf("%s at %v took the place of %s at %v", again.ID, again.Addresses, before.ID, before.Addresses)
	}
}

// TestV25_AHostLosesPowerAndBootsWithItsNetworkInactive: nothing is taken for gone meanwhile; the machine comes back with its
// host, or is found not to.
func TestV25_AHostLosesPowerAndBootsWithItsNetworkInactive(t *testing.T) {
	t.Parallel()
	libvirtlab.Hosts(t)
	h := libvirtlab.Start(t, "power")
	c := mini(t, kvm2.NewFactory, h).open(t)
	r := c.request("powerless", h.Name, "")
	c.create(t, r)
	before := c.serving(t, r, libvirtlab.BootLimit)

	down := func(ctx context.Context) error {
		_, err := c.get(ctx, ref(r))
		if providers.IsNotFound(err) {
			t.Fatal("a machine on a host that is down is called gone")
		}
		if err == nil {
			return errors.New("the host still answers")
		}
		return nil
	}
	h.PowerCut(t)
	libvirtlab.Eventually(t, libvirtlab.SettleLimit, "the host is seen to be down", down)
	h.Boot(t)
	if after := c.serving(t, r, libvirtlab.BootLimit); after.ID != before.ID {
		t.Errorf("%s came back as %s", before.ID, after.ID)
	}

	h.PowerCut(t)
	libvirtlab.Eventually(t, libvirtlab.SettleLimit, "the host is seen to be down", down)
	h.BootWithoutNetwork(t)
	libvirtlab.Eventually(t, libvirtlab.BootLimit, "the machine is known not to run", func(ctx context.Context) error {
		i, err := c.get(ctx, ref(r))
		if providers.IsNotFound(err) {
			t.Fatal("a machine that its host did not start is called gone")
		}
		if err != nil {
			return err
		}
		if i.State != providers.StateStopped && i.State != providers.StateFailed {
			return fmt.Errorf("it is %s: %s", i.State, i.Message)
		}
		return nil
	})

	// Its replacement cannot start either, says so, and leaves nothing; with the network, it does.
	c.remove(t, ref(r))
	r.Attempt = "powerless-2"
	t.Cleanup(func() { c.remove(t, ref(r)) })
	_, refused := c.Create(t.Context(), r)
	libvirtlab.Eventually(t, libvirtlab.SettleLimit, "the replacement is known not to start", func(ctx context.Context) error {
		i, err := c.get(ctx, ref(r))
		if err == nil && (i.State == providers.StatePending || i.State == providers.StateRunning) {
			return fmt.Errorf("it is %s: %s (create: %w)", i.State, i.Message, refused)
		}
		return nil
	})
	c.remove(t, ref(r))
	h.Virsh(t, "net-start", h.Network)
	r.Attempt = "powerless-3"
	c.create(t, r)
	c.serving(t, r, libvirtlab.BootLimit)
}
