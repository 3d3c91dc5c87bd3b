// Package host keeps the connections to one hypervisor host.
//
// All calls share one connection, which is dialled when it is needed and forgotten when it is lost. A host that is down is
// asked again with growing pauses, and its callers are told at once what the last attempt has found. Nothing is retried.
package host
