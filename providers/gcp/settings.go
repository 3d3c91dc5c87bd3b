package gcp

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Defaults of a class.
const (
	// DefaultNetwork is the VPC network of a class that names neither a network nor a subnetwork.
	DefaultNetwork = "default"
	// DefaultNetworkTag is on every VM, so that a firewall rule can select them.
	DefaultNetworkTag = "egress-proxy"
	// DefaultDiskSizeGb is the size of the boot disk, in gibibytes.
	DefaultDiskSizeGb = int32(10)
	// MinDiskSizeGb is the smallest boot disk that Compute Engine makes, in gibibytes.
	MinDiskSizeGb = int32(10)
)

// Provisioning models and network tiers of Compute Engine.
const (
	modelStandard = "STANDARD"
	modelSpot     = "SPOT"
	tierPremium   = "PREMIUM"
	tierStandard  = "STANDARD"
)

// Grammar of what goes into paths and bodies, from Compute Engine's discovery document. Everything that becomes part of a
// path is held against it, so that no value can reach another resource.
var (
	label1035      = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	zonePattern    = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?-[a-z0-9]{1,8}$`)
	typePattern    = regexp.MustCompile(`^[a-z][-a-z0-9]{0,62}$`)
	projectPattern = regexp.MustCompile(`^([a-z][-a-z0-9.]{0,40}[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]$`)
	networkPath    = regexp.MustCompile(`^projects/[^/]+/global/networks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subnetPath     = regexp.MustCompile(`^projects/[^/]+/regions/[-a-z0-9]+/subnetworks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	accountPattern = regexp.MustCompile(`^[a-z0-9][-a-z0-9.]*@[a-z0-9][-a-z0-9.]*$`)
)

// settings is a class's configuration with its defaults.
type settings struct {
	class, project      string
	network, subnetwork string
	networkTag          string
	diskSizeGb          int64
	diskType            string
	zones               []string
	spot                bool
	networkTier         string
	serviceAccount      string
}

// read takes a class's settings in, with their defaults.
func read(class *v1alpha1.ProviderClass) (settings, field.ErrorList) {
	block, path := class.Spec.GCP, field.NewPath("spec", "gcp")
	if block == nil {
		return settings{}, field.ErrorList{field.Required(path, "a class of type gcp needs it")}
	}
	s := settings{
		class: class.Name, project: block.Project, network: block.Network, subnetwork: block.Subnetwork, networkTag: block.NetworkTag,
		diskSizeGb: int64(ptr.Deref(block.DiskSizeGb, DefaultDiskSizeGb)), diskType: block.DiskType, zones: slices.Clone(block.Zones),
		spot: block.ProvisioningModel == modelSpot, networkTier: block.NetworkTier, serviceAccount: block.ServiceAccount,
	}
	if s.networkTag == "" {
		s.networkTag = DefaultNetworkTag
	}
	if s.network == "" && s.subnetwork == "" {
		s.network = DefaultNetwork
	}
	problems := s.check(path)
	problems = append(problems, oneOf(path.Child("provisioningModel"), block.ProvisioningModel, modelStandard, modelSpot)...)
	problems = append(problems, oneOf(path.Child("networkTier"), block.NetworkTier, tierPremium, tierStandard)...)
	if class.Spec.Exposure != nil {
		problems = append(problems, &field.Error{
			Type: field.ErrorTypeNotSupported, Field: "spec.exposure", BadValue: field.OmitValueType{},
			Detail: "the proxy program of a VM is configured by cloud-init, and who may reach it by firewall rules of the network",
		})
	}
	return s, problems
}

func (s settings) check(path *field.Path) field.ErrorList {
	var problems field.ErrorList
	wrong := func(name, value, why string) {
		problems = append(problems, field.Invalid(path.Child(name), value, why))
	}
	switch {
	case s.project == "":
		problems = append(problems, field.Required(path.Child("project"), "the id of the Google Cloud project"))
	case !projectPattern.MatchString(s.project):
		wrong("project", s.project, "must be the id of a project such as my-project-1, not its name or number")
	}
	if s.network != "" && !label1035.MatchString(s.network) && !networkPath.MatchString(s.network) {
		wrong("network", s.network, "must be the name of a network, or projects/PROJECT/global/networks/NAME")
	}
	if s.subnetwork != "" && !label1035.MatchString(s.subnetwork) && !subnetPath.MatchString(s.subnetwork) {
		wrong("subnetwork", s.subnetwork, "must be the name of a subnetwork, or projects/PROJECT/regions/REGION/subnetworks/NAME")
	}
	if !label1035.MatchString(s.networkTag) {
		wrong("networkTag", s.networkTag, "must be lower case letters, digits and hyphens, beginning with a letter")
	}
	if s.diskSizeGb < int64(MinDiskSizeGb) {
		problems = append(problems, field.Invalid(path.Child("diskSizeGb"), s.diskSizeGb, "must be at least 10, the smallest boot disk"))
	}
	if s.diskType != "" && !typePattern.MatchString(s.diskType) {
		wrong("diskType", s.diskType, "must be the name of a disk type such as pd-balanced")
	}
	for i, zone := range s.zones {
		if !zonePattern.MatchString(zone) {
			problems = append(problems, field.Invalid(path.Child("zones").Index(i), zone, "must be the name of a zone such as europe-west3-a"))
		}
	}
	if s.serviceAccount != "" && s.serviceAccount != "default" && !accountPattern.MatchString(s.serviceAccount) {
		wrong("serviceAccount", s.serviceAccount, "must be the e-mail address of a service account")
	}
	return problems
}

func oneOf(path *field.Path, value string, known ...string) field.ErrorList {
	if value == "" || slices.Contains(known, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, known)}
}

// networkOf is the network as Compute Engine takes it; "" leaves it to the subnetwork.
func (s settings) networkOf() string {
	if s.network == "" || strings.Contains(s.network, "/") {
		return s.network
	}
	return "projects/" + s.project + "/global/networks/" + s.network
}

// subnetworkOf is the subnetwork in the region of a zone; "" leaves it to the network.
func (s settings) subnetworkOf(zone string) string {
	if s.subnetwork == "" || strings.Contains(s.subnetwork, "/") {
		return s.subnetwork
	}
	return "projects/" + s.project + "/regions/" + regionOf(zone) + "/subnetworks/" + s.subnetwork
}

// regionOf is the region of a zone: europe-west3 of europe-west3-a.
func regionOf(zone string) string {
	if i := strings.LastIndexByte(zone, '-'); i > 0 {
		return zone[:i]
	}
	return zone
}

// safeEndpoint tells whether tokens may be sent to an endpoint: by https, or without leaving the machine.
func safeEndpoint(endpoint string) bool {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.User != nil {
		return false
	}
	if u.Scheme == "https" {
		return true
	}
	ip := net.ParseIP(u.Hostname())
	return u.Scheme == "http" && (u.Hostname() == "localhost" || (ip != nil && ip.IsLoopback()))
}
