package libvirttest

import "fmt"

// Procedure is a call of libvirt's protocol, by its number there.
type Procedure uint32

// Procedures that the operator calls.
const (
	ConnectOpen                  Procedure = 1
	ConnectClose                 Procedure = 2
	ConnectGetCapabilities       Procedure = 7
	DomainCreate                 Procedure = 9
	DomainDestroy                Procedure = 12
	DomainGetXMLDesc             Procedure = 14
	DomainLookupByName           Procedure = 23
	DomainSetAutostart           Procedure = 29
	NetworkLookupByName          Procedure = 46
	AuthList                     Procedure = 66
	StoragePoolRefresh           Procedure = 83
	StoragePoolLookupByName      Procedure = 84
	StoragePoolGetInfo           Procedure = 87
	StorageVolCreateXML          Procedure = 93
	StorageVolDelete             Procedure = 94
	StorageVolLookupByName       Procedure = 95
	StorageVolGetXMLDesc         Procedure = 99
	NetworkIsActive              Procedure = 152
	ConnectGetLibVersion         Procedure = 157
	StorageVolUpload             Procedure = 208
	DomainGetState               Procedure = 212
	DomainUndefineFlags          Procedure = 231
	ConnectListAllDomains        Procedure = 273
	StoragePoolListAllVolumes    Procedure = 282
	ConnectGetDomainCapabilities Procedure = 342
	DomainDefineXMLFlags         Procedure = 350
	DomainInterfaceAddresses     Procedure = 353
)

var names = map[Procedure]string{
	ConnectOpen: "ConnectOpen", ConnectClose: "ConnectClose", ConnectGetCapabilities: "ConnectGetCapabilities",
	DomainCreate: "DomainCreate", DomainDestroy: "DomainDestroy", DomainGetXMLDesc: "DomainGetXMLDesc",
	DomainLookupByName: "DomainLookupByName", DomainSetAutostart: "DomainSetAutostart", NetworkLookupByName: "NetworkLookupByName",
	AuthList: "AuthList", StoragePoolRefresh: "StoragePoolRefresh", StoragePoolLookupByName: "StoragePoolLookupByName",
	StoragePoolGetInfo: "StoragePoolGetInfo", StorageVolCreateXML: "StorageVolCreateXML", StorageVolDelete: "StorageVolDelete",
	StorageVolLookupByName: "StorageVolLookupByName", StorageVolGetXMLDesc: "StorageVolGetXMLDesc", NetworkIsActive: "NetworkIsActive",
	ConnectGetLibVersion: "ConnectGetLibVersion", StorageVolUpload: "StorageVolUpload", DomainGetState: "DomainGetState",
	DomainUndefineFlags: "DomainUndefineFlags", ConnectListAllDomains: "ConnectListAllDomains",
	StoragePoolListAllVolumes: "StoragePoolListAllVolumes", ConnectGetDomainCapabilities: "ConnectGetDomainCapabilities",
	DomainDefineXMLFlags: "DomainDefineXMLFlags", DomainInterfaceAddresses: "DomainInterfaceAddresses",
}

// String is libvirt's name of the procedure.
func (p Procedure) String() string {
	if name, ok := names[p]; ok {
		return name
	}
	return fmt.Sprintf("procedure %d", uint32(p))
}
