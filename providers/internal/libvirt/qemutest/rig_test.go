//go:build libvirt

package qemutest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/address"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/seed"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/sshdial"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// dial opens a connection to a host as the providers do.
func dial(t *testing.T, h libvirtlab.Host) *rpc.Conn {
	t.Helper()
	auth := sshdial.Auth{Key: readFile(t, h.KeyFile), KnownHosts: readFile(t, h.KnownHostsFile)}
	raw, err := sshdial.Dial(t.Context(), sshdial.Target{Address: h.Address, Port: h.Port, User: h.User, Socket: h.Socket}, auth)
	if err != nil {
		t.Fatalf("dial %s: %v", h.Name, err)
	}
	conn, err := rpc.Open(t.Context(), raw, h.URI, rpc.Options{Host: h.Name})
	if err != nil {
		t.Fatalf("open %s on %s: %v", h.URI, h.Name, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// upload makes a volume of a file's bytes.
func upload(t *testing.T, conn *rpc.Conn, pool golibvirt.StoragePool, name, format string, data []byte) virtxml.Volume {
	t.Helper()
	ctx := t.Context()
	volume := makeVolume(t, conn, pool, virtxml.Volume{Name: name, Format: format, Capacity: int64(len(data))})
	if err := conn.VolumeUpload(ctx, volume, strings.NewReader(string(data)), int64(len(data))); err != nil {
		t.Fatalf("upload %s: %v", name, err)
	}
	if err := conn.PoolRefresh(ctx, pool); err != nil {
		t.Fatal(err)
	}
	return describe(t, conn, volume)
}

// makeVolume makes a volume that goes with the test.
func makeVolume(t *testing.T, conn *rpc.Conn, pool golibvirt.StoragePool, v virtxml.Volume) golibvirt.StorageVol {
	t.Helper()
	text, err := v.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	volume, err := conn.VolumeCreate(t.Context(), pool, text)
	if err != nil {
		t.Fatalf("create %s: %v", v.Name, err)
	}
	t.Cleanup(func() {
		if err := conn.VolumeDelete(context.WithoutCancel(t.Context()), volume); err != nil && rpc.CodeOf(err) != rpc.NoVolume {
			t.Errorf("delete %s: %v", v.Name, err)
		}
	})
	return volume
}

func describe(t *testing.T, conn *rpc.Conn, volume golibvirt.StorageVol) virtxml.Volume {
	t.Helper()
	text, err := conn.VolumeXML(t.Context(), volume)
	if err != nil {
		t.Fatal(err)
	}
	v, err := virtxml.ParseVolume(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// define makes a record that goes with the test.
func define(t *testing.T, conn *rpc.Conn, text string) golibvirt.Domain {
	t.Helper()
	domain, err := conn.DomainDefine(t.Context(), text)
	if err != nil {
		t.Fatalf("define: %v\n%s", err, text)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := conn.DomainDestroy(ctx, domain); err != nil && rpc.CodeOf(err) != rpc.OperationInvalid {
			t.Errorf("destroy: %v", err)
		}
		if err := conn.DomainUndefine(ctx, domain); err != nil {
			t.Errorf("undefine: %v", err)
		}
	})
	return domain
}

// awkward has what ends elements, attributes and entities, and what an encoder could lose.
const awkward = `a&b <c> "d" 'e' ]]> é 𝄞 &amp; --`

func TestV2_LibvirtTakesEveryNameAndGivesItBack(t *testing.T) {
	h := libvirtlab.Hosts(t)[0]
	conn := dial(t, h)
	pool, err := conn.PoolLookupByName(t.Context(), h.Pool)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("domains", func(t *testing.T) {
		want := virtxml.Domain{
			Name: awkward, UUID: uuid.NewString(), Type: "qemu", CPUs: 1, MemoryBytes: 192 << 20,
			Pool: h.Pool, Disk: awkward + ".qcow2", Seed: awkward + "-seed.iso", Network: h.Network, MAC: "52:54:00:aa:bb:cc",
			Metadata: virtxml.Metadata{
				Provider: "kvm2", Class: awkward, ClusterID: awkward, Namespace: awkward, Name: awkward, UID: awkward, Hash: awkward,
				Attempt: awkward, CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
			},
		}
		text, err := want.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		define(t, conn, text)
		domain, err := conn.DomainLookupByName(t.Context(), awkward)
		if err != nil {
			t.Fatal(err)
		}
		if text, err = conn.DomainXML(t.Context(), domain); err != nil {
			t.Fatal(err)
		}
		got, err := virtxml.ParseDomain(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})

	t.Run("volumes", func(t *testing.T) {
		base := makeVolume(t, conn, pool, virtxml.Volume{Name: awkward + ".base", Format: "qcow2", Capacity: 1 << 20})
		path := describe(t, conn, base).Path
		makeVolume(t, conn, pool, virtxml.Volume{Name: awkward, Format: "qcow2", Capacity: 4 << 20, BackingPath: path, BackingFormat: "qcow2"})
		volume, err := conn.VolumeLookup(t.Context(), pool, awkward)
		if err != nil {
			t.Fatal(err)
		}
		got := describe(t, conn, volume)
		want := virtxml.Volume{
			Name: awkward, Path: got.Path, Format: "qcow2", Capacity: 4 << 20, BackingPath: path, BackingFormat: "qcow2",
			Allocation: got.Allocation, Physical: got.Physical,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if !strings.HasSuffix(got.Path, "/"+awkward) || !slices.Contains(strings.Split(strings.TrimSpace(h.Exec(t, "ls", "-A", "/var/lib/libvirt/images/egress")), "\n"), awkward) {
			t.Errorf("the file of the volume is %s", got.Path)
		}
	})
}

// TestV29_TheGuestSeesItsSeedOnEveryMachineType: a kernel of a cloud image has no driver for every bus, so the bus of the seed
// decides whether the guest finds it.
func TestV29_TheGuestSeesItsSeedOnEveryMachineType(t *testing.T) {
	h := libvirtlab.Hosts(t)[0]
	conn := dial(t, h)
	pool, err := conn.PoolLookupByName(t.Context(), h.Pool)
	if err != nil {
		t.Fatal(err)
	}
	base := upload(t, conn, pool, "v29-base.qcow2", "qcow2", readFile(t, libvirtlab.MiniImage(t)))
	for _, machine := range []string{"pc", "q35"} {
		t.Run(machine, func(t *testing.T) {
			name, mac := "v29-"+machine, "52:54:00:29:00:01"
			userData := "#cloud-config\n# " + awkward + "\n"
			iso, err := seed.Build(seed.Input{InstanceID: "id-of-" + name, Hostname: name, MAC: mac, UserData: []byte(userData)})
			if err != nil {
				t.Fatal(err)
			}
			domain := virtxml.Domain{
				Name: name, UUID: uuid.NewString(), Type: "qemu", CPUs: 1, MemoryBytes: 192 << 20, Pool: h.Pool,
				Disk: name + ".qcow2", Seed: name + "-seed.iso", Network: h.Network, MAC: mac,
				Metadata: virtxml.Metadata{Provider: "kvm2", CreatedAt: time.Now()},
			}
			text, err := domain.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			const anyMachine = "<type>hvm</type>"
			if !strings.Contains(text, anyMachine) {
				t.Fatalf("the definition names a machine type by itself:\n%s", text)
			}
			// The record comes first, before there is what it names.
			record := define(t, conn, strings.Replace(text, anyMachine, "<type machine='"+machine+"'>hvm</type>", 1))
			makeVolume(t, conn, pool, virtxml.Volume{Name: domain.Disk, Format: "qcow2", Capacity: 1 << 30, BackingPath: base.Path, BackingFormat: base.Format})
			upload(t, conn, pool, domain.Seed, "raw", iso)
			if err := conn.DomainCreate(t.Context(), record); err != nil {
				t.Fatal(err)
			}
			var guest libvirtlab.Guest
			libvirtlab.Eventually(t, libvirtlab.BootLimit, "the guest shows its seed", func(ctx context.Context) error {
				found, err := address.Find(ctx, conn, record, mac)
				if err != nil {
					t.Fatal(err)
				}
				if len(found) == 0 {
					return errors.New("no address yet")
				}
				guest = libvirtlab.Guest(found[0])
				got, err := guest.Seed(ctx, "user-data")
				if err == nil && got != userData {
					t.Fatalf("user-data %q, want %q", got, userData)
				}
				return err
			})
			meta, err := guest.Seed(t.Context(), "meta-data")
			if err != nil || !strings.Contains(meta, "id-of-"+name) {
				t.Errorf("meta-data %q, %v", meta, err)
			}
			if xml, err := conn.DomainXML(t.Context(), record); err != nil || !strings.Contains(xml, fmt.Sprintf("machine='pc-%s-", map[string]string{"pc": "i440fx", "q35": "q35"}[machine])) {
				t.Errorf("it is no machine of type %s: %v", machine, err)
			}
		})
	}
}
