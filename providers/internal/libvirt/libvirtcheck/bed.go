// Package libvirtcheck holds what the tests of the providers kvm and kvm2 share: classes on the hosts of libvirttest, a server
// of images, and the conformance suite.
package libvirtcheck

import (
	"encoding/binary"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
)

// Names in the classes of a Bed.
const (
	Image        = "debian"
	MissingImage = "gone"
	MachineType  = "small"

	keyFile        = libvirt.CredentialsDir + "/id_ed25519"
	knownHostsFile = libvirt.CredentialsDir + "/known_hosts"
)

// ImageBytes is the length of the image.
const ImageBytes = 300 << 10

// Bed is hosts, credentials and images for classes of one type.
type Bed struct {
	Factory *libvirt.Factory
	Hosts   []*libvirttest.Host
	// Downloads counts requests for the image.
	Downloads atomic.Int64

	server *httptest.Server
	mu     sync.Mutex
	broken func(http.ResponseWriter) bool
}

// New starts hosts and an image server for the time of the test, and gives the factory its credentials.
func New(t testing.TB, f *libvirt.Factory, hosts int) *Bed {
	t.Helper()
	b := &Bed{Factory: f, Hosts: libvirttest.Start(t, hosts)}
	f.Root = t.TempDir()
	b.WriteKey(t, b.Hosts[0].Key.Private)
	var known strings.Builder
	for _, h := range b.Hosts {
		h.Authorize(t, b.Hosts[0].Key.AuthorizedKey(libvirttest.SafeOptions))
		known.Write(h.KnownHosts())
	}
	b.WriteKnownHosts(t, []byte(known.String()))
	b.server = httptest.NewServer(http.HandlerFunc(b.serve))
	t.Cleanup(b.server.Close)
	return b
}

// WriteKey puts a private key where the classes expect it.
func (b *Bed) WriteKey(t testing.TB, key []byte) {
	t.Helper()
	b.write(t, keyFile, key)
}

// WriteKnownHosts puts known hosts where the classes expect them.
func (b *Bed) WriteKnownHosts(t testing.TB, known []byte) {
	t.Helper()
	b.write(t, knownHostsFile, known)
}

// WriteFile puts a file beside them and gives the path that a class names it by.
func (b *Bed) WriteFile(t testing.TB, name string, data []byte) string {
	t.Helper()
	b.write(t, libvirt.CredentialsDir+"/"+name, data)
	return libvirt.CredentialsDir + "/" + name
}

func (b *Bed) write(t testing.TB, path string, data []byte) {
	t.Helper()
	path = filepath.Join(b.Factory.Root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Break lets a function answer requests for the image; it tells whether it has. nil ends it.
func (b *Bed) Break(answer func(http.ResponseWriter) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = answer
}

func (b *Bed) serve(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/"+Image {
		http.NotFound(w, r)
		return
	}
	b.Downloads.Add(1)
	b.mu.Lock()
	broken := b.broken
	b.mu.Unlock()
	if broken != nil && broken(w) {
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(ImageBytes))
	_, _ = w.Write(QCOW2(ImageBytes))
}

// QCOW2 is the begin of an image with a disk of a gibibyte, and zeros.
func QCOW2(length int) []byte {
	data := make([]byte, length)
	copy(data, "QFI\xfb")
	binary.BigEndian.PutUint32(data[4:], 3)
	binary.BigEndian.PutUint64(data[24:], 1<<30)
	return data
}

// NewClass is a class of a type with one host that nobody reaches.
func NewClass(of v1alpha1.ProviderType, name string) *v1alpha1.ProviderClass {
	return newClass(of, name, "http://192.0.2.1", []v1alpha1.LibvirtHost{{Name: "h1", Address: "192.0.2.2", User: "somebody"}})
}

// Class of a name, on the first so many hosts.
func (b *Bed) Class(name string, hosts int) *v1alpha1.ProviderClass {
	var all []v1alpha1.LibvirtHost
	for _, h := range b.Hosts[:hosts] {
		all = append(all, v1alpha1.LibvirtHost{
			Name: h.Name, Address: h.Address, Port: int32(h.Port), User: h.User, Socket: h.Socket, URI: libvirttest.URI, Pool: libvirttest.Pool,
		})
	}
	return newClass(b.Factory.Type(), name, b.server.URL, all)
}

// Block of a class, whichever of the two types it is of.
func Block(class *v1alpha1.ProviderClass) *v1alpha1.LibvirtClass {
	if class.Spec.KVM != nil {
		return class.Spec.KVM
	}
	return class.Spec.KVM2
}

func newClass(of v1alpha1.ProviderType, name, server string, hosts []v1alpha1.LibvirtHost) *v1alpha1.ProviderClass {
	block := &v1alpha1.LibvirtClass{
		SSHKeyFile: keyFile, KnownHostsFile: knownHostsFile, Hosts: hosts,
		Images: []v1alpha1.LibvirtImage{{Name: Image, URL: server + "/" + Image}, {Name: MissingImage, URL: server + "/" + MissingImage}},
		// Small, so that fifty of them fit into the pools.
		DiskSizeGb:   new(int32(1)),
		MachineTypes: []v1alpha1.LibvirtMachineType{{Name: MachineType, CPUs: 1, Memory: resource.MustParse("128Mi")}},
	}
	class := &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
		Spec:       v1alpha1.ProviderClassSpec{Type: of},
	}
	switch of {
	case v1alpha1.ProviderKVM:
		class.Spec.KVM = block
	case v1alpha1.ProviderKVM2:
		class.Spec.KVM2 = block
	}
	return class
}

// Spec of a Proxy, changed.
func Spec(changes ...func(*v1alpha1.ProxySpec)) v1alpha1.ProxySpec {
	spec := v1alpha1.ProxySpec{ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{
		Port: 3128, Placement: &v1alpha1.Placement{MachineType: MachineType, Image: Image},
	}}
	for _, change := range changes {
		change(&spec)
	}
	return spec
}
