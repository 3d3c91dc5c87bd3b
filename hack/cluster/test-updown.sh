#!/usr/bin/env bash
# Proves that `down` leaves the machine as `up` found it: snapshots before and after must not differ, also after an `up`
# that was killed half-way, and after a repair. Needs that no cluster is up. About two minutes when everything is built.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
for part in common daemon; do
	# shellcheck source=/dev/null
	. "$here/lib/$part.sh"
done
require_root
[ ! -e "$RUN/state-dir" ] || die "a cluster is up (state in $STATE); this test would remove it. Run hack/cluster/down.sh first"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# unchanged WHAT: compares the machine with the first snapshot.
unchanged() {
	"$here/snapshot.sh" >"$work/after"
	if ! diff -u "$work/before" "$work/after"; then
		die "$1: the machine is not as it was before (see the difference above)"
	fi
	say "$1: nothing is left"
}

say "building what is missing, so that the snapshots are about the cluster only"
for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do component "$name" >/dev/null; done
"$HACK/images/build.sh" pause coredns squid origin >/dev/null
"$here/snapshot.sh" >"$work/before"

"$here/up.sh"
KEEP=yes "$here/test-cluster.sh" # its pods still run when the cluster goes down
"$here/down.sh"
unchanged "up, pods, down"

for seconds in 1 4 8; do
	timeout --signal=KILL "$seconds" "$here/up.sh" || true
	"$here/down.sh"
	unchanged "up killed after ${seconds}s, down"
done

"$here/up.sh"
for name in kube-apiserver containerd kubelet; do
	say "killing $name"
	kill -9 "$(daemon_pid "$name")"
done
"$here/up.sh"
"$here/test-cluster.sh"
"$here/down.sh"
unchanged "repaired up, down"
"$here/down.sh"
unchanged "down without a cluster"
