package gcp

import (
	"strconv"
	"time"

	"cloud.google.com/go/compute/apiv1/computepb"

	"crawl.example.com/egress-proxies-operator/providers"
)

// instanceOf is what a VM says about the instance.
func (p *Provider) instanceOf(vm *computepb.Instance) providers.Instance {
	m, zone := readMark(vm.GetLabels()), lastPart(vm.GetZone())
	state, message := stateOf(vm)
	instance := providers.Instance{
		Ref: providers.Ref{
			Namespace: m.owner.Namespace, Name: vm.GetName(), Zone: zone,
			ID:         strconv.FormatUint(vm.GetId(), 10),
			ProviderID: "gce://" + p.project + "/" + zone + "/" + vm.GetName(),
		},
		Owner: m.owner, Hash: m.hash, State: state, Message: message,
	}
	if created, err := time.Parse(time.RFC3339, vm.GetCreationTimestamp()); err == nil {
		instance.CreatedAt = created
	}
	for _, nic := range vm.GetNetworkInterfaces() {
		for _, access := range nic.GetAccessConfigs() {
			if address := access.GetNatIP(); address != "" {
				instance.Addresses = append(instance.Addresses, address)
			}
		}
	}
	if vm.GetStatus() == "RUNNING" && len(instance.Addresses) == 0 {
		// Its address is the last thing that a VM gets.
		instance.State, instance.Message = providers.StatePending, "the machine runs and has no external address yet"
	}
	return instance
}

// stateOf says what a VM is doing. One that has run and is in a state that may pass, or that this program does not know, goes
// on counting as running: whether its proxy works is found by probing it. A VM that stops is on its way out, whoever stops
// it; if it then stays as a stopped one, it is replaced.
func stateOf(vm *computepb.Instance) (providers.State, string) {
	switch vm.GetStatus() {
	case "RUNNING":
		return providers.StateRunning, ""
	case "PENDING":
		return providers.StatePending, "the machine waits for capacity"
	case "PROVISIONING", "STAGING":
		return providers.StatePending, "the machine is starting"
	case "STOPPING", "PENDING_STOP", "DEPROVISIONING":
		return providers.StateTerminating, "the machine is stopping"
	case "TERMINATED", "STOPPED":
		if vm.GetScheduling().GetProvisioningModel() == modelSpot {
			return providers.StateStopped, "the machine has stopped, most likely because it was preempted"
		}
		return providers.StateStopped, "the machine has stopped"
	case "SUSPENDING", "SUSPENDED":
		return providers.StateStopped, "the machine is suspended"
	case "REPAIRING":
		return providers.StateRunning, "the machine is being repaired by Compute Engine"
	}
	return providers.StateRunning, "the machine is in a state that the operator does not know"
}
