//go:build libvirt

package kvmtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/libvirtlab"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	// imageLimit is for an image on its way to a host.
	imageLimit = 5 * time.Minute
	// bootLimit is for both machines, which boot beside each other.
	bootLimit = 2 * libvirtlab.FullBootLimit
	// noticeLimit is for a class that looks at its hosts every minute, and dials one that was down after a minute at the latest.
	noticeLimit = 5 * time.Minute
)

// TestV32_V33_OperatorOnRealMachines is the life of a Proxy of each provider, beside each other on the same two hosts: it gets
// a machine, is Ready by the operator's own health check through the Squid that cloud-init configured, is leased and serves a
// page to those whom its configuration admits. Its host's daemons restart, which changes nothing. Other user data brings
// another machine; and its deletion leaves nothing but the image.
func TestV32_V33_OperatorOnRealMachines(t *testing.T) {
	w := newWorld(t)
	w.await(libvirtlab.SettleLimit, "the class is Ready, with both hosts", w.classNotReady)

	for _, m := range w.fleet {
		w.create(m.proxy)
	}
	w.await(imageLimit, "the machine is recorded on its host", func(m *member) string {
		if n := len(w.domains(m)); n != 1 {
			return fmt.Sprintf("%d machines", n)
		}
		return ""
	})
	w.await(bootLimit, "an address is known", func(m *member) string {
		w.read(m.proxy)
		if m.proxy.Status.Instance == nil || len(m.proxy.Status.Instance.Addresses) == 0 {
			return fmt.Sprintf("%+v", m.proxy.Status.Instance)
		}
		return ""
	})
	w.await(bootLimit, "Ready", w.notReady)
	for _, m := range w.fleet {
		prefix := m.host.NetworkPrefix
		if m.kind == v1alpha1.ProviderKVM {
			prefix = m.host.BridgePrefix
		}
		if addr, err := netip.ParseAddr(address(m)); err != nil || !netip.MustParsePrefix(prefix).Contains(addr) {
			t.Errorf("%s: %q, %v; want one of %s", m.kind, address(m), err, prefix)
		}
		w.serves(m)
		w.isClosed(m)
	}

	w.restartDaemons()

	before := map[*member]v1alpha1.Instance{}
	for _, m := range w.fleet {
		before[m] = *m.proxy.Status.Instance
		w.changeUserData(m)
	}
	w.await(bootLimit, "another machine is Ready", func(m *member) string {
		if missing := w.notReady(m); missing != "" {
			return missing
		}
		if m.proxy.Status.Instance.ProviderID == before[m].ProviderID {
			return "it is the machine of before"
		}
		return ""
	})
	for _, m := range w.fleet {
		if address(m) == before[m].Addresses[0] {
			t.Errorf("%s: the new machine has the address of the old one, %s", m.kind, address(m))
		}
		if got := w.domains(m); len(got) != 1 {
			t.Errorf("%s: there are %v", m.kind, got)
		}
		w.serves(m)
		// It is the changed configuration.
		if _, body, err := w.fetch(proxyURL(m), "http://10.1.2.3/", netip.Addr{}); err != nil || !strings.Contains(body, changedName) {
			t.Errorf("%s: the new machine does not call itself %s: %v\n%s", m.kind, changedName, err, body)
		}
	}

	for _, m := range w.fleet {
		if err := w.env.Client.Delete(t.Context(), m.proxy); err != nil {
			t.Fatal(err)
		}
	}
	w.await(libvirtlab.SettleLimit, "the Proxy is gone", func(m *member) string {
		if err := w.env.Client.Get(t.Context(), client.ObjectKeyFromObject(m.proxy), m.proxy); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%v, %+v", err, m.proxy.Status.Instance)
		}
		return ""
	})
	w.emptyHosts()
	for _, m := range w.fleet {
		if err := w.env.Client.Delete(t.Context(), m.class); err != nil {
			t.Fatal(err)
		}
	}
	w.await(libvirtlab.SettleLimit, "the class is gone", func(m *member) string {
		if err := w.env.Client.Get(t.Context(), client.ObjectKeyFromObject(m.class), m.class); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("%v, %v", err, m.class.Finalizers)
		}
		return ""
	})
}

// changedName is what the Squid of changed user data calls itself.
const changedName = "proxy-changed"

// changeUserData changes what the sample's Squid calls itself, where the Proxy has its user data.
func (w *world) changeUserData(m *member) {
	w.t.Helper()
	const name = "visible_hostname proxy"
	alter := func(text string) string {
		if !strings.Contains(text, name+"\n") {
			w.t.Fatalf("the sample has no line %q", name)
		}
		return strings.Replace(text, name, "visible_hostname "+changedName, 1)
	}
	if m.userData == nil {
		w.change(m.proxy, func() { m.proxy.Spec.CloudInit.Inline = alter(m.proxy.Spec.CloudInit.Inline) })
		return
	}
	key := m.proxy.Spec.CloudInit.SecretKeyRef.Key
	w.change(m.userData, func() { m.userData.Data[key] = []byte(alter(string(m.userData.Data[key]))) })
}

// restartDaemons takes libvirtd away from both hosts for as long as it takes to be noticed, and restarts sshd as well.
func (w *world) restartDaemons() {
	w.t.Helper()
	machines := map[*member]string{}
	for _, m := range w.fleet {
		machines[m] = m.host.QEMU(w.t, w.domains(m)[0])
	}
	for _, h := range w.hosts {
		h.StopLibvirtd(w.t)
	}
	w.await(noticeLimit, "the class tells that libvirtd does not answer", func(m *member) string { return w.hostsNot(m, false) })
	for _, m := range w.fleet {
		w.serves(m)
	}
	for _, h := range w.hosts {
		h.RestartSSH(w.t)
		h.StartLibvirtd(w.t)
	}
	w.await(noticeLimit, "the class is Ready again, by itself", w.classNotReady)
	for _, m := range w.fleet {
		was := m.proxy.Status.Instance
		if missing := w.notReady(m); missing != "" {
			w.t.Errorf("%s: after the restart: %s", m.kind, missing)
		}
		if m.proxy.Status.Instance.ProviderID != was.ProviderID || address(m) != was.Addresses[0] {
			w.t.Errorf("%s: %+v became %+v", m.kind, was, m.proxy.Status.Instance)
		}
		if got := w.domains(m); len(got) != 1 || m.host.QEMU(w.t, got[0]) != machines[m] {
			w.t.Errorf("%s: it is not the machine of before: %v", m.kind, got)
		}
		w.serves(m)
	}
}

// classNotReady is what keeps a class from being Ready with both hosts.
func (w *world) classNotReady(m *member) string {
	w.t.Helper()
	w.read(m.class)
	if !meta.IsStatusConditionTrue(m.class.Status.Conditions, v1alpha1.ConditionReady) {
		return fmt.Sprintf("%+v", m.class.Status.Conditions)
	}
	return w.hostsNot(m, true)
}

// hostsNot tells of a host that is not said to be reachable, or unreachable.
func (w *world) hostsNot(m *member, reachable bool) string {
	w.t.Helper()
	w.read(m.class)
	if len(m.class.Status.Hosts) != len(w.hosts) {
		return fmt.Sprintf("%d hosts", len(m.class.Status.Hosts))
	}
	for _, h := range m.class.Status.Hosts {
		if h.Reachable == nil || *h.Reachable != reachable {
			return fmt.Sprintf("%+v", h)
		}
	}
	return ""
}

// notReady is what keeps a Proxy from being usable in every respect.
func (w *world) notReady(m *member) string {
	w.t.Helper()
	w.read(m.proxy)
	for _, kind := range []string{
		v1alpha1.ConditionProvisioned, v1alpha1.ConditionUpToDate, v1alpha1.ConditionHealthy, v1alpha1.ConditionAccessRestricted, v1alpha1.ConditionReady,
	} {
		c := meta.FindStatusCondition(m.proxy.Status.Conditions, kind)
		if c == nil || c.Status != "True" || c.ObservedGeneration != m.proxy.Generation {
			return fmt.Sprintf("%s: %+v of %+v", kind, c, m.proxy.Status.Instance)
		}
	}
	if m.proxy.Status.Instance == nil || len(m.proxy.Status.Instance.Addresses) == 0 {
		return "no address"
	}
	return ""
}

func address(m *member) string { return m.proxy.Status.Instance.Addresses[0] }

func proxyURL(m *member) string {
	return fmt.Sprintf("http://%s:%d", address(m), m.proxy.Spec.Port)
}

// serves leases the Proxy over HTTP and gets a page through it, which has come by the machine.
func (w *world) serves(m *member) {
	w.t.Helper()
	status, answer, err := w.core.Call(w.t.Context(), http.MethodPost, wire.PathLeases, wire.LeaseRequest{
		Proxy: m.proxy.Name, Holder: "crawler", TTLSeconds: new(int32(60)), WaitSeconds: new(int32(20)),
	}, fmt.Sprint(time.Now().UnixNano()))
	var lease wire.Lease
	if err == nil && status == http.StatusCreated {
		err = json.Unmarshal(answer, &lease)
	}
	if err != nil || status != http.StatusCreated {
		w.t.Fatalf("%s: lease: %d %s %v", m.kind, status, answer, err)
	}
	if lease.Proxy.IP != address(m) || lease.Proxy.EgressIP != address(m) {
		w.t.Errorf("%s is at %s and was leased as %s, leaving by %s", m.kind, address(m), lease.Proxy.IP, lease.Proxy.EgressIP)
	}
	if status, body, err := w.fetch(lease.Proxy.URL, w.site, netip.Addr{}); err != nil || status != http.StatusOK || body != address(m) {
		w.t.Errorf("%s: a page through %s: %d %q %v", m.kind, lease.Proxy.URL, status, body, err)
	}
	if status, answer, err := w.core.Call(w.t.Context(), http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(lease.LeaseID), nil, ""); status != http.StatusNoContent {
		w.t.Errorf("%s: release: %d %s %v", m.kind, status, answer, err)
	}
}

// isClosed tries what the sample's configuration refuses: clients that it does not name, and targets that are not on the
// Internet.
func (w *world) isClosed(m *member) {
	w.t.Helper()
	stranger := netip.MustParseAddr(m.host.LabAddress)
	for _, try := range []struct {
		who  string
		from netip.Addr
		page string
	}{
		{"a stranger", stranger, w.site},
		{"a client that asks for a private address", netip.Addr{}, "https://" + m.host.LabAddress + "/"},
		{"a client that asks for metadata", netip.Addr{}, "http://169.254.169.254/latest/meta-data/"},
		{"a client that asks for another port", netip.Addr{}, strings.Replace(w.site, "/ip", ":22/", 1)},
	} {
		status, body, err := w.fetch(proxyURL(m), try.page, try.from)
		if status != http.StatusForbidden && (err == nil || !strings.Contains(err.Error(), "Forbidden")) {
			w.t.Errorf("%s: %s gets %d %q %v, want to be refused", m.kind, try.who, status, body, err)
		}
	}
}

// domains are those of a member, on both hosts.
func (w *world) domains(m *member) (out []string) {
	w.t.Helper()
	for _, h := range w.hosts {
		for _, name := range h.Domains(w.t) {
			if strings.Contains(name, "-"+m.proxy.Name+"-") {
				out = append(out, name)
			}
		}
	}
	return out
}

// emptyHosts checks that nothing but the images is left.
func (w *world) emptyHosts() {
	w.t.Helper()
	for _, h := range w.hosts {
		files := slices.DeleteFunc(h.Files(w.t), func(name string) bool {
			return strings.HasPrefix(name, "kvm-base-debian-12-") || strings.HasPrefix(name, "kvm2-base-debian-12-")
		})
		if domains := h.Domains(w.t); len(domains)+len(files) > 0 {
			w.t.Errorf("%s still has the machines %v and the files %v", h.Name, domains, files)
		}
	}
}
