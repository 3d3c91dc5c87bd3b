#!/usr/bin/env bash
# Runs the tests that are behind the build tag `libvirt`: real libvirt, QEMU and guests on hypervisors of a lab (lab.sh), which
# each test binary gets for itself. Arguments go to `go test`, whose output is then left as it is.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$REPO"
require_debian
need_packages /etc/libvirt/qemu.conf=libvirt-daemon-system virsh=libvirt-clients sshd=openssh-server qemu-system-x86_64=qemu-system-x86 \
	qemu-img=qemu-utils dnsmasq=dnsmasq-base iptables=iptables ip=iproute2
EGRESS_LAB_MINI=$("$here/build-mini.sh")
EGRESS_LAB_FULL=$("$here/build-full.sh")
export EGRESS_LAB_MINI EGRESS_LAB_FULL EGRESS_REQUIRE_ALL=1
EGRESS_LAB_LOGS=${EGRESS_LAB_LOGS:-$(mktemp -d)}
export EGRESS_LAB_LOGS
mkdir -p "$EGRESS_LAB_LOGS"
hack/component.sh etcd kube-apiserver >/dev/null
mapfile -t packages < <(grep -rl --include='*_test.go' '^//go:build libvirt$' ./cmd ./controllers ./e2e ./internal ./providers | xargs -n 1 dirname | sort -u)
say "two hypervisors, machines under emulation: ${packages[*]}"
# One binary after the other: the machines of one are enough for two cores. The limit is for a run that hangs.
run() { go test -tags libvirt -p 1 -count=1 -timeout 60m -exec "$here/lab.sh" "$@" "${packages[@]}"; }
log=$EGRESS_LAB_LOGS/go-test.log code=0
if [ $# -gt 0 ]; then
	run "$@" || code=$?
else
	# Every step and test with its time, when it ends.
	run -v | tee "$log" | sed -nuE '/^ *--- |^(ok|FAIL|panic:)|: +[0-9.]+ s until /p' || code=$?
fi
say "done in $((EPOCHSECONDS - EGRESS_STARTED)) s"
if [ $code = 0 ]; then
	rm -f "$log"
	rmdir "$EGRESS_LAB_LOGS" 2>/dev/null || true
else
	say "output and the hypervisors' logs are in $EGRESS_LAB_LOGS"
fi
exit $code
