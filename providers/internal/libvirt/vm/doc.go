// Package vm makes, finds and removes the virtual machines of one class on one hypervisor.
//
// The definition of the domain is the record: it is made first, with the owner in its metadata, and goes last, so that no
// volume ever lacks a machine that names it. Its name is unique on a host, which is what forbids a second machine. Every
// definition has a UUID of its own, and the volumes are named by it, so that whoever builds or removes one incarnation never
// meets another.
//
// Building takes as long as it takes and runs beside the calls, see build.go. A build that is lost, with its process or its
// connection, leaves a record that nobody works on: it is reported as failed, and removed by the next deletion.
package vm
