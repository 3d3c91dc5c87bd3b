// Package gcp provisions proxies as virtual machines of Google Compute Engine.
//
// One instance is one VM with its boot disk, which goes with it, and an ephemeral external IPv4 address. The VM is the record:
// everything is said in the one call that inserts it. Its labels carry the mark, in an encoding that can be undone; cluster
// and UID of the owner in them are the only licence to delete it. Names are unique within a zone of a project, and a
// Proxy's attempts stay in one zone until they are known to be over, so that the name forbids a second VM.
//
// Four calls of instances are used: insert, get, delete and aggregatedList. None waits for its operation; get tells how it
// goes. A fifth, zoneOperations.get, is made when a VM that was accepted is not there: only the operation knows about
// stock-outs, quotas and policies. It explains and changes nothing.
//
// Credentials are Application Default Credentials and nothing else. They are looked for when a class makes its first call,
// and again after they were refused, so that renewed ones are taken up without a restart.
//
// What the fields of a Proxy mean here: placement.machineType and placement.image are required, placement.zone too unless the
// class lists zones. cloudInit becomes the metadata value user-data, or startup-script for what begins with #!. The proxy
// program is configured by it alone: port and credentials are what it is said to listen on and to ask for.
package gcp
