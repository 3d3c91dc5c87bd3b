package gcp

import (
	"strings"

	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/google/uuid"

	"crawl.example.com/egress-proxies-operator/providers"
)

// scopeCloudPlatform is the scope of a VM's service account: what it may do is said by its roles.
const scopeCloudPlatform = "https://www.googleapis.com/auth/cloud-platform"

// requestSpace is the name space of the idempotency keys of this provider; any UUID that is never changed will do.
var requestSpace = uuid.MustParse("3f0c1c5e-6d0b-5a43-9a6e-1f0a54c1d7b2")

// newInsert makes the request for a VM. Booleans that matter are said, since an absent one means something else for each
// kind of VM.
func newInsert(s settings, req providers.CreateRequest) *computepb.InsertInstanceRequest {
	zone, placement := "zones/"+req.Zone, req.Spec.Placement
	disk := &computepb.AttachedDiskInitializeParams{
		SourceImage: new(imageOf(placement.Image)),
		DiskSizeGb:  new(s.diskSizeGb),
	}
	if s.diskType != "" {
		disk.DiskType = new(zone + "/diskTypes/" + s.diskType)
	}
	insert := &computepb.InsertInstanceRequest{Project: s.project, Zone: req.Zone}
	if req.Attempt != "" {
		insert.RequestId = new(requestID(s.project, req))
		disk.DiskName = new(diskName(req.Name, insert.GetRequestId()))
	}
	labels := markOf(s.class, req).labels(req.Labels)
	disk.Labels = labels
	vm := &computepb.Instance{
		Name:        new(req.Name),
		Description: new("Egress proxy of " + req.Owner.Namespace + "/" + req.Owner.Name),
		MachineType: new(zone + "/machineTypes/" + placement.MachineType),
		Labels:      labels,
		Disks: []*computepb.AttachedDisk{{
			Boot: new(true), AutoDelete: new(true), InitializeParams: disk,
		}},
		NetworkInterfaces:  []*computepb.NetworkInterface{networkInterface(s, req.Zone)},
		Tags:               &computepb.Tags{Items: []string{s.networkTag}},
		Metadata:           metadataOf(req.UserData),
		Scheduling:         scheduling(s.spot),
		CanIpForward:       new(false),
		DeletionProtection: new(false),
	}
	if s.serviceAccount != "" {
		vm.ServiceAccounts = []*computepb.ServiceAccount{{Email: new(s.serviceAccount), Scopes: []string{scopeCloudPlatform}}}
	}
	insert.InstanceResource = vm
	return insert
}

// diskName is the name of the boot disk, another one for each attempt. By default it would have the VM's name, and where a
// disk of that name was left over the VM would start from that, with whatever is on it.
func diskName(vm, key string) string {
	const kept, suffix = 54, 8
	return strings.TrimRight(vm[:min(len(vm), kept)], "-") + "-" + key[:suffix]
}

// requestID is the idempotency key of an attempt. Compute Engine answers the same operation to the same key, a failed one
// too, so that each attempt needs its own.
func requestID(project string, req providers.CreateRequest) string {
	return uuid.NewSHA1(requestSpace, []byte(project+"/"+req.Zone+"/"+req.Name+"/"+req.Attempt)).String()
}

func networkInterface(s settings, zone string) *computepb.NetworkInterface {
	access := &computepb.AccessConfig{Name: new("External NAT"), Type: new("ONE_TO_ONE_NAT")}
	if s.networkTier != "" {
		access.NetworkTier = new(s.networkTier)
	}
	nic := &computepb.NetworkInterface{AccessConfigs: []*computepb.AccessConfig{access}}
	if network := s.networkOf(); network != "" {
		nic.Network = new(network)
	}
	if subnetwork := s.subnetworkOf(zone); subnetwork != "" {
		nic.Subnetwork = new(subnetwork)
	}
	return nic
}

// metadataOf closes what a proxy does not need: the project's SSH keys and the serial console.
func metadataOf(userData []byte) *computepb.Metadata {
	items := []*computepb.Items{
		{Key: new("block-project-ssh-keys"), Value: new("TRUE")},
		{Key: new("serial-port-enable"), Value: new("FALSE")},
	}
	if len(userData) > 0 {
		items = append(items, &computepb.Items{Key: new(userDataKey(userData)), Value: new(string(userData))})
	}
	return &computepb.Metadata{Items: items}
}

// scheduling of a SPOT VM deletes it when it is preempted: a stopped one would hold its name, its disk and its quota. A
// termination action is refused for any other VM.
func scheduling(spot bool) *computepb.Scheduling {
	if !spot {
		return &computepb.Scheduling{ProvisioningModel: new(modelStandard), AutomaticRestart: new(true)}
	}
	return &computepb.Scheduling{
		ProvisioningModel:         new(modelSpot),
		InstanceTerminationAction: new("DELETE"),
		AutomaticRestart:          new(false),
		OnHostMaintenance:         new("TERMINATE"),
	}
}
