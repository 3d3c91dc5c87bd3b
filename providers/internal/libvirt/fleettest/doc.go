// Package fleettest tries kvm and kvm2 whole: the operator's own managers, a real API server, and hosts with a real libvirtd
// behind a real sshd. It holds tests only.
package fleettest
