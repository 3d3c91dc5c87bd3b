#!/usr/bin/env bash
# Removes the local cluster and everything it changed on the machine; keeps the cache of built programs and images, and
# the distribution's packages. Finds what to remove by where it is (our cgroup, our two directories, our links and tables),
# so it also cleans up after an `up` that died half-way and after a reboot. Safe to run when there is nothing.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for part in common daemon host; do
	# shellcheck source=/dev/null
	. "$here/lib/$part.sh"
done

case ${CLUSTER:-local} in
local) ;;
kind) exec "$here/kind.sh" down ;;
*) die "CLUSTER=$CLUSTER: want local or kind" ;;
esac

# kill_matching LIST-COMMAND: SIGKILL to the processes it prints, until it prints none.
kill_matching() {
	local end=$((SECONDS + 15)) pids
	while pids=$("$@") && [ -n "$pids" ]; do
		[ "$SECONDS" -lt "$end" ] || die "these processes do not end: $(echo "$pids" | xargs ps -o pid,stat,args -p)"
		# shellcheck disable=SC2086
		kill -9 $pids 2>/dev/null || true
		sleep 0.1
	done
}

# stray_pids: processes that name our directories on their command line: containerd's shims, which outlive it by design, and
# daemons whose record was lost.
stray_pids() {
	local dir args
	for dir in /proc/[0-9]*; do
		{ args=$(tr '\0' ' ' <"$dir/cmdline"); } 2>/dev/null || continue
		[[ $args == *" $CONTAINERD_SOCKET"* || $args == *[\ =]"$STATE/"* ]] || continue
		case " $DAEMONS containerd-shim-runc-v2 " in
		*" $(basename "$(readlink "$dir/exe")") "*) basename "$dir" ;;
		esac
	done
}

# our_mounts: what is mounted below our directories, deepest last.
our_mounts() {
	local point
	while read -r _ _ _ _ point _; do
		point=$(printf %b "$point") # mountinfo writes blanks as \040
		case $point in "$STATE"/* | "$RUN"/*) echo "$point" ;; esac
	done </proc/self/mountinfo
}

unmount_all() {
	local points
	mapfile -t points < <(our_mounts | tac)
	[ ${#points[@]} -eq 0 ] || umount "${points[@]}" 2>/dev/null || umount -l "${points[@]}" 2>/dev/null || true
	[ -z "$(our_mounts)" ] || die "still mounted: $(our_mounts)"
}

# remove_shim_sockets: containerd puts them in one directory for all containerds of a machine; each pod notes its own.
remove_shim_sockets() {
	[ -d "$RUN" ] || return 0
	find "$RUN" -xdev -path '*/io.containerd.runtime.v2.task/*' -name address -exec sed 's#^unix://##' {} + 2>/dev/null |
		while read -r socket; do rm -f "$socket"; done
}

# remove_traces: files that the kubelet and the CNI library put where everybody's are.
remove_traces() {
	local link result sandbox
	for link in /var/log/containers/*.log; do
		case $(readlink "$link" || true) in "$STATE"/*) rm -f "$link" ;; esac
	done
	if grep -qsx /var/lib/kubelet "$STATE/host/absent-dirs"; then
		rm -f /var/lib/kubelet/device-plugins/kubelet.sock # this path cannot be configured
	fi
	for result in /var/lib/cni/results/"$NETWORK"-*-eth0; do
		sandbox=${result##*/"$NETWORK"-}
		rm -f "$result" "/var/lib/cni/results/cni-loopback-${sandbox%-eth0}-lo"
	done
}

main() {
	require_root
	lock
	if [ ! -e "$STATE/.egress-cluster" ] && [ ! -e "$RUN" ]; then
		say "there is no local cluster"
		return
	fi
	say "stopping the cluster in $STATE"
	local name
	# The kubelet first, or it would start again what is stopped below. Nobody needs time to save anything.
	for name in kubelet kube-proxy kube-scheduler kube-controller-manager kube-apiserver etcd containerd; do
		daemon_stop "$name" now
	done
	kill_matching cgroup_pids
	remove_shim_sockets
	kill_matching stray_pids
	unmount_all
	remove_network
	remove_cgroup
	restore_sysctls
	remove_traces
	remove_foreign_dirs
	release_state
	rm -rf --one-file-system "$RUN"
	say "the cluster is gone; built programs and images stay in $CACHE"
}
main
