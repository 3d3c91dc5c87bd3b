#!/usr/bin/env bash
# Runs unit and control-plane tests with -race. The control plane is a real kube-apiserver and etcd, and for some tests a real
# kube-controller-manager, built once from pinned modules into the cache; the chart and the kustomization are tested with real
# helm and kubectl. Arguments go to `go test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=cluster/lib/common.sh
. hack/cluster/lib/common.sh
# shellcheck source=cluster/lib/packages.sh
. hack/cluster/lib/packages.sh
# The race detector needs cgo.
need_packages gcc=gcc /usr/include/stdio.h=libc6-dev
hack/component.sh etcd kube-apiserver kube-controller-manager kubectl helm >/dev/null
exec env CGO_ENABLED=1 go test -race -timeout 40m "$@" ./...
