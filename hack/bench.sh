#!/usr/bin/env bash
# Runs the benchmark of one area and prints its results: lines `bench AREA/NAME VALUE` and, behind #, how they came about.
# The exit code is that of the run, which fails when a bound is missed; then the rest of its output is on stderr.
#
#   hack/bench.sh AREA
#
# BENCH_PROFILES=FOLDER keeps CPU profiles there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
area=${1:?usage: hack/bench.sh AREA}
hack/component.sh etcd kube-apiserver >/dev/null
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The limit is for a run that hangs; every step of a benchmark has one of its own.
if ! go test -v -tags bench -count=1 -timeout 30m -run "^Test${area^}\$" ./bench/ 2>&1 | tee "$log" | grep --line-buffered -E '^(bench|#) '; then
	grep -vE '^(bench|#) ' "$log" >&2 || true
	exit 1
fi
