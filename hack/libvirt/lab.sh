#!/usr/bin/env bash
# Runs a command in a lab: namespaces (network, mounts, processes) of its own, with hypervisors h1, h2, ... that it reaches.
#
#   hack/libvirt/lab.sh [COMMAND [ARGUMENT...]]     without a command: a shell
#
# EGRESS_LAB_HOSTS: how many hypervisors are there at the start (2). host-up.sh makes more, from within the lab.
# EGRESS_LAB_LOGS: a folder that gets the hypervisors' logs when the command fails.
#
# The command finds EGRESS_LAB: a folder with one folder per hypervisor, whose host.json says all that a client needs.
# Nothing of the machine is touched and nothing is left: with the lab's first process, which the kernel kills when this script
# is killed, everything that runs in it ends, and its files are in memory that only it sees.
#
# go test -exec hack/libvirt/lab.sh runs each test binary in a lab.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ "${1:-}" != --inside ]; then
	# shellcheck source=lib.sh
	. "$here/lib.sh"
	require_debian
	for program in libvirtd virsh sshd ssh-keygen dnsmasq iptables qemu-system-x86_64 unshare; do
		command -v "$program" >/dev/null || die "$program is missing; make test-libvirt installs what the lab needs"
	done
	exec unshare --net --mount --pid --fork --kill-child --mount-proc --propagation private "${BASH_SOURCE[0]}" --inside "$@"
fi

# All of it is read before it runs, so that somebody may edit this file meanwhile.
inside() {
	shift
	[ $# -gt 0 ] || set -- bash
	PATH=$PATH:/usr/sbin:/sbin
	export EGRESS_LAB=/run/egress-lab EGRESS_LAB_ADDRESS=10.77.0.1 EGRESS_LAB_SCRIPTS=$here
	export EGRESS_LAB_SITE=site.example.com EGRESS_LAB_SITE_ADDRESS=198.51.100.10
	trap 'exit 130' INT TERM
	mount -t tmpfs -o mode=755,size=80% tmpfs /run
	mkdir -p $EGRESS_LAB /run/lock /run/sshd
	# An /etc of the lab's own: names of its hosts, and whatever a manager's pod would have mounted there.
	cp -a /etc /run/egress-etc
	mount --bind /run/egress-etc /etc
	rm -f /etc/resolv.conf
	: >/etc/resolv.conf
	echo "$EGRESS_LAB_SITE_ADDRESS $EGRESS_LAB_SITE" >>/etc/hosts
	ip link set lo up
	ip address add $EGRESS_LAB_ADDRESS/32 dev lo # what guests reach in the lab, whichever hypervisor they are on
	ip address add $EGRESS_LAB_SITE_ADDRESS/32 dev lo
	for ((i = 1; i <= ${EGRESS_LAB_HOSTS:-2}; i++)); do
		"$here/host-up.sh" "h$i" >/dev/null
	done
	code=0
	"$@" || code=$?
	if [ $code != 0 ] && [ -n "${EGRESS_LAB_LOGS:-}" ]; then
		for host in "$EGRESS_LAB"/*; do
			mkdir -p "$EGRESS_LAB_LOGS/${host##*/}"
			cp -r "$host"/var-log-libvirt/. "$host"/*.log "$EGRESS_LAB_LOGS/${host##*/}" || true
		done
	fi
	exit $code
}
inside "$@"
