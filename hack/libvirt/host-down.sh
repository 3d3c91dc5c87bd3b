#!/usr/bin/env bash
# Cuts the power of a hypervisor of the lab. Its disk goes as well, unless it shall boot again.
#
#   hack/libvirt/host-down.sh NAME [--keep]
set -euo pipefail
# shellcheck source=../cluster/lib/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../cluster/lib/common.sh"
name=${1:?usage: host-down.sh NAME [--keep]}
dir=${EGRESS_LAB:?host-down.sh runs within the lab: hack/libvirt/lab.sh}/$name
[ -e "$dir/host.json" ] || die "there is no host $name"
if [ -e "$dir/pid" ]; then
	pid=$(<"$dir/pid")
	# It is the first process of its namespaces: the kernel ends all others with it.
	kill -9 "$pid" 2>/dev/null || true
	gone() { [ ! -d "/proc/$pid" ]; }
	wait_for 30 "the end of $name" gone
	ip link delete "v-$name" 2>/dev/null || true
	rm -f "$dir/pid"
fi
if [ "${2:-}" != --keep ]; then
	rmdir "$EGRESS_LAB/.index-$(<"$dir/index")"
	rm -rf --one-file-system "$dir"
fi
