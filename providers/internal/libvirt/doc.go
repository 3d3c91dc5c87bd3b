// Package libvirt is what the providers kvm and kvm2 share: virtual machines on hypervisors of one's own, reached over SSH.
// The two differ in their Policy only.
//
// An instance is a libvirt domain with a thin disk on a base image and a seed for cloud-init. Of a Proxy's placement, zone is
// the name of a host of the class (and may be left out), machineType and image are names of the class's lists. The proxy
// program is installed by the image or by the user data.
//
// The parts, from the bottom: sshdial reaches a host, rpc is one connection to its libvirtd, host keeps the connections of one
// host, virtxml and seed write what libvirt and cloud-init read, address finds out where a guest is, images brings base images
// to a host, vm makes and removes machines on one host, and this package makes a Provider of several hosts.
package libvirt
