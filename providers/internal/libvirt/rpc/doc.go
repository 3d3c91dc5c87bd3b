// Package rpc is one connection to a libvirt daemon. Every call has a limit in time, and a span when that is wanted.
//
// The client library below knows no contexts and no limits, and a call that is stuck there can only be ended by closing its
// connection. So a connection on which a call runs out of time is closed, and is never used again.
package rpc
