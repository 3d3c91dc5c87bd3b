#!/usr/bin/env bash
# From nothing to a crawled page: brings the cluster up, builds and loads the images, installs the operator with helm,
# applies the samples and runs the features of ./e2e, each step of which is an assertion. The cluster stays up.
#
#   hack/demo.sh
#
# DEMO_SQUID_IMAGE: another Squid image for the proxies, to see the demo fail when it is broken.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=cluster/lib/common.sh
. "$here/cluster/lib/common.sh"
# shellcheck source=cluster/lib/packages.sh
. "$here/cluster/lib/packages.sh"
cd "$REPO"

NAMESPACE=egress-proxies-operator-system
RELEASE=egress-proxies-operator
ORIGIN=origin.egress-demo.svc.cluster.local
CERTIFICATE_DAYS=30

for program in go git; do
	command -v "$program" >/dev/null || die "the demo needs $program"
done
need_packages curl=curl openssl=openssl

# certificates: a CA of the demo's own and the origin's certificate, renewed when they are about to end.
certificates() {
	local dir=$STATE/demo
	mkdir -p "$dir"
	openssl x509 -checkend 86400 -noout -in "$dir/tls.crt" >/dev/null 2>&1 && return
	say "making the demo's CA and the origin's certificate"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days $CERTIFICATE_DAYS -subj "/CN=egress demo CA" \
		-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign \
		-keyout "$dir/ca.key" -out "$dir/ca.crt" 2>/dev/null
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$ORIGIN" \
		-keyout "$dir/tls.key" -out "$dir/tls.csr" 2>/dev/null
	openssl x509 -req -in "$dir/tls.csr" -CA "$dir/ca.crt" -CAkey "$dir/ca.key" -CAcreateserial -days $CERTIFICATE_DAYS \
		-extfile <(echo "subjectAltName=DNS:$ORIGIN") -out "$dir/tls.crt" 2>/dev/null
}

# origin: the HTTPS origin and somebody else's Squid.
origin() {
	kube create namespace egress-demo --dry-run=client -o yaml | kube apply -f - >/dev/null
	kube -n egress-demo create secret tls origin-tls --cert="$STATE/demo/tls.crt" --key="$STATE/demo/tls.key" \
		--dry-run=client -o yaml | kube apply -f - >/dev/null
	kube apply -f e2e/manifests/origin.yaml >/dev/null
	for name in origin somebody-elses-squid; do
		kube -n egress-demo rollout status "deployment/$name" --timeout=120s >/dev/null ||
			{ kube -n egress-demo logs "deployment/$name" --tail=20 >&2; die "the demo's $name did not start"; }
	done
}

# operator: helm installs or upgrades; the same image name with new content needs a restart.
operator() {
	local digest
	digest=$(sha256sum "$1" | cut -c1-16)
	"$HELM" upgrade --install "$RELEASE" charts/egress-proxies-operator --kubeconfig "$KUBECONFIG_FILE" \
		--namespace "$NAMESPACE" --create-namespace --values e2e/values.yaml \
		--set-string "podAnnotations.demo/image=$digest" \
		${DEMO_SQUID_IMAGE:+--set-string "providerClasses[0].kubernetes.image=$DEMO_SQUID_IMAGE"} \
		--set-file "providerClasses[0].healthCheck.targets[0].caBundle=$STATE/demo/ca.crt" >/dev/null
	for name in controller-manager provider-kubernetes; do
		kube -n "$NAMESPACE" rollout status "deployment/$RELEASE-$name" --timeout=180s >/dev/null ||
			{ kube -n "$NAMESPACE" get pods -o wide >&2; kube -n "$NAMESPACE" logs "deployment/$RELEASE-$name" --tail=20 >&2; die "the operator's $name did not start"; }
	done
	kube wait --for=condition=Ready providerclass/kubernetes --timeout=60s >/dev/null ||
		die "the ProviderClass kubernetes is not Ready: $(kube get pxc kubernetes -o jsonpath='{.status.conditions}')"
}

samples() {
	local ca
	ca=$(awk '{printf "%s\\n", $0}' "$STATE/demo/ca.crt")
	# A demo that ran before left its pool scaled; every run starts with two proxies.
	CA=$ca awk '{sub(/@CA@/, ENVIRON["CA"]); print}' e2e/manifests/samples.yaml | kube apply -f - >/dev/null
	kube -n default scale proxypool/demo --replicas=2 >/dev/null
	kube -n default delete proxyleases --all --wait=false >/dev/null
}

say "1/5 cluster"
"$here/cluster/up.sh" >/dev/null
KUBECTL=${KUBECTL:-$(component kubectl)}
HELM=${HELM:-$(component helm)}

say "2/5 images"
mapfile -t archives < <("$here/images/build.sh" squid origin operator crawler)
"$here/cluster/load.sh" "${archives[@]}"

say "3/5 origin and operator"
certificates
origin
operator "${archives[2]}"

say "4/5 samples"
samples

say "5/5 the main job, step by step"
KUBECONFIG=$KUBECONFIG_FILE KUBECTL=$KUBECTL DEMO_CA_FILE=$STATE/demo/ca.crt \
	go test -tags e2e -count=1 -failfast -timeout 25m -v ./e2e/...

cat <<TXT

The cluster is still up. To look around:

  export KUBECONFIG=$KUBECONFIG_FILE
  alias kubectl=$KUBECTL
  kubectl get px,pxp,pxl,pxc
  kubectl scale proxypool/demo --replicas=5

make demo-down removes it.
TXT
