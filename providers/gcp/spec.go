package gcp

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// Fields of a Proxy that errors name.
const (
	fieldZone        = "spec.placement.zone"
	fieldMachineType = "spec.placement.machineType"
	fieldImage       = "spec.placement.image"
	fieldCloudInit   = "spec.cloudInit"
	// fieldClass is how the class is named in errors about a Proxy.
	fieldClass = "spec.provider"
)

// MaxUserData is how much user data a VM takes, in bytes: that of one metadata value.
const MaxUserData = 262144

// Metadata keys of Compute Engine's images. cloud-init reads the first, Google's guest agent the second.
const (
	keyUserData      = "user-data"
	keyStartupScript = "startup-script"
)

// imagePath is an image or the newest one of a family. A family without a project is one of the class's project.
var imagePath = regexp.MustCompile(`^(projects/([a-z][-a-z0-9.]{0,40}[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]/)?global/images/(family/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)

// imageURL is what may stand before it.
var imageURL = regexp.MustCompile(`^https://(www|compute)\.googleapis\.com/compute/(v1|beta)/`)

// ValidateSpec implements providers.Provider.
func (p *Provider) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	placement := v1alpha1.Placement{}
	if spec.Placement != nil {
		placement = *spec.Placement
	}
	switch {
	case placement.MachineType == "":
		return providers.InvalidField(fieldMachineType, "is required by a class of type gcp, for example e2-micro")
	case !typePattern.MatchString(placement.MachineType):
		return providers.InvalidField(fieldMachineType, "must be the name of a machine type such as e2-micro")
	case placement.Image == "":
		return providers.InvalidField(fieldImage, "is required by a class of type gcp, for example projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts-amd64")
	case !imagePath.MatchString(imageOf(placement.Image)):
		return providers.InvalidField(fieldImage, "must be projects/PROJECT/global/images/NAME or projects/PROJECT/global/images/family/FAMILY")
	case placement.Zone == "" && len(p.zones) == 0:
		return providers.InvalidField(fieldZone, "is required by this class, which lists no zones")
	case placement.Zone != "" && !zonePattern.MatchString(placement.Zone):
		return providers.InvalidField(fieldZone, "must be the name of a zone such as europe-west3-a")
	}
	if spec.CloudInit != nil {
		return checkUserData([]byte(spec.CloudInit.Inline))
	}
	return nil
}

// checkUserData finds what cannot be a metadata value.
func checkUserData(data []byte) error {
	switch {
	case len(data) > MaxUserData:
		return providers.InvalidField(fieldCloudInit, "must not be longer than 262144 bytes, the limit of a metadata value")
	case !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0:
		return providers.InvalidField(fieldCloudInit, "must be text in UTF-8: a metadata value holds nothing else")
	}
	return nil
}

// userDataKey is the metadata key for user data. Scripts go to the guest agent, which images without cloud-init have too.
func userDataKey(data []byte) string {
	if bytes.HasPrefix(data, []byte("#!")) {
		return keyStartupScript
	}
	return keyUserData
}

// imageOf is an image from its project on.
func imageOf(image string) string { return imageURL.ReplaceAllString(image, "") }

// Place implements providers.Provider: the zone that the Proxy names, else one of the class's in which nothing has come to
// nothing lately.
func (p *Provider) Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
	machineType := ""
	if spec.Placement != nil {
		if spec.Placement.Zone != "" {
			return spec.Placement.Zone, nil
		}
		machineType = spec.Placement.MachineType
	}
	if len(p.zones) == 0 {
		return "", providers.InvalidField(fieldZone, "is required by this class, which lists no zones")
	}
	open := slices.DeleteFunc(slices.Clone(p.zones), func(zone string) bool { return p.book.closed(zone, machineType) })
	if len(open) == 0 {
		if len(tried) > 0 && slices.Contains(p.zones, tried[len(tried)-1]) {
			// There the operator waits for its turn; another zone would be tried at once.
			return tried[len(tried)-1], nil
		}
		open = p.zones
	}
	return providers.Spread(owner, open, tried), nil
}

// lastPart is the name at the end of a path or URL.
func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
