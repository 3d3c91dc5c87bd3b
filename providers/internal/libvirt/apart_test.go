package libvirt_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// TestV13_TypesAndClustersShareAHostAndSeeTheirOwnOnly: kvm, kvm2 and another cluster have machines on one host; each lists
// its own, and what another one has made is a Conflict that nobody deletes.
func TestV13_TypesAndClustersShareAHostAndSeeTheirOwnOnly(t *testing.T) {
	b := newBed(t, kvm.NewFactory, 1)
	second := kvm2.NewFactory()
	second.Root = b.Factory.Root
	class := b.Class("a", 1)
	class.Spec.Type, class.Spec.KVM2, class.Spec.KVM = v1alpha1.ProviderKVM2, class.Spec.KVM, nil
	parties := map[string]*bed{
		"kvm":             b,
		"kvm2":            {Bed: b.Bed, t: t, clock: b.clock, Provider: b.open(second, cluster, class)},
		"another cluster": {Bed: b.Bed, t: t, clock: b.clock, Provider: b.open(b.Factory, "other", b.Class("a", 1))},
	}
	made := map[string]providers.CreateRequest{}
	for name, p := range parties {
		req := p.request(strings.ReplaceAll(name, " ", "-"))
		if name == "another cluster" {
			req.Owner.ClusterID = "other"
		}
		made[name] = req
		p.settle(req)
	}
	for name, p := range parties {
		list, err := p.List(t.Context())
		b.must(err)
		if len(list) != 1 || list[0].Name != made[name].Name {
			t.Errorf("%s lists %+v", name, list)
		}
		for other, req := range made {
			if other == name {
				continue
			}
			if err := p.Delete(t.Context(), refOf(req)); providers.ReasonOf(err) != providers.Conflict {
				t.Errorf("%s deletes what %s has made: %v", name, other, err)
			}
			mine := p.request("x")
			mine.Name = req.Name
			if _, err := p.Create(t.Context(), mine); providers.ReasonOf(err) != providers.Conflict {
				t.Errorf("%s creates under a name of %s: %v", name, other, err)
			}
			if domains, volumes := b.traces(b.Hosts[0], req.Name); len(domains) != 1 || len(volumes) != 2 {
				t.Fatalf("%s has lost %v %v to %s", other, domains, volumes, name)
			}
		}
	}
}

// TestV14_CollectionSparesBases: what the orphan collection sees are machines, with the moment they were made; base images
// and their markers are not among them, and stay when the last machine goes.
func TestV14_CollectionSparesBases(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		req := b.request("px")
		before := b.clock.Now()
		b.settle(req)
		bases := func() (n int) {
			for _, name := range b.volumes(b.Hosts[0]) {
				if strings.HasPrefix(name, string(b.Factory.Type())+"-base-") {
					n++
				}
			}
			return n
		}
		if n := bases(); n != 2 {
			t.Fatalf("%d volumes of a base, want it and its marker: %v", n, b.volumes(b.Hosts[0]))
		}
		list, err := b.List(t.Context())
		b.must(err)
		if len(list) != 1 || list[0].Owner != req.Owner || list[0].CreatedAt.Before(before.Add(-time.Second)) || list[0].CreatedAt.After(b.clock.Now()) {
			t.Errorf("the list is %+v", list)
		}
		b.remove(req)
		if n := bases(); n != 2 {
			t.Errorf("%d volumes of a base are left", n)
		}
	})
}

// TestV27_KvmAnswersWhenTheMachineRuns: its Create returns after the start; one whose context ends before goes on, and the
// next call finds what it has made. kvm2 answers as soon as the machine is recorded.
func TestV27_KvmAnswersWhenTheMachineRuns(t *testing.T) {
	b := newBed(t, kvm.NewFactory, 1)
	b.settle(b.request("first"))
	started := func(name string) bool {
		d, err := b.Hosts[0].Conn().DomainLookupByName(t.Context(), name)
		return err == nil && d.ID >= 0
	}
	req := b.request("px")
	if _, err := b.Create(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if !started(req.Name) {
		t.Error("Create has returned before the machine was started")
	}

	// The start is slow, and the caller does not wait for it.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	release := make(chan struct{})
	b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
		if c.Procedure == libvirttest.DomainCreate {
			cancel()
			<-release
		}
		return libvirttest.Fault{}
	})
	slow := b.request("slow")
	if _, err := b.Create(ctx, slow); providers.ReasonOf(err) != providers.Unavailable {
		t.Errorf("a wait that was cut off: %v, want Unavailable", err)
	}
	close(release)
	b.whole()
	if _, err := b.Create(t.Context(), slow); !providers.IsAlreadyExists(err) {
		t.Errorf("the next call: %v, want AlreadyExists", err)
	}
	first := b.settle(slow)
	if domains, volumes := b.traces(b.Hosts[0], slow.Name); len(domains) != 1 || len(volumes) != 2 || !started(slow.Name) {
		t.Errorf("domains %v, volumes %v of %+v", domains, volumes, first)
	}
}

// TestNamesWithSpecialsReachTheHostAsTheyAre: XML and YAML specials in names of Proxies, namespaces and hosts' user data.
func TestNamesWithSpecialsReachTheHostAsTheyAre(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		req := b.request("px")
		req.Owner.Name, req.Owner.Namespace = `a<b>&"c'`, "]]>: {}"
		req.UserData = []byte("#cloud-config\nruncmd: [\"echo '<&>' \\\"\"]\n\x00\xff")
		i := b.settle(req)
		if i.Owner != req.Owner || i.Hash != req.Hash {
			t.Errorf("got %+v, want %+v", i.Owner, req.Owner)
		}
		b.remove(req)
	})
}

// TestLateVolumesAreTakenAway: a volume that appears after its machine was removed, because its call was given up and carried
// out late, goes with the next look at the host.
func TestLateVolumesAreTakenAway(t *testing.T) {
	bothTypes(t, func(t *testing.T, factory func() *libvirt.Factory) {
		b := newBed(t, factory, 1)
		b.settle(b.request("first"))
		req := b.request("px")
		b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
			if c.Procedure == libvirttest.StorageVolCreateXML {
				return libvirttest.Fault{Action: libvirttest.CutBefore}
			}
			return libvirttest.Fault{}
		})
		_, _ = b.Create(t.Context(), req)
		var uuid string
		b.eventually("the build has failed", func() bool {
			i, err := b.Get(t.Context(), refOf(req))
			uuid = i.ID
			return err == nil && i.State == providers.StateFailed
		})
		b.whole()
		b.remove(req)
		conn := b.Hosts[0].Conn()
		pool, err := conn.PoolLookupByName(t.Context(), libvirttest.Pool)
		b.must(err)
		text, err := virtxml.Volume{Name: req.Name + "-" + uuid + ".qcow2", Format: "qcow2", Capacity: 1 << 20}.Marshal()
		b.must(err)
		_, err = conn.VolumeCreate(t.Context(), pool, text)
		b.must(err)
		b.must(b.Check(t.Context()))
		if _, err := conn.VolumeLookup(t.Context(), pool, req.Name+"-"+uuid+".qcow2"); rpc.CodeOf(err) != rpc.NoVolume {
			t.Errorf("it is still there: %v", err)
		}
	})
}

// TestV1_BlockIsCheckedAlike: what one type refuses the other refuses, by the same field of its own block.
func TestV1_BlockIsCheckedAlike(t *testing.T) {
	bad := map[string]func(*v1alpha1.LibvirtClass){
		"sshKeyFile":             func(c *v1alpha1.LibvirtClass) { c.SSHKeyFile = "/etc/proxy-operator/kvm/../../shadow" },
		"sshSecretRef":           func(c *v1alpha1.LibvirtClass) { c.SSHSecretRef = &v1alpha1.LocalSecretRef{Name: "x"} },
		"knownHostsFile":         func(c *v1alpha1.LibvirtClass) { c.KnownHostsFile = "" },
		"knownHostsFile,":        func(c *v1alpha1.LibvirtClass) { c.SSHKeyFile, c.SSHSecretRef = "", &v1alpha1.LocalSecretRef{Name: "x"} },
		"images":                 func(c *v1alpha1.LibvirtClass) { c.Images = nil },
		"images[0].name":         func(c *v1alpha1.LibvirtClass) { c.Images[0].Name = "../x" },
		"images[0].url":          func(c *v1alpha1.LibvirtClass) { c.Images[0].URL = "https://user:secret@a/b" },
		"images[1].name":         func(c *v1alpha1.LibvirtClass) { c.Images[1].Name = c.Images[0].Name },
		"machineTypes":           func(c *v1alpha1.LibvirtClass) { c.MachineTypes = nil },
		"machineTypes[0].cpus":   func(c *v1alpha1.LibvirtClass) { c.MachineTypes[0].CPUs = 0 },
		"hosts":                  func(c *v1alpha1.LibvirtClass) { c.Hosts = nil },
		"hosts[0].address":       func(c *v1alpha1.LibvirtClass) { c.Hosts[0].Address = "a:22" },
		"hosts[0].user":          func(c *v1alpha1.LibvirtClass) { c.Hosts[0].User = "-oProxyCommand" },
		"hosts[0].socket":        func(c *v1alpha1.LibvirtClass) { c.Hosts[0].Socket = "run/x" },
		"hosts[0].pool":          func(c *v1alpha1.LibvirtClass) { c.Hosts[0].Pool = "<pool>" },
		"hosts[0].bridge":        func(c *v1alpha1.LibvirtClass) { c.Hosts[0].Bridge = "br 0" },
		"hosts[0].network":       func(c *v1alpha1.LibvirtClass) { c.Hosts[0].Bridge, c.Hosts[0].Network = "a", "b" },
		"vendorData":             func(c *v1alpha1.LibvirtClass) { c.VendorData = "packages: [chrony]" },
		"vendorData,":            func(c *v1alpha1.LibvirtClass) { c.VendorData, c.InstallGuestAgent = "MIME-Version: 1.0\n\n", new(true) },
		"domainType":             func(c *v1alpha1.LibvirtClass) { c.DomainType = "xen" },
		"machineTypes[0].memory": func(c *v1alpha1.LibvirtClass) { c.MachineTypes[0].Memory.Set(1) },
	}
	for name, change := range bad {
		for _, f := range []*libvirt.Factory{kvm.NewFactory(), kvm2.NewFactory()} {
			class := libvirtcheck.NewClass(f.Type(), "a")
			block := libvirtcheck.Block(class)
			if problems := f.Validate(class); len(problems) > 0 {
				t.Fatal(problems.ToAggregate())
			}
			change(block)
			problems := f.Validate(class)
			if want := "spec." + string(f.Type()) + "." + strings.TrimRight(name, ","); len(problems) != 1 || problems[0].Field != want {
				t.Errorf("%s: got %v, want one error of %s", f.Type(), problems.ToAggregate(), want)
			}
			if text := problems.ToAggregate().Error(); strings.Contains(text, "secret@") {
				t.Errorf("the error shows a password: %s", text)
			}
		}
	}
	for _, f := range []*libvirt.Factory{kvm.NewFactory(), kvm2.NewFactory()} {
		class := libvirtcheck.NewClass(f.Type(), "a")
		class.Spec.KVM, class.Spec.KVM2 = nil, nil
		if problems := f.Validate(class); len(problems) != 1 || problems[0].Field != "spec."+string(f.Type()) {
			t.Errorf("%s without its block: %v", f.Type(), problems.ToAggregate())
		}
		class = libvirtcheck.NewClass(f.Type(), "a")
		class.Spec.Exposure = &v1alpha1.Exposure{}
		if problems := f.Validate(class); len(problems) != 1 || problems[0].Field != "spec.exposure" {
			t.Errorf("%s with an exposure: %v", f.Type(), problems.ToAggregate())
		}
	}
}
