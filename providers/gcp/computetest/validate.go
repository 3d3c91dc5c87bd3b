package computetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Limits of the discovery document, and for labels of Google's documentation.
const (
	maxLabels        = 64
	maxMetadataValue = 262144
	maxMetadata      = 512 * 1024
	minDiskGB        = 10

	labelKey    = `[\p{Ll}\p{Lo}][\p{Ll}\p{Lo}\p{N}_-]{0,62}`
	labelValue  = `[\p{Ll}\p{Lo}\p{N}_-]{0,63}`
	tagPattern  = `[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?`
	namePattern = `[-_.a-zA-Z0-9]+`
)

// validate looks at what the types of the discovery document do not say.
func (s *Server) validate(c *call) *ErrorAnswer {
	for _, look := range []func(*call) *ErrorAnswer{s.validMachineType, validLabels, validTags, validMetadata, s.validDisks, s.validNetworks, validScheduling, validServiceAccounts} {
		if refused := look(c); refused != nil {
			return refused
		}
	}
	return nil
}

// lacks says whether SetMissing took something away.
func (s *Server) lacks(path string) bool {
	for resource, missing := range s.missing {
		if missing && (path == resource || strings.HasSuffix(path, "/"+resource)) {
			return true
		}
	}
	return false
}

const malformed = "The URL is malformed."

func (s *Server) validMachineType(c *call) *ErrorAnswer {
	const field = "resource.machineType"
	value := text(c.body["machineType"])
	if value == "" {
		return &ErrorAnswer{Status: 400, Reason: "required", Message: "Required field 'resource.machineType' not specified"}
	}
	path := strings.TrimPrefix(relative(value), "projects/"+c.Project+"/")
	if !fits(`zones/`+namePattern+`/machineTypes/`+namePattern, path) {
		return Invalid(field, value, malformed)
	}
	parts := strings.Split(path, "/")
	if parts[1] != c.Zone {
		return Invalid(field, value, fmt.Sprintf("The machine type is in zone '%s', the instance in '%s'.", parts[1], c.Zone))
	}
	if s.lacks(path) {
		return Invalid(field, value, fmt.Sprintf("Machine type with name '%s' does not exist in zone '%s'.", parts[3], c.Zone))
	}
	return nil
}

func validLabels(c *call) *ErrorAnswer {
	labels, _ := c.body["labels"].(obj)
	if len(labels) > maxLabels {
		return Invalid("resource.labels", "", fmt.Sprintf("The number of labels must not exceed %d.", maxLabels))
	}
	for k, v := range labels {
		if !fits(labelKey, k) {
			return Invalid("resource.labels", k, fmt.Sprintf("Label key '%s' violates format constraints.", k))
		}
		if !fits(labelValue, text(v)) {
			return Invalid("resource.labels", text(v), fmt.Sprintf("Label value '%s' violates format constraints.", text(v)))
		}
	}
	return nil
}

func validTags(c *call) *ErrorAnswer {
	tags, _ := c.body["tags"].(obj)
	items, _ := tags["items"].([]any)
	for i, t := range items {
		if !fits(tagPattern, text(t)) {
			return Invalid(fmt.Sprintf("resource.tags.items[%d]", i), text(t), "Must be a match of regex '"+tagPattern+"'")
		}
	}
	return nil
}

func validMetadata(c *call) *ErrorAnswer {
	metadata, _ := c.body["metadata"].(obj)
	items, _ := metadata["items"].([]any)
	size := 0
	var keys []string
	for i, it := range items {
		item, _ := it.(obj)
		key, value := text(item["key"]), text(item["value"])
		field := fmt.Sprintf("resource.metadata.items[%d]", i)
		if slices.Contains(keys, key) {
			return Invalid(field+".key", key, "Metadata has duplicate keys.")
		}
		if len(value) > maxMetadataValue {
			return Invalid(field+".value", value[:16]+"...", fmt.Sprintf("Value is too large: maximum size %d character(s); actual size %d.", maxMetadataValue, len(value)))
		}
		keys = append(keys, key)
		if size += len(key) + len(value); size > maxMetadata {
			return Invalid("resource.metadata", "", "Metadata exceeds the maximum size.")
		}
	}
	return nil
}

func (s *Server) validDisks(c *call) *ErrorAnswer {
	disks, _ := c.body["disks"].([]any)
	if len(disks) == 0 {
		return Invalid("resource.disks", "", "At least one disk is required.")
	}
	for i, d := range disks {
		disk, _ := d.(obj)
		field := fmt.Sprintf("resource.disks[%d]", i)
		params, _ := disk["initializeParams"].(obj)
		if i == 0 && disk["boot"] != true {
			return Invalid(field+".boot", "false", "The first disk must be a boot disk.")
		}
		if params == nil {
			if text(disk["source"]) == "" {
				return Invalid(field, "", "Boot disk must have a source specified")
			}
			continue
		}
		if refused := s.validDisk(c, field+".initializeParams", params); refused != nil {
			return refused
		}
	}
	return nil
}

func (s *Server) validDisk(c *call, field string, params obj) *ErrorAnswer {
	image := text(params["sourceImage"])
	path := relative(image)
	switch {
	case image == "":
		return Invalid(field+".sourceImage", "", "Boot disk must have a source specified")
	case !fits(`(projects/`+namePattern+`(:`+namePattern+`)?/)?(global/images/(family/)?|zones/`+namePattern+`/imageFamilyViews/)`+namePattern, path):
		return Invalid(field+".sourceImage", image, malformed)
	case s.lacks(path):
		return Invalid(field+".sourceImage", image, "The referenced image resource cannot be found.")
	}
	if kind := text(params["diskType"]); kind != "" {
		path := strings.TrimPrefix(relative(kind), "projects/"+c.Project+"/")
		if !fits(`zones/`+namePattern+`/diskTypes/`+namePattern, path) {
			return Invalid(field+".diskType", kind, malformed)
		}
		if strings.Split(path, "/")[1] != c.Zone || s.lacks(path) {
			return Invalid(field+".diskType", kind, "The referenced diskType resource cannot be found.")
		}
	}
	if size := text(params["diskSizeGb"]); size != "" {
		if gb, err := strconv.Atoi(size); err != nil || gb < minDiskGB {
			return Invalid(field+".diskSizeGb", size, fmt.Sprintf("Requested disk size cannot be smaller than the image size (%d GB)", minDiskGB))
		}
	}
	return nil
}

func (s *Server) validNetworks(c *call) *ErrorAnswer {
	nics, _ := c.body["networkInterfaces"].([]any)
	for i, n := range nics {
		nic, _ := n.(obj)
		field := fmt.Sprintf("resource.networkInterfaces[%d]", i)
		network, subnetwork := text(nic["network"]), text(nic["subnetwork"])
		if network != "" && !fits(`(projects/`+namePattern+`/)?global/networks/`+namePattern, relative(network)) {
			return Invalid(field+".network", network, malformed)
		}
		if subnetwork != "" && !fits(`(projects/`+namePattern+`/)?regions/`+namePattern+`/subnetworks/`+namePattern, relative(subnetwork)) {
			return Invalid(field+".subnetwork", subnetwork, malformed)
		}
		for _, reference := range []string{network, subnetwork} {
			if path := strings.TrimPrefix(absolute(reference, c.Project), service); reference != "" && s.lacks(path) {
				return NotFound(path)
			}
		}
		if subnetwork != "" && !strings.Contains(relative(subnetwork), "regions/"+regionOf(c.Zone)+"/") {
			return Invalid(field+".subnetwork", subnetwork, "The referenced subnetwork resource is in another region than the instance.")
		}
		if subnetwork == "" && slices.Contains(s.options.CustomNetworks, lastPart(network)) {
			return Invalid(field, "", "Subnetwork should be specified for custom subnetmode network")
		}
		if configs, _ := nic["accessConfigs"].([]any); len(configs) > 1 {
			return Invalid(field+".accessConfigs", "", "At most one access config is supported.")
		}
	}
	return nil
}

func validScheduling(c *call) *ErrorAnswer {
	const field = "resource.scheduling."
	scheduling, _ := c.body["scheduling"].(obj)
	model := text(scheduling["provisioningModel"])
	spot := model == "SPOT" || scheduling["preemptible"] == true
	switch {
	case scheduling["preemptible"] == true && model == "STANDARD":
		return Invalid(field+"provisioningModel", model, "Preemptible instances cannot have the STANDARD provisioning model.")
	case spot && scheduling["automaticRestart"] == true:
		return Invalid(field+"preemptible", "true", "Scheduling must have preemptible be false when AutomaticRestart is true.")
	case spot && scheduling["onHostMaintenance"] == "MIGRATE":
		return Invalid(field+"preemptible", "true", "Scheduling must have preemptible be false when OnHostMaintenance isn't TERMINATE.")
	case !spot && scheduling["instanceTerminationAction"] != nil && scheduling["maxRunDuration"] == nil && scheduling["terminationTime"] == nil:
		return Invalid(field+"instanceTerminationAction", text(scheduling["instanceTerminationAction"]), "You cannot specify a termination action for a VM instance that has the standard provisioning model (default).")
	case !spot && scheduling["maxRunDuration"] != nil && scheduling["instanceTerminationAction"] == nil:
		return Invalid(field+"instanceTerminationAction", "", "A termination action is required with a maximum run duration.")
	}
	return nil
}

func validServiceAccounts(c *call) *ErrorAnswer {
	accounts, _ := c.body["serviceAccounts"].([]any)
	if len(accounts) > 1 {
		return Invalid("resource.serviceAccounts", "", "At most one service account is supported.")
	}
	for i, a := range accounts {
		account, _ := a.(obj)
		field := fmt.Sprintf("resource.serviceAccounts[%d]", i)
		if email := text(account["email"]); email != "default" && !strings.Contains(email, "@") {
			return Invalid(field+".email", email, "The email address is malformed.")
		}
		if scopes, _ := account["scopes"].([]any); len(scopes) == 0 {
			return Invalid(field+".scopes", "", "You must specify at least one scope.")
		}
	}
	return nil
}
