package host_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
)

func config(h *libvirttest.Host) host.Config {
	return host.Config{
		Name: h.Name, Address: h.Address, Port: h.Port, User: h.User, Socket: h.Socket, URI: libvirttest.URI,
		Pool: libvirttest.Pool, Network: libvirttest.Network,
	}
}

// credentials are a Source that can be changed.
type credentials struct {
	auth  atomic.Pointer[sshdial.Auth]
	reads atomic.Int64
}

func (c *credentials) set(a sshdial.Auth) { c.auth.Store(&a) }

func (c *credentials) source(context.Context) (sshdial.Auth, error) {
	c.reads.Add(1)
	return *c.auth.Load(), nil
}

// connect makes a Host for a hypervisor host, until the test ends.
func connect(t *testing.T, h *libvirttest.Host, o host.Options) (*host.Host, *credentials) {
	t.Helper()
	c := &credentials{}
	c.set(h.Auth())
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	o.Logger = logr.Discard()
	made := host.New(config(h), c.source, o)
	t.Cleanup(func() { _ = made.Close() })
	return made, c
}

// ask makes one call.
func ask(t *testing.T, h *host.Host) error {
	t.Helper()
	return h.Do(t.Context(), func(c *rpc.Conn) error {
		_, err := c.LibVersion(t.Context())
		return err
	})
}

// noneLeft waits until there is no connection to a hypervisor host any more, on either side.
func noneLeft(t *testing.T, h *libvirttest.Host) {
	t.Helper()
	libvirttest.Await(t, func() error {
		if links, sessions, frames := h.Link.Open(), h.SSHD.Children(), h.Frames.Open(); links+sessions+frames > 0 {
			return fmt.Errorf("%d TCP connections, %d sessions of sshd, %d connections to libvirtd are left", links, sessions, frames)
		}
		return nil
	})
}
