package computetest

import (
	"maps"
	"strconv"
	"strings"
)

// insert accepts a VM. The same requestId gets the same operation, before anything else is looked at.
func (s *Server) insert(c *call) (obj, *ErrorAnswer) {
	if o := s.repeated(c); o != nil {
		return s.operationView(o), nil
	}
	if refused := s.validate(c); refused != nil {
		return nil, refused
	}
	path := instancePath(c.Project, c.Zone, c.Name)
	if s.vms[path] != nil {
		return nil, AlreadyExists(path)
	}
	if region := regionOf(c.Zone); s.overQuota(c.Project, region) {
		return nil, QuotaExceeded("INSTANCES", region)
	}
	s.serial++
	v := &vm{project: c.Project, zone: c.Zone, name: c.Name, id: 4000000000000000000 + s.serial, created: s.options.Clock.Now(), fails: c.operation}
	v.body = s.complete(c.body, v)
	s.vms[path] = v
	takes := s.timing.Running
	if v.fails != nil {
		takes = s.timing.Staging
	}
	o := s.operate(c, "insert", v, takes)
	s.settle() // what takes no time has happened
	return s.operationView(o), nil
}

// complete makes what a get answers out of what an insert asked.
func (s *Server) complete(asked obj, v *vm) obj {
	o := maps.Clone(asked)
	zone := service + "projects/" + v.project + "/zones/" + v.zone
	o["kind"], o["id"], o["zone"], o["selfLink"] = "compute#instance", strconv.FormatUint(v.id, 10), zone, zone+"/instances/"+v.name
	o["creationTimestamp"] = stamp(v.created)
	o["machineType"] = zone + "/machineTypes/" + lastPart(text(o["machineType"]))
	o["cpuPlatform"], o["fingerprint"], o["labelFingerprint"] = "Intel Broadwell", "q83vEjRWeJA=", "42WmSpB8rSM="
	o["startRestricted"] = false
	for _, flag := range []string{"canIpForward", "deletionProtection"} {
		if o[flag] == nil {
			o[flag] = false
		}
	}
	tags := cloned(o["tags"])
	tags["fingerprint"] = "42WmSpB8rSM="
	metadata := cloned(o["metadata"])
	metadata["kind"], metadata["fingerprint"] = "compute#metadata", "q83vEjRWeJA="
	o["tags"], o["metadata"], o["scheduling"] = tags, metadata, scheduled(cloned(o["scheduling"]))
	o["disks"], v.leftDisk = s.attached(o["disks"], v)
	o["networkInterfaces"] = s.connected(o["networkInterfaces"], v)
	return o
}

// scheduled adds the defaults.
func scheduled(asked obj) obj {
	spot := asked["provisioningModel"] == "SPOT" || asked["preemptible"] == true
	defaults := obj{"provisioningModel": "STANDARD", "automaticRestart": true, "onHostMaintenance": "MIGRATE", "preemptible": false}
	if spot {
		defaults = obj{"automaticRestart": false, "onHostMaintenance": "TERMINATE", "preemptible": true, "provisioningModel": "SPOT", "instanceTerminationAction": "STOP"}
	}
	maps.Copy(defaults, asked)
	if spot {
		defaults["preemptible"] = true
	}
	return defaults
}

// attached makes disks out of what was asked. A disk of the name that is there already is taken instead of a new one.
func (s *Server) attached(asked any, v *vm) (disks []any, left bool) {
	list, _ := asked.([]any)
	for i, d := range list {
		disk := cloned(d)
		params := cloned(disk["initializeParams"])
		delete(disk, "initializeParams")
		name := text(params["diskName"])
		if name == "" {
			name = v.name
		}
		if i > 0 {
			name += "-" + strconv.Itoa(i)
		}
		path := "projects/" + v.project + "/zones/" + v.zone + "/disks/" + name
		if source := text(disk["source"]); source != "" {
			path = relative(source)
		}
		if s.disks[path] {
			left = true
			delete(s.disks, path)
		}
		size := text(params["diskSizeGb"])
		if size == "" {
			size = "10"
		}
		defaults := obj{
			"kind": "compute#attachedDisk", "type": "PERSISTENT", "mode": "READ_WRITE", "interface": "SCSI", "deviceName": "persistent-disk-" + strconv.Itoa(i),
			"index": i, "diskSizeGb": size, "boot": false, "autoDelete": false,
		}
		maps.Copy(defaults, disk)
		defaults["source"] = service + path
		disks = append(disks, defaults)
	}
	return disks, left
}

// connected makes network interfaces out of what was asked; none is one in the default network without external address.
func (s *Server) connected(asked any, v *vm) (nics []any) {
	list, _ := asked.([]any)
	if len(list) == 0 {
		list = []any{obj{}}
	}
	region := service + "projects/" + v.project + "/regions/" + regionOf(v.zone) + "/subnetworks/"
	for i, n := range list {
		nic := cloned(n)
		network, subnetwork := text(nic["network"]), text(nic["subnetwork"])
		switch {
		case network == "" && subnetwork == "":
			network = "global/networks/default"
		case network == "":
			network = "global/networks/of-" + lastPart(subnetwork)
		}
		nic["network"] = absolute(network, v.project)
		nic["subnetwork"] = region + lastPart(network)
		if subnetwork != "" {
			nic["subnetwork"] = absolute(subnetwork, v.project)
		}
		nic["kind"], nic["name"], nic["fingerprint"] = "compute#networkInterface", "nic"+strconv.Itoa(i), "q83vEjRWeJA="
		if nic["stackType"] == nil {
			nic["stackType"] = "IPV4_ONLY"
		}
		nic["accessConfigs"] = named(nic["accessConfigs"], "External NAT", "ONE_TO_ONE_NAT")
		nic["ipv6AccessConfigs"] = named(nic["ipv6AccessConfigs"], "external-ipv6", "DIRECT_IPV6")
		for _, k := range []string{"accessConfigs", "ipv6AccessConfigs"} {
			if nic[k].([]any) == nil {
				delete(nic, k)
			}
		}
		nics = append(nics, nic)
	}
	return nics
}

// named adds the defaults of access configurations.
func named(asked any, name, typ string) (configs []any) {
	list, _ := asked.([]any)
	for _, c := range list {
		config := obj{"name": name, "type": typ, "networkTier": "PREMIUM"}
		maps.Copy(config, c.(obj))
		configs = append(configs, config)
	}
	return configs
}

// cloned is a copy of an object, empty for anything else.
func cloned(v any) obj {
	o, _ := v.(obj)
	if o == nil {
		return obj{}
	}
	return maps.Clone(o)
}

// text is a string, "" for anything else.
func text(v any) string {
	s, _ := v.(string)
	return s
}

func lastPart(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }

// relative cuts the service from a URL: projects/..., global/..., zones/... or regions/... is left.
func relative(url string) string {
	if _, after, ok := strings.Cut(url, "/compute/v1/"); ok && strings.Contains(url, "://") {
		return after
	}
	return url
}

// absolute is the URL of something that may be named from the project on.
func absolute(reference, project string) string {
	path := relative(reference)
	if !strings.HasPrefix(path, "projects/") {
		path = "projects/" + project + "/" + path
	}
	return service + path
}
