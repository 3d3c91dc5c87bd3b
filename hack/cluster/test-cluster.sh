#!/usr/bin/env bash
# Checks that the running cluster behaves as the operator and the demo need it. One line per check; the first that fails
# ends the run with an error. Everything happens in the namespace egress-cluster-test, which is removed afterwards unless
# KEEP=yes.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/common.sh
. "$here/lib/common.sh"
KUBECTL=$(component kubectl)
ns=egress-cluster-test
work=$(mktemp -d)
host_origin=""
forward=""

cleanup() {
	[ -z "$host_origin" ] || kill "$host_origin" 2>/dev/null || true
	[ -z "$forward" ] || kill "$forward" 2>/dev/null || true
	rm -rf "$work"
	[ "${KEEP:-}" != yes ] || return 0
	kube delete validatingadmissionpolicies,validatingadmissionpolicybindings egress-cluster-test --ignore-not-found >/dev/null 2>&1 || true
	kube delete namespace "$ns" --ignore-not-found >/dev/null 2>&1 || true
}
trap cleanup EXIT

k() { kube --namespace "$ns" "$@"; }
# check WHAT COMMAND...: the command must succeed. In a function that is checked, `set -e` has no effect: chain with &&.
check() {
	local what=$1
	shift
	if "$@" >"$work/out" 2>&1; then
		echo "ok    $what"
	else
		echo "FAIL  $what"
		sed 's/^/      /' "$work/out"
		exit 1
	fi
}
pod_ip() { k get pod "$1" -o jsonpath='{.status.podIP}'; }
# fetch URL [CURL-FLAGS...]: from this machine, trusting the test's authority only.
fetch() { curl --silent --show-error --fail --max-time 10 --cacert "$work/ca.crt" "${@:2}" "$1"; }
source_of() { fetch "$@" | sed -n 's/.*"source":"\([^"]*\)".*/\1/p'; }
same() { [ "$1" = "$2" ] || { echo "got $1, want $2"; return 1; }; }

# origin_certificate: for the origin in the cluster and the one on this machine.
origin_certificate() {
	echo "subjectAltName=DNS:origin,DNS:origin.$ns.svc.cluster.local,IP:$NODE_IP" >"$work/ext"
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test-ca \
		-keyout "$work/ca.key" -out "$work/ca.crt" &&
		openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=origin -keyout "$work/tls.key" -out "$work/tls.csr" &&
		openssl x509 -req -in "$work/tls.csr" -CA "$work/ca.crt" -CAkey "$work/ca.key" -set_serial 1 -days 2 -extfile "$work/ext" -out "$work/tls.crt"
}

deploy() {
	local archives
	mapfile -t archives < <("$HACK/images/build.sh" squid origin)
	"$here/load.sh" "${archives[@]}" &&
		origin_certificate &&
		kube delete namespace "$ns" --ignore-not-found &&
		kube create namespace "$ns" &&
		k create secret tls origin-tls --cert "$work/tls.crt" --key "$work/tls.key" &&
		k apply -f "$here/testdata/pods.yaml" || return 1
	k wait --for=condition=Ready pod/squid pod/origin --timeout=60s || { k get pods -o wide; k describe pods; k logs squid; return 1; }
}

# A negation cannot be passed as a command.
refuses() { ! "$@"; }
# in_squid COMMAND: a shell command in the Squid pod; bash can open TCP connections by itself.
in_squid() { k exec squid -- timeout 5 bash -c "$1"; }
logs_source() { k logs origin | grep '"path":"'"$1"'"' | grep "\"remoteAddr\":\"$2:"; }

check "pods of Squid (uid 13, no capabilities, read-only root) and origin get ready" deploy
squid=$(pod_ip squid) origin_ip=$(k get service origin -o jsonpath='{.spec.clusterIP}')
name=origin.$ns.svc.cluster.local
proxy=http://$squid:3128

# shellcheck disable=SC2016
check "exec: Squid runs as uid 13 with no capabilities" in_squid '[ "$(id -u)" = 13 ] && grep -q "^CapEff:.0000000000000000$" /proc/self/status'
check "exec: its root file system is read-only" refuses in_squid 'touch /usr/x'
check "DNS: a pod resolves a Service" in_squid "getent hosts $name | grep -q '^$origin_ip '"
check "DNS: a pod resolves a short name" in_squid "getent hosts kubernetes.default | grep -q '^$API_SERVICE_IP '"
# kube-proxy may need a moment to hear of the new Services; what follows then has no excuse.
check "this machine reaches a Service's address" wait_for 10 "the Service answers" fetch "https://origin:8443/direct" --resolve "origin:8443:$origin_ip"
check "HTTPS through Squid comes from Squid's pod" same "$(source_of "https://$name:8443/through" --proxy "$proxy")" "$squid"
check "the origin's log shows that address" logs_source /through "$squid"
check "204 through Squid" same "$(fetch "https://$name:8443/generate_204" --proxy "$proxy" --output /dev/null --write-out '%{http_code}')" 204
service=$(k get service squid -o jsonpath='{.spec.clusterIP}')
check "this machine reaches Squid's Service" wait_for 10 "it accepts connections" timeout 1 bash -c "exec 3<>/dev/tcp/$service/3128"
check "HTTPS through that Service comes from Squid's pod" same "$(source_of "https://$name:8443/" --proxy "http://$service:3128")" "$squid"
check "a pod reaches itself through its Service" in_squid "exec 3<>/dev/tcp/squid/3128"
check "a pod reaches the API server at $API_SERVICE_IP" in_squid "exec 3<>/dev/tcp/$API_SERVICE_IP/443"

tar -xf "$("$HACK/images/build.sh" origin)" -C "$work" --wildcards '*.tar'
for layer in "$work"/*.tar; do tar -xf "$layer" -C "$work" origin 2>/dev/null || true; done
"$work/origin" --addr "$NODE_IP:18443" --tls-cert "$work/tls.crt" --tls-key "$work/tls.key" --health-addr "" >"$work/host-origin.log" &
host_origin=$!
wait_for 5 "the origin on this machine answers" fetch "https://$NODE_IP:18443/"
check "a process on this machine sees the pod's address" same "$(source_of "https://$NODE_IP:18443/" --proxy "$proxy")" "$squid"

# port_forward: kubectl chooses a free port and prints it.
port_forward() {
	k port-forward --address 127.0.0.1 pod/origin :8080 >"$work/forward" 2>&1 &
	forward=$!
	wait_for 5 "port-forward listens" grep -q '^Forwarding' "$work/forward" && curl --silent --fail --max-time 5 "http://127.0.0.1:$(sed -n 's/.*127.0.0.1:\([0-9]*\) .*/\1/p;q' "$work/forward")/healthz"
}
check "port-forward" port_forward

check "ValidatingAdmissionPolicy: created" kube apply -f "$here/testdata/policy.yaml"
policy_denies() { ! k create configmap denied --from-literal=forbidden=x --dry-run=server >"$work/denied" 2>&1 && grep -q 'the key is forbidden' "$work/denied"; }
check "ValidatingAdmissionPolicy: denies what it forbids" wait_for 20 "the policy denies" policy_denies
check "ValidatingAdmissionPolicy: allows the rest" k create configmap allowed --from-literal=fine=x

as_node() { "$KUBECTL" --kubeconfig "$STATE/pki/kubelet.kubeconfig" "$@"; }
check "the node may not read other nodes' business" refuses as_node get secrets --all-namespaces
check "a service account has no rights by default" refuses k auth can-i list pods --as "system:serviceaccount:$ns:default"
check "the kubelet refuses strangers" same "$(curl --silent --insecure --max-time 5 --output /dev/null --write-out '%{http_code}' "https://$NODE_IP:$KUBELET_PORT/pods")" 401
check "the API server refuses strangers" same "$(curl --silent --insecure --max-time 5 --output /dev/null --write-out '%{http_code}' "https://$NODE_IP:$API_PORT/api/v1/secrets")" 403
check "etcd refuses strangers" refuses curl --silent --insecure --max-time 5 "https://127.0.0.1:$ETCD_PORT/version"
echo "the cluster does what it should"
