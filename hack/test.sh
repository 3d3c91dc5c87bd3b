#!/usr/bin/env bash
# Runs unit and control-plane tests with -race. The control plane is a real kube-apiserver and etcd, built once from pinned
# modules into the cache; the chart and the kustomization are tested with real helm and kubectl. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
hack/component.sh etcd kube-apiserver kubectl helm >/dev/null
# The race detector needs cgo.
command -v gcc >/dev/null || { echo "make test needs gcc for the race detector: apt-get install gcc libc6-dev" >&2; exit 1; }
exec env CGO_ENABLED=1 go test -race -timeout 20m "$@" ./...
