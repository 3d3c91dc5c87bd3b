package virtxml

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

const specials = `a&b<c>"d"'e']]><!--x--> é 中 ;$(x)`

// sample is a machine whose every text is different.
func sample() Domain {
	return Domain{
		Name: "px-0123456789", UUID: "6ba7b810-9dad-41d1-80b4-00c04fd430c8", Type: "kvm", CPUs: 2, MemoryBytes: 512 << 20,
		Pool: "proxies", Disk: "px-0123456789.qcow2", Seed: "px-0123456789-seed.iso", Network: "default", MAC: "52:54:00:12:34:56",
		Metadata: Metadata{
			Provider: "kvm2", Class: "homelab", ClusterID: "cluster-1", Namespace: "crawl", Name: "proxy-1",
			UID: "uid-1", Hash: "v1-abc", Attempt: "3", CreatedAt: time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.UTC),
		},
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	want, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.TrimSpace(string(want)), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func marshal(t *testing.T, m interface{ Marshal() (string, error) }) string {
	t.Helper()
	text, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestV2_DefinitionsAreWhatWasAgreed compares whole definitions, so that no change of them goes unseen.
func TestV2_DefinitionsAreWhatWasAgreed(t *testing.T) {
	golden(t, "kvm.xml", marshal(t, sample()))
	emulated := sample()
	emulated.Type, emulated.Network, emulated.Bridge = "qemu", "", "br0"
	golden(t, "qemu-bridge.xml", marshal(t, emulated))
	golden(t, "volume.xml", marshal(t, Volume{Name: "base.qcow2", Format: "qcow2", Capacity: 4 << 20}))
	golden(t, "clone.xml", marshal(t, Volume{
		Name: "disk.qcow2", Format: "qcow2", Capacity: 1 << 30, BackingPath: "/pool/base.qcow2", BackingFormat: "qcow2",
	}))
}

// TestV2_SpecialsReadBack: no value can end its element, wherever it stands.
func TestV2_SpecialsReadBack(t *testing.T) {
	for name, change := range map[string]func(d *Domain, s string){
		"name":      func(d *Domain, s string) { d.Name = s },
		"pool":      func(d *Domain, s string) { d.Pool = s },
		"disk":      func(d *Domain, s string) { d.Disk = s },
		"seed":      func(d *Domain, s string) { d.Seed = s },
		"network":   func(d *Domain, s string) { d.Network = s },
		"bridge":    func(d *Domain, s string) { d.Network, d.Bridge = "", s },
		"class":     func(d *Domain, s string) { d.Metadata.Class = s },
		"cluster":   func(d *Domain, s string) { d.Metadata.ClusterID = s },
		"namespace": func(d *Domain, s string) { d.Metadata.Namespace = s },
		"proxy":     func(d *Domain, s string) { d.Metadata.Name = s },
		"uid":       func(d *Domain, s string) { d.Metadata.UID = s },
		"hash":      func(d *Domain, s string) { d.Metadata.Hash = s },
		"attempt":   func(d *Domain, s string) { d.Metadata.Attempt = s },
		"provider":  func(d *Domain, s string) { d.Metadata.Provider = s },
	} {
		t.Run(name, func(t *testing.T) {
			want := sample()
			change(&want, specials)
			roundTrip(t, want)
		})
	}
}

func roundTrip(t *testing.T, want Domain) {
	t.Helper()
	got, err := ParseDomain(marshal(t, want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("another machine is read back (-want +got):\n%s", diff)
	}
}

// FuzzV2_Definitions: every text either reads back exactly, in a domain and in a volume, or is refused.
func FuzzV2_Definitions(f *testing.F) {
	for _, s := range []string{specials, "", " ", "a\tb\nc\rd", "\x00", "\xff", "\ufffe", "</name><name>x", "&#60;", `'"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d := sample()
		d.Name, d.Pool, d.Disk, d.Seed, d.Network = s+"n", s+"p", s+"d", s+"s", s+"w"
		d.Metadata.Class, d.Metadata.Name, d.Metadata.UID, d.Metadata.ClusterID = s, s, s, s
		v := Volume{Name: s + "v", Format: "qcow2", Capacity: 1, BackingPath: "/" + s, BackingFormat: "raw"}
		holds := utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
			return r < 0x20 && !strings.ContainsRune("\t\n\r", r) || r == 0xFFFD || r == 0xFFFE || r == 0xFFFF
		})
		if !holds {
			if text, err := d.Marshal(); err == nil {
				t.Errorf("a domain was written that cannot be read back: %s", text)
			}
			if text, err := v.Marshal(); err == nil {
				t.Errorf("a volume was written that cannot be read back: %s", text)
			}
			return
		}
		roundTrip(t, d)
		got, err := ParseVolume(marshal(t, v))
		if diff := cmp.Diff(v, got); diff != "" || err != nil {
			t.Errorf("another volume is read back: %v %s", err, diff)
		}
	})
}

// TestSeedIsAVirtioDisk whatever the machine: kernels of cloud images see no CD-ROM on SATA, and pc has no SATA at all.
func TestSeedIsAVirtioDisk(t *testing.T) {
	for _, kind := range []string{"kvm", "qemu", "test"} {
		d := sample()
		d.Type = kind
		text := marshal(t, d)
		var x domainXML
		if err := xml.Unmarshal([]byte(text), &x); err != nil {
			t.Fatal(err)
		}
		if len(x.Devices.Disks) != 2 {
			t.Fatalf("%d disks", len(x.Devices.Disks))
		}
		for i, disk := range x.Devices.Disks {
			if disk.Type != "volume" || disk.Device != "disk" || disk.Target.Bus != "virtio" {
				t.Errorf("disk %d of type %s is %+v", i, kind, disk)
			}
		}
		seed := x.Devices.Disks[1]
		if seed.Source.Volume != d.Seed || seed.Driver.Type != "raw" || seed.ReadOnly == nil {
			t.Errorf("the seed of type %s is %+v", kind, seed)
		}
		for _, never := range []string{"cdrom", "sata", "machine=", "bus=\"ide\"", "bus=\"scsi\""} {
			if strings.Contains(text, never) {
				t.Errorf("%q stands in %s", never, text)
			}
		}
	}
}

// TestMetadataOfOthersIsNobodys: only what beyond doubt is ours may ever be touched, and nothing hides other machines.
func TestMetadataOfOthersIsNobodys(t *testing.T) {
	ours := marshal(t, sample())
	owner := ours[strings.Index(ours, "<owner") : strings.Index(ours, "</owner>")+len("</owner>")]
	for name, text := range map[string]string{
		"none":              strings.Replace(ours, owner, "", 1),
		"twice":             strings.Replace(ours, owner, owner+owner, 1),
		"of two providers":  strings.Replace(ours, owner, owner+strings.Replace(owner, "kvm2", "kvm", 1), 1),
		"without a time":    strings.Replace(ours, "2026-01-02T03:04:05.6789Z", "yesterday", 1),
		"foreign namespace": strings.Replace(ours, "https://crawl.example.com/libvirt/kvm2", "https://example.org/kvm2", 1),
		"no provider":       strings.Replace(ours, "libvirt/kvm2", "libvirt/", 1),
		"other element":     strings.ReplaceAll(ours, "owner", "other"),
		"a copied machine":  strings.Replace(ours, "<uuid>6ba7b810", "<uuid>7ba7b810", 1),
	} {
		t.Run(name, func(t *testing.T) {
			if text == ours {
				t.Fatal("nothing was changed")
			}
			d, err := ParseDomain(text)
			if err != nil || d.Metadata != (Metadata{}) || d.Name != sample().Name {
				t.Errorf("it is read as %+v, %v", d, err)
			}
		})
	}
	beside := strings.Replace(ours, owner, `<app xmlns="https://example.org/x"><class>theirs</class></app>`+owner, 1)
	if d, err := ParseDomain(beside); err != nil || d.Metadata != sample().Metadata {
		t.Errorf("beside a foreign element: %+v, %v", d.Metadata, err)
	}
}

// TestParseDomainOfOthers: machines that were made by others have other disks and networks, or none.
func TestParseDomainOfOthers(t *testing.T) {
	for _, text := range []string{
		`<domain type='kvm'><name>x</name><uuid>u</uuid></domain>`,
		`<domain type='lxc' id='7'><name>x</name><uuid>u</uuid><memory>1024</memory><vcpu placement='static'> 4 </vcpu><devices><interface type='user'/><disk type='file' device='cdrom'><source file='/x'/></disk></devices></domain>`,
	} {
		if d, err := ParseDomain(text); err != nil || d.Name != "x" || d.UUID != "u" || d.Metadata != (Metadata{}) {
			t.Errorf("%+v, %v", d, err)
		}
	}
	if _, err := ParseDomain("<domain"); err == nil {
		t.Error("half a definition is read")
	}
}

func TestParseVolumeUnits(t *testing.T) {
	text := `<volume type='file'><name>b</name><key>/p/b</key><capacity unit='KiB'>4</capacity><allocation>5</allocation><physical unit='bytes'>6</physical>
		<target><path>/p/b</path><format type='qcow2'/><permissions><mode>0600</mode></permissions></target>
		<backingStore><path>/p/a</path><format type='raw'/></backingStore></volume>`
	want := Volume{Name: "b", Path: "/p/b", Format: "qcow2", BackingPath: "/p/a", BackingFormat: "raw", Capacity: 4096, Allocation: 5, Physical: 6}
	if got, err := ParseVolume(text); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestHostUUID(t *testing.T) {
	if got, err := HostUUID(`<capabilities><host><uuid>u-1</uuid><cpu><arch>x86_64</arch></cpu></host></capabilities>`); err != nil || got != "u-1" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := HostUUID("no XML"); err == nil {
		t.Error("no XML has a UUID")
	}
}

// TestV2_LibvirtAcceptsThem has libvirt's own library validate the definitions, and compares what it gives back.
func TestV2_LibvirtAcceptsThem(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs virsh")
	}
	virsh, err := exec.LookPath("virsh")
	if err != nil {
		if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
			t.Fatal(err)
		}
		t.Skip("virsh is not installed (libvirt-clients)")
	}
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("XDG_RUNTIME_DIR", dir)
	t.Setenv("XDG_CONFIG_HOME", dir)
	for _, change := range []func(*Domain){
		func(*Domain) {},
		func(d *Domain) { d.Type, d.Network, d.Bridge = "qemu", "", "br0" },
		func(d *Domain) {
			d.Metadata.Class, d.Metadata.Name, d.Metadata.UID, d.Pool, d.Network = specials, specials, specials, "a&b<c>", `q"u'o`
		},
	} {
		want := sample()
		change(&want)
		file := filepath.Join(dir, "domain.xml")
		if err := os.WriteFile(file, []byte(marshal(t, want)), 0o600); err != nil {
			t.Fatal(err)
		}
		// The driver for tests lives in the process of virsh and is gone with it, so both commands go to one.
		out, err := exec.CommandContext(t.Context(), virsh, "--quiet", "--connect", "test:///default",
			"define --validate "+file+"; dumpxml "+want.Name).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		text := string(out)
		got, err := ParseDomain(text[max(0, strings.Index(text, "<domain")):])
		if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("libvirt gives back another machine (-want +got):\n%s", diff)
		}
	}
}
