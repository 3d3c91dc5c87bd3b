package gcp

import (
	"cloud.google.com/go/compute/apiv1/computepb"
	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"

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
		SourceImage: proto.String(imageOf(placement.Image)),
		DiskSizeGb:  proto.Int64(s.diskSizeGb),
	}
	if s.diskType != "" {
		disk.DiskType = proto.String(zone + "/diskTypes/" + s.diskType)
	}
	labels := markOf(s.class, req).labels(req.Labels)
	disk.Labels = labels
	vm := &computepb.Instance{
		Name:        proto.String(req.Name),
		Description: proto.String("Egress proxy of " + req.Owner.Namespace + "/" + req.Owner.Name),
		MachineType: proto.String(zone + "/machineTypes/" + placement.MachineType),
		Labels:      labels,
		Disks: []*computepb.AttachedDisk{{
			Boot: proto.Bool(true), AutoDelete: proto.Bool(true), InitializeParams: disk,
		}},
		NetworkInterfaces:  []*computepb.NetworkInterface{networkInterface(s, req.Zone)},
		Tags:               &computepb.Tags{Items: []string{s.networkTag}},
		Metadata:           metadataOf(req.UserData),
		Scheduling:         scheduling(s.spot),
		CanIpForward:       proto.Bool(false),
		DeletionProtection: proto.Bool(false),
	}
	if s.serviceAccount != "" {
		vm.ServiceAccounts = []*computepb.ServiceAccount{{Email: proto.String(s.serviceAccount), Scopes: []string{scopeCloudPlatform}}}
	}
	insert := &computepb.InsertInstanceRequest{Project: s.project, Zone: req.Zone, InstanceResource: vm}
	if req.Attempt != "" {
		insert.RequestId = proto.String(requestID(s.project, req))
	}
	return insert
}

// requestID is the idempotency key of an attempt. Compute Engine answers the same operation to the same key, a failed one
// too, so that each attempt needs its own.
func requestID(project string, req providers.CreateRequest) string {
	return uuid.NewSHA1(requestSpace, []byte(project+"/"+req.Zone+"/"+req.Name+"/"+req.Attempt)).String()
}

func networkInterface(s settings, zone string) *computepb.NetworkInterface {
	access := &computepb.AccessConfig{Name: proto.String("External NAT"), Type: proto.String("ONE_TO_ONE_NAT")}
	if s.networkTier != "" {
		access.NetworkTier = proto.String(s.networkTier)
	}
	nic := &computepb.NetworkInterface{AccessConfigs: []*computepb.AccessConfig{access}}
	if network := s.networkOf(); network != "" {
		nic.Network = proto.String(network)
	}
	if subnetwork := s.subnetworkOf(zone); subnetwork != "" {
		nic.Subnetwork = proto.String(subnetwork)
	}
	return nic
}

// metadataOf closes what a proxy does not need: the project's SSH keys and the serial console.
func metadataOf(userData []byte) *computepb.Metadata {
	items := []*computepb.Items{
		{Key: proto.String("block-project-ssh-keys"), Value: proto.String("TRUE")},
		{Key: proto.String("serial-port-enable"), Value: proto.String("FALSE")},
	}
	if len(userData) > 0 {
		items = append(items, &computepb.Items{Key: proto.String(userDataKey(userData)), Value: proto.String(string(userData))})
	}
	return &computepb.Metadata{Items: items}
}

// scheduling of a SPOT VM deletes it when it is preempted: a stopped one would hold its name, its disk and its quota. A
// termination action is refused for any other VM.
func scheduling(spot bool) *computepb.Scheduling {
	if !spot {
		return &computepb.Scheduling{ProvisioningModel: proto.String(modelStandard), AutomaticRestart: proto.Bool(true)}
	}
	return &computepb.Scheduling{
		ProvisioningModel:         proto.String(modelSpot),
		InstanceTerminationAction: proto.String("DELETE"),
		AutomaticRestart:          proto.Bool(false),
		OnHostMaintenance:         proto.String("TERMINATE"),
	}
}
