#!/usr/bin/env bash
# Builds a pinned helper program from its Go module and prints the path of the binary.
#
#   hack/component.sh NAME...          build what is missing
#   hack/component.sh --find NAME...   only look, and fail when one is missing
#
# Every helper (kube-apiserver, etcd, helm, golangci-lint, ...) is a `tool` of a module of its own under
# hack/components, so that its dependencies never reach the product's go.mod and its version stands in one place.
# A binary is built once and kept in a cache outside the repository, keyed by version and platform.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${EGRESS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/egress-proxies-operator}

# name -> module directory, import path, module that carries the version, usual cold build time on two cores
describe() {
	case $1 in
	kube-apiserver) echo kubernetes k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes "8 min" ;;
	kube-controller-manager) echo kubernetes k8s.io/kubernetes/cmd/kube-controller-manager k8s.io/kubernetes "3 min" ;;
	kube-scheduler) echo kubernetes k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes "1 min" ;;
	kubelet) echo kubernetes k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes "2 min" ;;
	kube-proxy) echo kubernetes k8s.io/kubernetes/cmd/kube-proxy k8s.io/kubernetes "1 min" ;;
	kubectl) echo kubernetes k8s.io/kubernetes/cmd/kubectl k8s.io/kubernetes "1 min" ;;
	etcd) echo etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3 "1 min" ;;
	coredns) echo coredns github.com/coredns/coredns github.com/coredns/coredns "3 min" ;;
	helm) echo helm helm.sh/helm/v4/cmd/helm helm.sh/helm/v4 "3 min" ;;
	controller-gen) echo controller-gen sigs.k8s.io/controller-tools/cmd/controller-gen sigs.k8s.io/controller-tools "1 min" ;;
	golangci-lint) echo golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint github.com/golangci/golangci-lint/v2 "5 min" ;;
	*) echo "hack/component.sh: unknown component $1" >&2; exit 2 ;;
	esac
}

build() {
	local name=$1 dir path module usual version target flags
	read -r dir path module usual < <(describe "$name")
	dir=$here/components/$dir
	version=$(cd "$dir" && GOFLAGS=-mod=mod go list -m -f '{{.Version}}' "$module")
	target=$cache/$name-$version-$(go env GOOS)-$(go env GOARCH)/$name
	if [ ! -x "$target" ]; then
		if $find_only; then
			echo "hack/component.sh: $name $version is not in $cache" >&2
			exit 1
		fi
		echo "building $name $version (usually about $usual, once; kept in $cache)" >&2
		mkdir -p "$(dirname "$target")"
		flags="-s -w"
		case $module in
		k8s.io/kubernetes)
			flags+=" -X k8s.io/component-base/version.gitVersion=$version"
			flags+=" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$version")" ;;
		helm.sh/helm/v4) flags+=" -X helm.sh/helm/v4/internal/version.version=$version" ;;
		esac
		# Two builds at once must not meet half a file: build aside, then rename.
		(cd "$dir" && CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags "$flags" -o "$target.$$" "$path")
		mv "$target.$$" "$target"
	fi
	echo "$target"
}

find_only=false
if [ "${1:-}" = --find ]; then find_only=true; shift; fi
[ $# -gt 0 ] || { sed -n '2,10p' "$0" >&2; exit 2; }
for name in "$@"; do build "$name"; done
