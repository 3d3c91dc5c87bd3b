#!/usr/bin/env bash
# The same cluster through Docker and kind: called by up.sh, down.sh and load.sh when CLUSTER=kind.
#
#   hack/cluster/kind.sh up | down | load ARCHIVE...
#
# KIND_IMAGE: another node image than kind's own default.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/common.sh
. "$here/lib/common.sh"
KIND_NAME=egress

for program in docker kind kubectl; do
	command -v "$program" >/dev/null || die "CLUSTER=kind needs $program"
done

# route ADD-OR-DEL: lets this machine reach pods and Services through the node's container, as it can in the local cluster.
route() {
	local node cidr
	if [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ]; then
		say "no route to pods (needs Linux and root): reach them with kubectl port-forward"
		return
	fi
	node=$(docker inspect --format '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' "$KIND_NAME-control-plane")
	for cidr in "$POD_CIDR" "$SERVICE_CIDR"; do ip route "$1" "$cidr" via "$node"; done
}

case ${1:-} in
up)
	claim_state
	if kind get clusters 2>/dev/null | grep -qx "$KIND_NAME"; then
		kind export kubeconfig --name "$KIND_NAME" --kubeconfig "$KUBECONFIG_FILE"
		say "the kind cluster $KIND_NAME is already up"
	else
		kind create cluster --name "$KIND_NAME" --kubeconfig "$KUBECONFIG_FILE" ${KIND_IMAGE:+--image "$KIND_IMAGE"} --wait 120s --config - <<-YAML >&2
			kind: Cluster
			apiVersion: kind.x-k8s.io/v1alpha4
			networking: {podSubnet: $POD_CIDR, serviceSubnet: $SERVICE_CIDR}
		YAML
	fi
	route replace
	say "use it with: export KUBECONFIG=$KUBECONFIG_FILE"
	echo "$KUBECONFIG_FILE"
	;;
down)
	route del 2>/dev/null || true
	kind delete cluster --name "$KIND_NAME" --kubeconfig "$KUBECONFIG_FILE"
	release_state
	;;
load)
	shift
	for archive in "$@"; do kind load image-archive --name "$KIND_NAME" "$archive"; done
	;;
*)
	sed -n '2,6p' "$0" >&2
	exit 2
	;;
esac
