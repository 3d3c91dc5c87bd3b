#!/usr/bin/env bash
# Deploys the operator by kustomize with the image IMG into the current kubeconfig context, and makes the API's token when
# there is none. `make install` has installed the CRDs before.
#
#   hack/deploy.sh IMG
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
NAMESPACE=egress-proxies-operator-system
IMAGE=${1:?an image is needed: hack/deploy.sh IMG}
KUBECTL=${KUBECTL:-$(command -v kubectl || "$here/component.sh" kubectl)}

"$KUBECTL" apply -f "$here/../config/deploy/namespace.yaml"
if ! "$KUBECTL" -n $NAMESPACE get secret discovery-token >/dev/null 2>&1; then
	# The token goes through a pipe and never into an argument, where other users of the machine could read it.
	token=$(head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
	printf %s "$token" | "$KUBECTL" -n $NAMESPACE create secret generic discovery-token --from-file=token=/dev/stdin
fi
"$KUBECTL" kustomize "$here/../config/deploy" |
	IMAGE=$IMAGE awk '$1 == "image:" && $2 ~ /^egress-proxies-operator:/ {sub(/egress-proxies-operator:.*/, ENVIRON["IMAGE"])} {print}' |
	"$KUBECTL" apply --server-side -f -
"$KUBECTL" -n $NAMESPACE rollout status deployment/egress-proxies-operator-controller-manager --timeout=180s
