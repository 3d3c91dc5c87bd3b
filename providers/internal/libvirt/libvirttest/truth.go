package libvirttest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"
)

// byHand makes calls that the operator does not make.
func (h *Host) byHand(do func(*libvirt.Libvirt) error) error {
	conn, err := net.Dial("unix", h.Direct)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	l := libvirt.NewWithDialer(dialers.NewAlreadyConnected(conn))
	if err := l.ConnectToURI(URI); err != nil {
		return fmt.Errorf("connect beside the operator: %w", err)
	}
	return errors.Join(do(l), l.Disconnect())
}

// ByHand does what a person at the host may do, beside SSH and Frames.
func (h *Host) ByHand(t testing.TB, do func(*libvirt.Libvirt) error) {
	t.Helper()
	if err := h.byHand(do); err != nil {
		t.Fatal(err)
	}
}

// addPool adds ClassPool to what the test driver has from the start.
func (h *Host) addPool() error {
	return h.byHand(func(l *libvirt.Libvirt) error {
		pool, err := l.StoragePoolDefineXML(fmt.Sprintf("<pool type='dir'><name>%s</name><target><path>/%s</path></target></pool>", ClassPool, ClassPool), 0)
		if err != nil {
			return fmt.Errorf("define pool %s: %w", ClassPool, err)
		}
		if err := l.StoragePoolCreate(pool, 0); err != nil {
			return fmt.Errorf("start pool %s: %w", ClassPool, err)
		}
		return nil
	})
}

// Domains are the names of all domains but the test driver's own, in order, seen beside SSH and Frames.
func (h *Host) Domains(t testing.TB) []string {
	t.Helper()
	domains, err := h.Conn().Domains(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatalf("list the domains of %s: %v", h.Name, err)
	}
	var names []string
	for _, d := range domains {
		if d.Name != Domain {
			names = append(names, d.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Volumes are the names of all volumes of a pool, in order, seen beside SSH and Frames.
func (h *Host) Volumes(t testing.TB, pool string) []string {
	t.Helper()
	p, err := h.Conn().PoolLookupByName(context.WithoutCancel(t.Context()), pool)
	if err != nil {
		t.Fatalf("look up pool %s of %s: %v", pool, h.Name, err)
	}
	volumes, err := h.Conn().Volumes(context.WithoutCancel(t.Context()), p)
	if err != nil {
		t.Fatalf("list the volumes of pool %s of %s: %v", pool, h.Name, err)
	}
	var names []string
	for _, v := range volumes {
		names = append(names, v.Name)
	}
	slices.Sort(names)
	return names
}
