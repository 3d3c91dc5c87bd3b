package virtxml

import (
	"encoding/xml"
	"strings"
	"time"
)

// namespacePrefix is followed by the type of provider, so that kvm and kvm2 never take each other's machines for their own.
const namespacePrefix = "https://crawl.example.com/libvirt/"

// Metadata says whose a domain is. It is written into the domain's definition and read back exactly.
type Metadata struct {
	// Provider is the type, kvm or kvm2; it becomes the XML namespace.
	Provider, Class, ClusterID string
	// Namespace, Name and UID of the Proxy.
	Namespace, Name, UID string
	Hash, Attempt        string
	// CreatedAt is kept in UTC, to the nanosecond.
	CreatedAt time.Time
}

// ownerXML holds everything in attributes: libvirt drops text that is nothing but blanks when it stores metadata.
type ownerXML struct {
	XMLName   xml.Name
	Domain    string `xml:"domain,attr"`
	Class     string `xml:"class,attr"`
	ClusterID string `xml:"clusterID,attr"`
	Namespace string `xml:"namespace,attr"`
	Name      string `xml:"name,attr"`
	UID       string `xml:"uid,attr"`
	Hash      string `xml:"hash,attr"`
	Attempt   string `xml:"attempt,attr"`
	CreatedAt string `xml:"createdAt,attr"`
}

type metadataXML struct {
	Elements []ownerXML `xml:",any"`
}

func (m Metadata) texts() []text {
	return []text{
		{"the provider", m.Provider}, {"the class", m.Class}, {"the cluster id", m.ClusterID}, {"the namespace", m.Namespace},
		{"the name of the Proxy", m.Name}, {"the UID of the Proxy", m.UID}, {"the hash", m.Hash}, {"the attempt", m.Attempt},
	}
}

// element is the metadata of the domain that has a UUID. The UUID is written as well: tools that copy a machine copy its
// metadata, and the copy is nobody's.
func (m Metadata) element(uuid string) *metadataXML {
	return &metadataXML{Elements: []ownerXML{{
		XMLName: xml.Name{Space: namespacePrefix + m.Provider, Local: "owner"},
		Domain:  uuid, Class: m.Class, ClusterID: m.ClusterID, Namespace: m.Namespace, Name: m.Name, UID: m.UID,
		Hash: m.Hash, Attempt: m.Attempt, CreatedAt: m.CreatedAt.UTC().Format(time.RFC3339Nano),
	}}}
}

// metadata reads the owner back. What cannot be read without doubt is no licence to touch anything: Metadata is zero then.
func (x *metadataXML) metadata(uuid string) Metadata {
	if x == nil {
		return Metadata{}
	}
	var found Metadata
	owners := 0
	for _, e := range x.Elements {
		provider, ours := strings.CutPrefix(e.XMLName.Space, namespacePrefix)
		if !ours || e.XMLName.Local != "owner" {
			continue
		}
		owners++
		created, err := time.Parse(time.RFC3339Nano, e.CreatedAt)
		if err != nil || !strings.EqualFold(e.Domain, uuid) {
			continue
		}
		found = Metadata{
			Provider: provider, Class: e.Class, ClusterID: e.ClusterID, Namespace: e.Namespace, Name: e.Name, UID: e.UID,
			Hash: e.Hash, Attempt: e.Attempt, CreatedAt: created.UTC(),
		}
	}
	if owners != 1 {
		return Metadata{}
	}
	return found
}
