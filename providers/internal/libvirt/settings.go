package libvirt

import (
	"net"
	"net/url"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/seed"
)

// Defaults of a class.
const (
	// DefaultPort is the TCP port of a host's SSH server.
	DefaultPort = 22
	// DefaultSocket is where libvirtd listens on a host.
	DefaultSocket = "/var/run/libvirt/libvirt-sock"
	// DefaultURI is the driver of libvirtd that machines are made with.
	DefaultURI = "qemu:///system"
	// DefaultPool is the storage pool for disks, seeds and base images.
	DefaultPool = "default"
	// DefaultNetwork is the network of a host that names neither a network nor a bridge.
	DefaultNetwork = "default"
	// DefaultDiskSizeGb is the size of a disk, in gibibytes.
	DefaultDiskSizeGb = 10
	// DefaultDomainType is hardware virtualization.
	DefaultDomainType = "kvm"
	// MinMemory is the least memory of a machine type: less boots no Linux.
	MinMemory = "64Mi"
)

const gibibyte = int64(1) << 30

// CredentialsDir is where the manager's SSH key and known hosts are mounted, from the Secret kvm-ssh. The schema admits no
// other place.
const CredentialsDir = "/etc/proxy-operator/kvm"

// What goes into definitions, URLs and file names of a host.
var (
	plainName = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
	userName  = regexp.MustCompile(`^[A-Za-z_][-A-Za-z0-9_.]*$`)
)

// machineType is a size of machine.
type machineType struct {
	cpus        int
	memoryBytes int64
}

// settings is a class's configuration with its defaults.
type settings struct {
	class             string
	keyFile           string
	knownHostsFile    string
	secret            string
	ignoreHostKey     bool
	images            map[string]images.Image
	machineTypes      map[string]machineType
	hosts             []host.Config
	diskBytes         int64
	vendorData        string
	installGuestAgent bool
	domainType        string
}

// read takes a class's settings in, with their defaults.
func (p Policy) read(class *v1alpha1.ProviderClass) (settings, field.ErrorList) {
	block, path := p.Block(class), field.NewPath("spec", string(p.Type))
	if block == nil {
		return settings{}, field.ErrorList{field.Required(path, "a class of type "+string(p.Type)+" needs it")}
	}
	s := settings{
		class: class.Name, keyFile: block.SSHKeyFile, knownHostsFile: block.KnownHostsFile,
		ignoreHostKey: ptr.Deref(block.InsecureIgnoreHostKey, false),
		diskBytes:     int64(ptr.Deref(block.DiskSizeGb, DefaultDiskSizeGb)) * gibibyte,
		vendorData:    block.VendorData, installGuestAgent: ptr.Deref(block.InstallGuestAgent, false), domainType: block.DomainType,
	}
	if s.domainType == "" {
		s.domainType = DefaultDomainType
	}
	problems := s.readCredentials(block, path)
	problems = append(problems, s.readVendorData(path)...)
	problems = append(problems, s.readImages(block, path.Child("images"))...)
	problems = append(problems, s.readMachineTypes(block, path.Child("machineTypes"))...)
	problems = append(problems, s.readHosts(block, path.Child("hosts"))...)
	if s.diskBytes <= 0 {
		problems = append(problems, field.Invalid(path.Child("diskSizeGb"), *block.DiskSizeGb, "must be at least 1"))
	}
	if s.domainType != "kvm" && s.domainType != "qemu" {
		problems = append(problems, field.NotSupported(path.Child("domainType"), s.domainType, []string{"kvm", "qemu"}))
	}
	if class.Spec.Exposure != nil {
		problems = append(problems, &field.Error{
			Type: field.ErrorTypeNotSupported, Field: "spec.exposure", BadValue: field.OmitValueType{},
			Detail: "the proxy program of a machine is configured by its image or by cloud-init, and who may reach it by the network of the host",
		})
	}
	return s, problems
}

func (s *settings) readCredentials(block *v1alpha1.LibvirtClass, path *field.Path) (problems field.ErrorList) {
	if block.SSHSecretRef != nil {
		s.secret = block.SSHSecretRef.Name
	}
	switch {
	case s.keyFile == "" && s.secret == "":
		problems = append(problems, field.Required(path.Child("sshKeyFile"), "the private key that the hosts know, or sshSecretRef"))
	case s.keyFile != "" && s.secret != "":
		problems = append(problems, field.Forbidden(path.Child("sshSecretRef"), "exactly one of sshKeyFile and sshSecretRef is allowed"))
	}
	for name, file := range map[string]string{"sshKeyFile": s.keyFile, "knownHostsFile": s.knownHostsFile} {
		if file != "" && (!strings.HasPrefix(file, CredentialsDir+"/") || strings.Contains(file, "..")) {
			problems = append(problems, field.Invalid(path.Child(name), file, "must be below "+CredentialsDir+"/"))
		}
	}
	if s.secret != "" && s.keyFile == "" && s.knownHostsFile != "" {
		problems = append(problems, field.Forbidden(path.Child("knownHostsFile"), "the Secret of sshSecretRef has the known hosts"))
	}
	if s.secret == "" && s.knownHostsFile == "" && !s.ignoreHostKey {
		problems = append(problems, field.Required(path.Child("knownHostsFile"), "the keys of the hosts, unless insecureIgnoreHostKey is set"))
	}
	return problems
}

func (s *settings) readImages(block *v1alpha1.LibvirtClass, path *field.Path) (problems field.ErrorList) {
	s.images = map[string]images.Image{}
	if len(block.Images) == 0 {
		problems = append(problems, field.Required(path, "the base images that a Proxy may name"))
	}
	for i, image := range block.Images {
		at := path.Index(i)
		if !plainName.MatchString(image.Name) {
			problems = append(problems, field.Invalid(at.Child("name"), image.Name, "must be letters, digits, hyphens, underscores and dots"))
		}
		if _, twice := s.images[image.Name]; twice {
			problems = append(problems, field.Duplicate(at.Child("name"), image.Name))
		}
		if why := badImageURL(image.URL); why != "" {
			problems = append(problems, field.Invalid(at.Child("url"), withoutPassword(image.URL), why))
		}
		s.images[image.Name] = images.Image{Name: image.Name, URL: image.URL, SHA256: image.SHA256}
	}
	return problems
}

// readVendorData checks that cloud-init takes the vendor data, alone or beside the agent's script.
func (s *settings) readVendorData(path *field.Path) field.ErrorList {
	switch kind := seed.Kind([]byte(s.vendorData)); {
	case s.vendorData == "":
		return nil
	case kind == "":
		return field.ErrorList{field.Invalid(path.Child("vendorData"), field.OmitValueType{}, ignored)}
	case kind == seed.Message && s.installGuestAgent:
		return field.ErrorList{field.Invalid(path.Child("vendorData"), field.OmitValueType{},
			"must not be a MIME message together with installGuestAgent, whose script is a part of its own: install the agent in one of the message's parts")}
	}
	return nil
}

// withoutPassword is a URL that may be shown: names, passwords and signatures in its query are left out.
func withoutPassword(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "REDACTED"
	}
	u.User, u.RawQuery, u.Fragment = nil, "", ""
	return u.String()
}

func badImageURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "is no URL"
	case u.User != nil:
		return "must not contain a password"
	case u.Scheme == "http" || u.Scheme == "https":
		if u.Host == "" {
			return "names no host"
		}
	case u.Scheme == "file":
		if u.Host != "" || !strings.HasPrefix(u.Path, "/") {
			return "must be file:///PATH, a file of the provider manager"
		}
	default:
		return "must begin with https://, http:// or file://"
	}
	return ""
}

func (s *settings) readMachineTypes(block *v1alpha1.LibvirtClass, path *field.Path) (problems field.ErrorList) {
	s.machineTypes = map[string]machineType{}
	if len(block.MachineTypes) == 0 {
		problems = append(problems, field.Required(path, "the sizes that a Proxy may name"))
	}
	least := resource.MustParse(MinMemory)
	for i, m := range block.MachineTypes {
		at := path.Index(i)
		if !plainName.MatchString(m.Name) {
			problems = append(problems, field.Invalid(at.Child("name"), m.Name, "must be letters, digits, hyphens, underscores and dots"))
		}
		if _, twice := s.machineTypes[m.Name]; twice {
			problems = append(problems, field.Duplicate(at.Child("name"), m.Name))
		}
		if m.CPUs < 1 {
			problems = append(problems, field.Invalid(at.Child("cpus"), m.CPUs, "must be at least 1"))
		}
		if m.Memory.Cmp(least) < 0 {
			problems = append(problems, field.Invalid(at.Child("memory"), m.Memory.String(), "must be at least "+MinMemory))
		}
		s.machineTypes[m.Name] = machineType{int(m.CPUs), m.Memory.Value()}
	}
	return problems
}

func (s *settings) readHosts(block *v1alpha1.LibvirtClass, path *field.Path) (problems field.ErrorList) {
	if len(block.Hosts) == 0 {
		problems = append(problems, field.Required(path, "the hypervisors"))
	}
	seen, machines := map[string]bool{}, map[machine]bool{}
	for i, h := range block.Hosts {
		at, c := path.Index(i), hostOf(h)
		if machines[machineOf(c)] {
			problems = append(problems, field.Duplicate(at.Child("address"), h.Address))
		} else {
			machines[machineOf(c)] = true
		}
		invalid := func(name, value, why string) {
			problems = append(problems, field.Invalid(at.Child(name), value, why))
		}
		if !plainName.MatchString(h.Name) {
			invalid("name", h.Name, "must be letters, digits, hyphens, underscores and dots")
		}
		if seen[h.Name] {
			problems = append(problems, field.Duplicate(at.Child("name"), h.Name))
		}
		seen[h.Name] = true
		if net.ParseIP(h.Address) == nil && !plainName.MatchString(h.Address) {
			invalid("address", h.Address, "must be an IP address or a host name, without a port")
		}
		if !userName.MatchString(h.User) {
			invalid("user", h.User, "must be the name of a user of the host")
		}
		if h.Socket != "" && (!strings.HasPrefix(h.Socket, "/") || strings.ContainsAny(h.Socket, "\x00\n")) {
			invalid("socket", h.Socket, "must be an absolute path")
		}
		if h.Bridge != "" && h.Network != "" {
			invalid("network", h.Network, "exactly one of network and bridge is allowed")
		}
		for name, value := range map[string]string{"pool": h.Pool, "bridge": h.Bridge, "network": h.Network} {
			if value != "" && !plainName.MatchString(value) {
				invalid(name, value, "must be letters, digits, hyphens, underscores and dots")
			}
		}
		s.hosts = append(s.hosts, c)
	}
	return problems
}

// hostOf is a host with its defaults.
func hostOf(h v1alpha1.LibvirtHost) host.Config {
	or := func(value, fallback string) string {
		if value == "" {
			return fallback
		}
		return value
	}
	c := host.Config{
		Name: h.Name, Address: h.Address, Port: int(h.Port), User: h.User, Socket: or(h.Socket, DefaultSocket), URI: or(h.URI, DefaultURI),
		Pool: or(h.Pool, DefaultPool), Bridge: h.Bridge, Network: h.Network,
	}
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	if c.Bridge == "" {
		c.Network = or(c.Network, DefaultNetwork)
	}
	return c
}
