package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// LibvirtClass configures proxies that are virtual machines on one's own hypervisors, reached over SSH.
// +kubebuilder:validation:XValidation:rule="has(self.sshKeyFile) != has(self.sshSecretRef)",message="exactly one of sshKeyFile and sshSecretRef is required",fieldPath=".sshKeyFile"
// +kubebuilder:validation:XValidation:rule="has(self.sshSecretRef) || has(self.knownHostsFile) || (has(self.insecureIgnoreHostKey) && self.insecureIgnoreHostKey)",message="knownHostsFile is required unless insecureIgnoreHostKey is set",fieldPath=".knownHostsFile"
type LibvirtClass struct {
	// sshKeyFile is the private key file below /etc/proxy-operator/kvm/.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/etc/proxy-operator/kvm/') && !self.contains('..')",message="sshKeyFile must be below /etc/proxy-operator/kvm/"
	SSHKeyFile string `json:"sshKeyFile,omitempty"`
	// sshSecretRef names a Secret in the operator's namespace with the private key and known_hosts.
	// +optional
	SSHSecretRef *LocalSecretRef `json:"sshSecretRef,omitempty"`
	// knownHostsFile is the known_hosts file below /etc/proxy-operator/kvm/.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('/etc/proxy-operator/kvm/') && !self.contains('..')",message="knownHostsFile must be below /etc/proxy-operator/kvm/"
	KnownHostsFile string `json:"knownHostsFile,omitempty"`
	// insecureIgnoreHostKey accepts any host key. Default: false.
	// +optional
	InsecureIgnoreHostKey *bool `json:"insecureIgnoreHostKey,omitempty"`
	// images that a Proxy may name in placement.image.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Images []LibvirtImage `json:"images,omitempty"`
	// machineTypes that a Proxy may name in placement.machineType.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	MachineTypes []LibvirtMachineType `json:"machineTypes"`
	// hosts that a Proxy may name in placement.zone.
	// +required
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Hosts []LibvirtHost `json:"hosts"`
	// diskSizeGb is the size of the disk. Unit: gibibytes. Default: 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65536
	DiskSizeGb *int32 `json:"diskSizeGb,omitempty"`
	// vendorData is cloud-init vendor data for every instance.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	VendorData string `json:"vendorData,omitempty"`
	// installGuestAgent installs the QEMU guest agent by vendor data. Default: false.
	// +optional
	InstallGuestAgent *bool `json:"installGuestAgent,omitempty"`
	// domainType is kvm or qemu (emulation, slow). Default: kvm.
	// +optional
	// +kubebuilder:validation:Enum=kvm;qemu
	DomainType string `json:"domainType,omitempty"`
}

// LibvirtImage is a base image.
type LibvirtImage struct {
	// name by which a Proxy refers to the image.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// url the image is downloaded from: http, https or file.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	URL string `json:"url"`
	// sha256 of the image, in hexadecimal.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	SHA256 string `json:"sha256,omitempty"`
}

// LibvirtMachineType is a size of virtual machine.
type LibvirtMachineType struct {
	// name by which a Proxy refers to the size.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// cpus is the number of virtual CPUs. Unit: CPUs. Default: none, required.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1024
	CPUs int32 `json:"cpus"`
	// memory of the machine, for example 512Mi.
	// +required
	Memory resource.Quantity `json:"memory"`
}

// LibvirtHost is a hypervisor.
type LibvirtHost struct {
	// name by which a Proxy refers to the host.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// address of the host's SSH server.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Address string `json:"address"`
	// port of the host's SSH server. Unit: TCP port. Default: 22.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// user to log in as.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user"`
	// socket of libvirtd on the host. Default: /var/run/libvirt/libvirt-sock.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	Socket string `json:"socket,omitempty"`
	// uri of the libvirt driver. Default: qemu:///system.
	// +optional
	// +kubebuilder:validation:MaxLength=255
	URI string `json:"uri,omitempty"`
	// pool is the storage pool for disks. Default: default.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Pool string `json:"pool,omitempty"`
	// bridge the machines are connected to; exclusive with network.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Bridge string `json:"bridge,omitempty"`
	// network of libvirt the machines are connected to; exclusive with bridge. Default: default.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Network string `json:"network,omitempty"`
}
