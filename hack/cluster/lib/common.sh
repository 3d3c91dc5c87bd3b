# shellcheck shell=bash disable=SC2034
# Names, addresses and small helpers shared by the scripts of the local cluster. Sourced, never run.
# Every number that more than one file needs has its one home here.

# A command that fails where nobody expected it should at least say where.
set -E
trap '[ "$BASH_SUBSHELL" -gt 0 ] || echo "error: ${BASH_SOURCE[0]##*/} line $LINENO: $BASH_COMMAND" >&2' ERR

HACK=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
REPO=$(dirname "$HACK")
CACHE=${EGRESS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/egress-proxies-operator}

# The runtime directory has a fixed short path: unix sockets allow about 100 bytes, and `down` must find it always.
RUN=/run/egress-cluster
# A running cluster knows its own state directory, so that later commands need no environment.
if [ -z "${EGRESS_CLUSTER_DIR:-}" ] && [ -r "$RUN/state-dir" ]; then
	EGRESS_CLUSTER_DIR=$(<"$RUN/state-dir")
fi
STATE=${EGRESS_CLUSTER_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/egress-proxies-operator/cluster}
case $STATE in
*[[:space:]]*) echo "error: EGRESS_CLUSTER_DIR: blanks are not possible in the path $STATE" >&2 && exit 1 ;;
/*) ;;
*) STATE=$PWD/$STATE ;;
esac
KUBECONFIG_FILE=$STATE/kubeconfig

NODE_NAME=egress-node
LINK=egress0              # a bridge without ports that carries the node's address
CGROUP=egress-cluster     # below each cgroup mount: parent of all pods
NETWORK=egress-cluster    # name of the CNI network, and of our nftables table
POD_CIDR=10.244.0.0/24
NODE_IP=10.244.0.1        # the pods' gateway; API server and kubelet listen here only
SERVICE_CIDR=10.96.0.0/16
API_SERVICE_IP=10.96.0.1
DNS_IP=10.96.0.10

# Not the usual ports, so that a cluster of the user's own can run beside this one.
API_PORT=16443
ETCD_PORT=12379
ETCD_PEER_PORT=12380
KUBELET_PORT=20250
KUBELET_HEALTH_PORT=20248
PROXY_HEALTH_PORT=20256
PROXY_METRICS_PORT=20249
CONTROLLER_MANAGER_PORT=20257
SCHEDULER_PORT=20259

CONTAINERD_SOCKET=$RUN/containerd.sock
DAEMONS="etcd containerd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy"

PATH=$PATH:/usr/sbin:/sbin # nft, runc, ip live there and a plain user's PATH may lack it

# say MESSAGE: progress with the seconds since the first script began; always on stderr, stdout is for results.
export EGRESS_STARTED=${EGRESS_STARTED:-$EPOCHSECONDS}
say() { printf '[%3ds] %s\n' $((EPOCHSECONDS - EGRESS_STARTED)) "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

require_root() {
	[ "$(uname -s)" = Linux ] || die "the local cluster needs Linux; with Docker and kind, use CLUSTER=kind"
	[ "$(id -u)" = 0 ] || die "the local cluster runs containerd and a kubelet, so it needs root; or use CLUSTER=kind"
}

# lock: one up or down at a time. The lock is on the source directory, so no lock file is left behind. What a killed `up`
# was still running (an image import) keeps the lock, so `down` does not overtake it.
lock() {
	exec 9<"$HACK/cluster"
	flock -n 9 && return
	say "another up or down is running; waiting for it"
	flock 9
}

# wait_for SECONDS WHAT COMMAND...: polls until COMMAND succeeds; returns 1 with a message when it does not.
wait_for() {
	local limit=$1 what=$2 end
	shift 2
	end=$((SECONDS + limit))
	until "$@" >/dev/null 2>&1; do
		if [ "$SECONDS" -ge "$end" ]; then
			printf 'error: %s: not so after %ss\n' "$what" "$limit" >&2
			return 1
		fi
		sleep 0.2
	done
}

# claim_state: makes the state directory ours. It is removed as a whole later, so it must not be one with other things in it.
claim_state() {
	[ -e "$STATE/.egress-cluster" ] || [ ! -e "$STATE" ] || [ -z "$(ls -A "$STATE")" ] ||
		die "the state directory $STATE holds files that are not the cluster's; choose another with EGRESS_CLUSTER_DIR"
	mkdir -p "$STATE"
	chmod 700 "$STATE"
	: >"$STATE/.egress-cluster"
}
release_state() {
	[ ! -e "$STATE/.egress-cluster" ] || rm -rf --one-file-system "$STATE"
}

# component NAME: path of a pinned helper program, built when it is not in the cache.
component() { "$HACK/component.sh" "$1"; }

# kube ARGS...: kubectl as cluster administrator. KUBECTL is set by up.sh; the machine's own kubectl does elsewhere.
kube() { "${KUBECTL:-kubectl}" --kubeconfig "$KUBECONFIG_FILE" "$@"; }

# containerd's own client, in the namespace where the kubelet looks for images and containers.
ctr_k8s() { ctr --address "$CONTAINERD_SOCKET" --namespace k8s.io "$@"; }
