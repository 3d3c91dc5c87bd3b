package fleettest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirtcheck"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// bothTypes runs a test for each of the two types, on so many hosts, with managers that run.
func bothTypes(t *testing.T, hosts int, test func(*testing.T, *bed)) {
	t.Helper()
	for name, factory := range map[string]func() *libvirt.Factory{"kvm": kvm.NewFactory, "kvm2": kvm2.NewFactory} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, factory(), hosts)
			b.start()
			test(t, b)
		})
	}
}

// says waits until a condition of an object has a status, a reason, "" for any, and a text in its message.
func (b *bed) says(o client.Object, conditions func() []metav1.Condition, of string, status metav1.ConditionStatus, reason, text string) {
	b.t.Helper()
	var last *metav1.Condition
	defer func() {
		if b.t.Failed() {
			b.t.Logf("%s: %s is %+v", o.GetName(), of, last)
		}
	}()
	b.eventually(fmt.Sprintf("%s: %s is %s, %s, %q", o.GetName(), of, status, reason, text), func() bool {
		b.must(b.env.Client.Get(b.t.Context(), client.ObjectKeyFromObject(o), o))
		last = meta.FindStatusCondition(conditions(), of)
		return last != nil && last.Status == status && (reason == "" || last.Reason == reason) && strings.Contains(last.Message, text)
	})
}

func (b *bed) proxySays(px *v1alpha1.Proxy, status metav1.ConditionStatus, reason, text string) {
	b.t.Helper()
	b.says(px, func() []metav1.Condition { return px.Status.Conditions }, v1alpha1.ConditionProvisioned, status, reason, text)
}

func (b *bed) classSays(class *v1alpha1.ProviderClass, status metav1.ConditionStatus, reason, text string) {
	b.t.Helper()
	b.says(class, func() []metav1.Condition { return class.Status.Conditions }, v1alpha1.ConditionReady, status, reason, text)
}

// make makes a Proxy of a class, changed.
func (b *bed) make(name string, class *v1alpha1.ProviderClass, change func(*v1alpha1.ProxySpec)) *v1alpha1.Proxy {
	b.t.Helper()
	px := b.proxy(name)
	px.Spec.Provider = class.Name
	change(&px.Spec)
	b.must(b.env.Client.Create(b.t.Context(), px))
	return px
}

// TestBadInputOfProxiesIsACondition that names the field, and leaves nothing on the host.
func TestBadInputOfProxiesIsACondition(t *testing.T) {
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(libvirtcheck.ImageBytes))
		_, _ = w.Write(libvirtcheck.QCOW2(libvirtcheck.ImageBytes / 2))
	}))
	t.Cleanup(broken.Close)
	bothTypes(t, 1, func(t *testing.T, b *bed) {
		images := b.classOf("-images", 1, func(c *v1alpha1.LibvirtClass) {
			c.Images = append(c.Images,
				v1alpha1.LibvirtImage{Name: "other", URL: c.Images[0].URL, SHA256: strings.Repeat("0", 64)},
				v1alpha1.LibvirtImage{Name: "short", URL: broken.URL + "/short"})
		})
		large := b.classOf("-large", 1, func(c *v1alpha1.LibvirtClass) { c.DiskSizeGb = new(int32(60000)) })
		block := "spec." + string(b.Factory.Type()) + "."
		for name, c := range map[string]struct {
			class  *v1alpha1.ProviderClass
			change func(*v1alpha1.ProxySpec)
			reason string
			says   []string
		}{
			"host":    {b.class, func(s *v1alpha1.ProxySpec) { s.Placement.Zone = "nowhere" }, v1alpha1.ReasonInvalidSpec, []string{"spec.placement.zone"}},
			"image":   {b.class, func(s *v1alpha1.ProxySpec) { s.Placement.Image = "nothing" }, v1alpha1.ReasonInvalidSpec, []string{"spec.placement.image"}},
			"type":    {b.class, func(s *v1alpha1.ProxySpec) { s.Placement.MachineType = "huge" }, v1alpha1.ReasonInvalidSpec, []string{"spec.placement.machineType"}},
			"data":    {b.class, func(s *v1alpha1.ProxySpec) { s.CloudInit.Inline = "packages: [squid]" }, v1alpha1.ReasonInvalidSpec, []string{"spec.cloudInit"}},
			"missing": {images, func(s *v1alpha1.ProxySpec) { s.Placement.Image = libvirtcheck.MissingImage }, v1alpha1.ReasonInvalidSpec, []string{"spec.provider", block + "images[gone].url"}},
			"sum":     {images, func(s *v1alpha1.ProxySpec) { s.Placement.Image = "other" }, v1alpha1.ReasonInvalidSpec, []string{"spec.provider", block + "images[other].sha256"}},
		} {
			px := b.make(name, c.class, c.change)
			for _, text := range c.says {
				b.proxySays(px, metav1.ConditionFalse, c.reason, text)
			}
		}
		// What breaks off is tried again: the machine waits, and nothing of it can be used meanwhile.
		short := b.make("short", images, func(s *v1alpha1.ProxySpec) { s.Placement.Image = "short" })
		b.proxySays(short, metav1.ConditionFalse, v1alpha1.ReasonStarting, "could not be downloaded yet")
		b.must(b.env.Client.Delete(t.Context(), short))
		// kvm2 looks beforehand; kvm is told by libvirt.
		b.Hosts[0].Frames.Decide(func(c libvirttest.Call) libvirttest.Fault {
			if c.Procedure == libvirttest.StorageVolCreateXML {
				return libvirttest.Fault{Action: libvirttest.Fail, Code: rpc.SystemError, Message: "cannot write: No space left on device"}
			}
			return libvirttest.Fault{}
		})
		b.proxySays(b.make("space", large, func(*v1alpha1.ProxySpec) {}), metav1.ConditionFalse, v1alpha1.ReasonWaitingForCapacity, "no space")
		b.eventually("nothing is left on the host", func() bool {
			left := b.volumes(b.Hosts[0])
			for _, name := range b.Hosts[0].Volumes(t, libvirttest.Pool) {
				if strings.Contains(name, "-base-") && !strings.Contains(name, "-base-"+libvirtcheck.Image+"-") {
					left = append(left, name)
				}
			}
			return len(b.machines())+len(left) == 0
		})
	})
}

// TestBadCredentialsAreACondition of the class and of its Proxies, that names the field; both go on by themselves once it was
// mended, and before that nothing is made, with the host's key unknown least of all.
func TestBadCredentialsAreACondition(t *testing.T) {
	bothTypes(t, 1, func(t *testing.T, b *bed) {
		h := b.Hosts[0]
		key, known := h.Key.Private, h.KnownHosts()
		other := libvirttest.NewKey(t, libvirttest.ED25519)
		type party struct {
			class *v1alpha1.ProviderClass
			px    *v1alpha1.Proxy
			field string
		}
		var parties []party
		mend := map[string][]byte{}
		for name, c := range map[string]struct {
			key, known []byte
			field      string
		}{
			"wrong":      {other.Private, known, "sshKeyFile"},
			"passphrase": {libvirttest.NewEncryptedKey(t).Private, known, "sshKeyFile"},
			"garbage":    {[]byte("x"), known, "sshKeyFile"},
			"no-file":    {nil, known, "sshKeyFile"},
			"no-known":   {key, nil, "knownHostsFile"},
			"mismatch":   {key, libvirttest.KnownHosts(h.Link.Address(), other), "knownHostsFile"},
		} {
			for file, data := range map[string][]byte{"key-" + name: c.key, "known-" + name: c.known} {
				if data != nil {
					b.WriteFile(t, file, data)
				}
			}
			mend["key-"+name], mend["known-"+name] = key, known
			class := b.classOf("-"+name, 1, func(block *v1alpha1.LibvirtClass) {
				block.SSHKeyFile, block.KnownHostsFile = libvirt.CredentialsDir+"/key-"+name, libvirt.CredentialsDir+"/known-"+name
			})
			parties = append(parties, party{class, b.make(name, class, func(*v1alpha1.ProxySpec) {}), c.field})
		}
		for _, p := range parties {
			b.classSays(p.class, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed, p.field)
			b.proxySays(p.px, metav1.ConditionUnknown, v1alpha1.ReasonAuthFailed, p.field)
		}
		if n, left := len(b.machines()), b.volumes(h); n+len(left) > 0 {
			t.Errorf("%d machines and %v were made", n, left)
		}
		for file, data := range mend {
			b.WriteFile(t, file, data)
		}
		for _, p := range parties {
			b.classSays(p.class, metav1.ConditionTrue, v1alpha1.ReasonReachable, "")
			b.says(p.px, func() []metav1.Condition { return p.px.Status.Conditions }, v1alpha1.ConditionProvisioned, metav1.ConditionTrue, "", "")
		}
		b.settle()
	})
}

// TestHostThatIsDownIsACondition: what runs keeps its machine, what is new goes to the other host unless it must not, and what
// waits goes on by itself; there is never a second machine.
func TestHostThatIsDownIsACondition(t *testing.T) {
	bothTypes(t, 2, func(t *testing.T, b *bed) {
		onFirst := func(s *v1alpha1.ProxySpec) { s.Placement.Zone = b.Hosts[0].Name }
		old := b.make("old", b.class, onFirst)
		b.settle()
		b.must(b.env.Client.Get(t.Context(), client.ObjectKeyFromObject(old), old))
		before := old.Status.Instance.ProviderID
		b.Hosts[0].SSHD.Kill()
		b.Hosts[0].Link.Cut()
		b.classReaches(false)
		// The class as a whole works.
		b.classSays(b.class, metav1.ConditionTrue, v1alpha1.ReasonReachable, "")
		b.proxySays(b.make("there", b.class, onFirst), metav1.ConditionUnknown, v1alpha1.ReasonProviderUnreachable, "cannot be reached")
		for _, name := range []string{"one", "two"} {
			px := b.make(name, b.class, func(*v1alpha1.ProxySpec) {})
			b.proxySays(px, metav1.ConditionTrue, v1alpha1.ReasonRunning, "")
			b.must(b.env.Client.Get(t.Context(), client.ObjectKeyFromObject(px), px))
			if px.Status.Instance.Zone != b.Hosts[1].Name {
				t.Errorf("%s is on %s", name, px.Status.Instance.Zone)
			}
		}
		b.Hosts[0].SSHD.Start(t)
		b.classReaches(true)
		b.settle()
		b.must(b.env.Client.Get(t.Context(), client.ObjectKeyFromObject(old), old))
		if old.Status.Instance.ProviderID != before {
			t.Errorf("the old one was %s and is %s", before, old.Status.Instance.ProviderID)
		}
	})
}

// classReaches waits for what the class says of its first host. A class that is changed is looked at, which would take a minute
// otherwise.
func (b *bed) classReaches(want bool) {
	b.t.Helper()
	looks := 0
	b.eventually(fmt.Sprintf("the class says that its first host is reached: %v", want), func() bool {
		b.must(b.env.Client.Get(b.t.Context(), client.ObjectKeyFromObject(b.class), b.class))
		if looks++; looks%300 == 10 {
			patch := client.MergeFrom(b.class.DeepCopy())
			b.class.Spec.ProvisionTimeoutSeconds = new(int32(1000 + looks))
			b.must(b.env.Client.Patch(b.t.Context(), b.class, patch))
		}
		for _, h := range b.class.Status.Hosts {
			if h.Name == b.Hosts[0].Name {
				return h.Reachable != nil && *h.Reachable == want && (want || h.Reason == v1alpha1.ReasonUnreachable)
			}
		}
		return false
	})
}
