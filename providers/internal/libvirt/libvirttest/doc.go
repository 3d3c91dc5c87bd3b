// Package libvirttest gives tests hypervisor hosts that are real but for their machines: a libvirtd of the test's own with
// its test driver, behind an sshd of the test's own on loopback. Neither touches the machine's own daemons, libvirtd runs as
// an ordinary user, and both end with the test, or on Linux with the test binary.
//
// On the way to libvirtd there are two places for faults: a Link in front of sshd, which drops or cuts TCP connections, and
// Frames in front of libvirtd's socket, which breaks single calls, counts them, and takes the uploads that the test driver
// does not know.
package libvirttest
