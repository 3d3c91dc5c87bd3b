#!/usr/bin/env bash
# Brings up a real single-node Kubernetes on this machine and prints the path of its kubeconfig.
#
#   hack/cluster/up.sh               the local cluster: pinned components, Debian's containerd; needs root
#   CLUSTER=kind hack/cluster/up.sh  the same through Docker and kind
#
# Safe to run again at any time: what runs and is healthy stays, what is missing or outdated is (re)started.
# EGRESS_CLUSTER_DIR: state directory (default ~/.local/state/egress-proxies-operator/cluster).
# EGRESS_CACHE: built programs and images (default ~/.cache/egress-proxies-operator). See README.md.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for part in common packages daemon host pki controlplane node; do
	# shellcheck source=/dev/null
	. "$here/lib/$part.sh"
done

case ${CLUSTER:-local} in
local) ;;
kind) exec "$here/kind.sh" up ;;
*) die "CLUSTER=$CLUSTER: want local or kind" ;;
esac

# preflight: refuse what would break the machine or a cluster of somebody else.
preflight() {
	require_root
	if [ -e "$RUN/state-dir" ] && [ "$(<"$RUN/state-dir")" != "$STATE" ]; then
		die "a cluster with state directory $(<"$RUN/state-dir") exists already; run hack/cluster/down.sh first"
	fi
	# Everything below is taken by us, or a cluster of ours is half up and will be repaired.
	[ ! -e "$STATE/host/recorded" ] || return 0
	local where other
	if other=$(pgrep -x kubelet); then
		die "another kubelet runs on this machine (pid ${other//$'\n'/, }); two would share its device plugin socket"
	fi
	for where in "$NODE_IP" "$DNS_IP"; do
		if ip -o -4 route show match "$where" | grep -qv '^default'; then
			die "the addresses of the cluster ($POD_CIDR, $SERVICE_CIDR) are in use on this machine: $(ip -4 route show match "$where" | grep -v ^default)"
		fi
	done
	if nft list table ip kube-proxy >/dev/null 2>&1; then
		die "another cluster's kube-proxy has its rules (nft table ip kube-proxy) on this machine; they would be overwritten"
	fi
	local port
	for port in "$API_PORT" "$ETCD_PORT" "$ETCD_PEER_PORT" "$KUBELET_PORT" "$KUBELET_HEALTH_PORT" "$PROXY_HEALTH_PORT" \
		"$PROXY_METRICS_PORT" "$CONTROLLER_MANAGER_PORT" "$SCHEDULER_PORT"; do
		[ -z "$(ss -Hltn "sport = :$port")" ] || die "port $port is in use: $(ss -Hltnp "sport = :$port")"
	done
}

# find_programs: sets one variable per component. A first run builds them, 15 to 25 minutes on two cores.
find_programs() {
	local name variable
	command -v go >/dev/null || die "Go is needed to build the cluster's components"
	compgen -G "$CACHE/kube-apiserver-*/kube-apiserver" >/dev/null || say "building Kubernetes' components (first run only, 15 to 25 minutes on two cores)"
	for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
		variable=${name//-/_}
		printf -v "${variable^^}" %s "$(component "$name" 9<&-)"
	done
}

# make_run: pids and sockets of before a reboot mean nothing, even where /run is not emptied by it.
make_run() {
	local boot
	boot=$(</proc/sys/kernel/random/boot_id)
	mkdir -p "$RUN"
	if [ -e "$RUN/boot" ] && [ "$(<"$RUN/boot")" != "$boot" ]; then
		rm -rf --one-file-system "${RUN:?}"/*
	fi
	echo "$STATE" >"$RUN/state-dir"
	echo "$boot" >"$RUN/boot"
}

load_images() {
	local archives
	mapfile -t archives < <("$HACK/images/build.sh" pause coredns 9<&-)
	[ ${#archives[@]} -eq 2 ] || die "the images of pause and CoreDNS could not be built"
	daemon_wait containerd 30 "containerd answers" containerd_ready
	"$here/load.sh" "${archives[@]}"
}

main() {
	CHANGED=""
	require_root
	lock
	need_packages containerd=containerd runc=runc /usr/lib/cni/ptp=containernetworking-plugins nft=nftables ip=iproute2 \
		openssl=openssl flock=util-linux mount=mount ps=procps curl=curl
	preflight
	find_programs
	claim_state
	make_run
	record_host
	make_network
	make_cgroup
	make_pki

	[ -n "$(daemon_pid kube-apiserver)" ] || say "starting etcd, the API server and containerd"
	start_etcd
	start_apiserver
	start_containerd
	load_images
	daemon_wait kube-apiserver 90 "the API server is ready" apiserver_ready
	[ -z "$CHANGED" ] || say "API server ready at https://$NODE_IP:$API_PORT; starting controllers and the node"
	start_controllers
	start_kubelet
	start_kube_proxy
	kube apply --server-side --force-conflicts --field-manager=egress-cluster -f "$here/manifests" >/dev/null
	daemon_wait kubelet 90 "node $NODE_NAME is Ready" node_ready
	[ -z "$CHANGED" ] || say "node $NODE_NAME is Ready; waiting for cluster DNS"
	# The Deployment's status may date from before a crash too, so that somebody listens at the Service is checked as well.
	if ! kube --namespace kube-system rollout status deployment/coredns --timeout=90s >/dev/null ||
		! wait_for 60 "cluster DNS accepts connections at $DNS_IP" timeout 1 bash -c "exec 3<>/dev/tcp/$DNS_IP/53"; then
		kube --namespace kube-system get pods -o wide >&2
		kube --namespace kube-system get events >&2
		die "cluster DNS did not come up"
	fi
	local name
	for name in $DAEMONS; do
		daemon_pid "$name" >/dev/null || { log_tail "$name"; die "$name ended right after its start"; }
	done
	if [ -n "$CHANGED" ]; then say "the cluster is up"; else say "the cluster is already up and healthy"; fi
	say "use it with: export KUBECONFIG=$KUBECONFIG_FILE"
	echo "$KUBECONFIG_FILE"
}
main
