#!/usr/bin/env bash
# Runs a command on a hypervisor of the lab, as root there: virsh, kill, mount.
#
#   hack/libvirt/host-exec.sh NAME COMMAND [ARGUMENT...]
set -euo pipefail
name=${1:?usage: host-exec.sh NAME COMMAND [ARGUMENT...]}
shift
pid=$(<"${EGRESS_LAB:?host-exec.sh runs within the lab: hack/libvirt/lab.sh}/$name/pid")
exec nsenter --target "$pid" --net --mount --uts --pid -- "$@"
