package libvirt

import (
	"maps"
	"slices"
	"strings"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/seed"
)

// Fields of a Proxy that errors name.
const (
	fieldZone        = "spec.placement.zone"
	fieldMachineType = "spec.placement.machineType"
	fieldImage       = "spec.placement.image"
	fieldCloudInit   = "spec.cloudInit"
	fieldClass       = "spec.provider"
)

// MaxUserData is how much user data a machine takes, in bytes. A seed holds more; a Secret does not.
const MaxUserData = 1 << 20

// ValidateSpec implements providers.Provider.
func (p *Provider) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	_, _, err := p.resolve(spec)
	return err
}

// resolve finds what a specification names in the class.
func (p *Provider) resolve(spec *v1alpha1.ProxySpec) (machineType, images.Image, error) {
	placement := v1alpha1.Placement{}
	if spec.Placement != nil {
		placement = *spec.Placement
	}
	none := func(err error) (machineType, images.Image, error) { return machineType{}, images.Image{}, err }
	size, known := p.machineTypes[placement.MachineType]
	if !known {
		return none(oneOf(fieldMachineType, placement.MachineType, slices.Sorted(maps.Keys(p.machineTypes))))
	}
	image, known := p.images[placement.Image]
	if !known {
		return none(oneOf(fieldImage, placement.Image, slices.Sorted(maps.Keys(p.images))))
	}
	if _, known := p.hosts[placement.Zone]; placement.Zone != "" && !known {
		return none(oneOf(fieldZone, placement.Zone, slices.Sorted(maps.Keys(p.hosts))))
	}
	if spec.CloudInit != nil {
		if err := checkUserData([]byte(spec.CloudInit.Inline)); err != nil {
			return none(err)
		}
	}
	return size, image, nil
}

// maxListed is how many names an error lists.
const maxListed = 10

// oneOf says that a field must have one of the names that the class has for it.
func oneOf(path, value string, names []string) error {
	if len(names) == 0 {
		return providers.InvalidField(path, "cannot be set: the class names none")
	}
	list := strings.Join(names[:min(len(names), maxListed)], ", ")
	if len(names) > maxListed {
		list += " and others"
	}
	if value == "" {
		return providers.InvalidField(path, "is required; this class has %s", list)
	}
	return providers.InvalidField(path, "must be one of those of the class: %s", list)
}

// ignored is what is wrong with user data or vendor data that cloud-init passes over without a word.
const ignored = "must begin with #cloud-config, #! or another mark of cloud-init's user data formats, or be a MIME message with MIME-Version: " +
	"cloud-init ignores everything else"

// checkUserData finds what a machine cannot have, or would ignore. None is right: an image may be complete.
func checkUserData(data []byte) error {
	switch {
	case len(data) > MaxUserData:
		return providers.InvalidField(fieldCloudInit, "must not be longer than 1048576 bytes")
	case len(data) > 0 && seed.Kind(data) == "":
		return providers.InvalidField(fieldCloudInit, ignored)
	}
	return nil
}
