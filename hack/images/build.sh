#!/usr/bin/env bash
# Builds container images as docker-archive files, without a registry and without a daemon, and prints their paths.
#
#   hack/images/build.sh NAME...    NAME: pause, coredns, squid, origin, crawler, operator
#
# An image is built when no archive of the same inputs is in the cache. Debian's buildah does the building; with
# CLUSTER=kind, Docker does, and base images come from their registries.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../cluster/lib/common.sh
. "$here/../cluster/lib/common.sh"
# shellcheck source=../cluster/lib/packages.sh
. "$here/../cluster/lib/packages.sh"

COREDNS_VERSION=1.15.0
UBUNTU_SQUID=docker.io/ubuntu/squid:6.6-24.04_edge # with Docker, instead of a root file system of our own
KEEP=3                                             # archives of one image that stay in the cache

# tag NAME: the image's name, as manifests write it.
tag() {
	case $1 in
	pause) echo localhost/pause:1 ;;
	coredns) echo localhost/coredns:$COREDNS_VERSION ;;
	squid) echo localhost/egress-squid:dev ;;
	origin) echo localhost/egress-origin:dev ;;
	crawler) echo localhost/egress-crawler:dev ;;
	operator) echo localhost/egress-proxies-operator:dev ;;
	*) die "unknown image $1: want pause, coredns, squid, origin, crawler or operator" ;;
	esac
}

suite() { . /etc/os-release && echo "$VERSION_CODENAME"; }

# commit: what the operator's `version` will say. The test asks git only about what goes into the image.
commit() {
	local id
	id=$(git -C "$REPO" rev-parse --short=12 HEAD 2>/dev/null) || { echo unknown; return; }
	[ -z "$(git -C "$REPO" status --porcelain -- "${OPERATOR_SOURCES[@]}" 2>/dev/null)" ] || id+=-dirty
	echo "$id"
}
CRAWLER_SOURCES=(e2e/crawler apis leasing go.mod go.sum)
OPERATOR_SOURCES=(apis cmd controllers internal leasing providers go.mod go.sum Dockerfile .dockerignore)

# inputs NAME: prints everything that the image is made of, or something that changes with it.
inputs() {
	declare -f context squid_rootfs
	case $1 in
	pause | origin) go version; cat "$here/$1"/* ;;
	crawler)
		go version
		cat "$here/crawler/Dockerfile"
		(cd "$REPO" && find "${CRAWLER_SOURCES[@]}" -type f ! -name '*_test.go' | LC_ALL=C sort | xargs -d '\n' sha256sum)
		;;
	coredns) component coredns; cat "$here/coredns/Dockerfile" ;;
	squid) suite; apt-cache policy squid | grep Candidate || true; cat "$here/squid/Dockerfile" ;;
	operator)
		go version
		commit
		(cd "$REPO" && find "${OPERATOR_SOURCES[@]}" -type f ! -name '*_test.go' | LC_ALL=C sort | xargs -d '\n' sha256sum)
		;;
	esac
}

# context NAME DIR: fills the build context.
context() {
	local name=$1 dir=$2
	case $name in
	pause | origin)
		cp "$here/$name/Dockerfile" "$dir"
		(cd "$REPO" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$dir/$name" "./hack/images/$name")
		;;
	crawler)
		cp "$here/crawler/Dockerfile" "$dir"
		(cd "$REPO" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$dir/crawler" ./e2e/crawler)
		;;
	coredns) cp "$here/coredns/Dockerfile" "$(component coredns)" "$dir" ;;
	squid)
		need_packages mmdebstrap=mmdebstrap
		cp "$here/squid/Dockerfile" "$dir"
		squid_rootfs "$dir/rootfs.tar"
		;;
	operator) ;;
	esac
}

# squid_rootfs FILE: the distribution's essential packages and Squid, from the machine's own package sources, which do not
# stay in the image.
squid_rootfs() {
	local sources=() file
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list.d/ubuntu.sources; do
		[ ! -s "$file" ] || sources+=("$file")
	done
	# shellcheck disable=SC2016
	mmdebstrap --quiet --variant=essential --include=squid,ca-certificates \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook='rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/var/lib/apt/lists/* "$1"/var/cache/*' \
		"$(suite)" "$1" "${sources[@]}"
}

# with_buildah NAME CONTEXT ARCHIVE: everything buildah keeps is in a directory of this run's own.
with_buildah() {
	local name=$1 dir=$2 archive=$3 work storage args=() failed="" path foreign=()
	need_packages buildah=buildah
	# It makes these whatever it is told; if nobody else uses them, they go again.
	for path in /var/lib/containers /etc/cni; do
		[ -e "$path" ] || foreign+=("$path")
	done
	work=$(mktemp -d "$CACHE/buildah.$$.XXXXXX")
	storage=(--root "$work/root" --runroot "$work/run" --storage-driver vfs)
	if [ "$name" = operator ]; then
		toolchain "$work" "${storage[@]}"
		# The Dockerfile's own build stage runs, with this machine's Go and Go's caches in place of the golang image's.
		args=(--build-arg "GO_IMAGE=localhost/toolchain" --build-arg BASE=scratch --build-arg "GIT_COMMIT=$(commit)"
			--volume "$(go_env GOROOT):/usr/local/go:ro" --volume "$(go_env GOMODCACHE):/go/pkg/mod"
			--volume "$(go_env GOCACHE):/go/cache" --build-arg "GOPROXY=$(go_env GOPROXY)")
		dir=$REPO
	fi
	buildah bud "${storage[@]}" --isolation chroot --quiet --tag "$(tag "$name")" "${args[@]}" "$dir" >"$work/log" 2>&1 &&
		buildah push "${storage[@]}" --quiet "$(tag "$name")" "docker-archive:$archive:$(tag "$name")" >>"$work/log" 2>&1 || failed=yes
	[ -z "$failed" ] || tail -n 30 "$work/log" >&2
	rm -rf "$work" "${foreign[@]}"
	[ -z "$failed" ] || die "the image $(tag "$name") could not be built"
}

# go_env NAME: asked in the repository, because its go.mod may call for another toolchain than the machine's.
go_env() { (cd "$REPO" && go env "$1"); }

# toolchain WORK STORAGE-FLAGS...: stands in for the golang image where no registry can be reached: a shell, a few tools
# and the certificate authorities of this machine. Go itself is mounted while the image is built.
toolchain() {
	local work=$1
	shift
	mkdir -p "$work/toolchain/"{bin,etc/ssl/certs,tmp,root}
	cp "$(static_busybox)" "$work/toolchain/bin/busybox"
	cp -L /etc/ssl/certs/ca-certificates.crt "$work/toolchain/etc/ssl/certs/" 2>/dev/null || true
	cp /etc/passwd "$work/toolchain/etc/passwd"
	local applet
	for applet in sh mkdir cp ls cat; do ln -s busybox "$work/toolchain/bin/$applet"; done
	cat >"$work/toolchain/Dockerfile" <<-'DOCKERFILE'
		FROM scratch
		COPY . /
		ENV PATH=/usr/local/go/bin:/bin GOPATH=/go GOTOOLCHAIN=local HOME=/root
	DOCKERFILE
	buildah bud "$@" --isolation chroot --quiet --tag localhost/toolchain "$work/toolchain" >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		return 1
	}
}

# static_busybox: prints its path. Unpacked, not installed: the package would replace the machine's own busybox.
static_busybox() {
	local program=$CACHE/busybox/busybox dir
	if [ ! -x "$program" ]; then
		dir=$(mktemp -d)
		(cd "$dir" && { apt-get download -qq busybox-static || { apt-get update -qq && apt-get download -qq busybox-static; }; } 2>/dev/null &&
			dpkg-deb -x ./*.deb .) >&2
		mkdir -p "$(dirname "$program")"
		mv "$dir"/bin/busybox "$program" 2>/dev/null || mv "$dir"/usr/bin/busybox "$program" # before or after the /usr merge
		rm -rf "$dir"
	fi
	echo "$program"
}

with_docker() {
	local name=$1 dir=$2 archive=$3 args=()
	[ "$name" != operator ] || { dir=$REPO args=(--build-arg "GIT_COMMIT=$(commit)"); }
	if [ "$name" = squid ]; then
		docker pull --quiet "$UBUNTU_SQUID" >&2
		docker tag "$UBUNTU_SQUID" "$(tag squid)"
	else
		docker build --quiet --tag "$(tag "$name")" "${args[@]}" "$dir" >&2
	fi
	docker save --output "$archive" "$(tag "$name")"
}

build() {
	local name=$1 key archive dir builder=with_buildah
	[ "${CLUSTER:-local}" != kind ] || builder=with_docker
	key=$( (echo "$builder"; inputs "$name") | sha256sum | cut -c1-16)
	archive=$CACHE/images/$name-$key.tar
	if [ ! -s "$archive" ]; then
		say "building image $(tag "$name") (usually $(usual "$name"))"
		mkdir -p "$CACHE/images"
		dir=$(mktemp -d "$CACHE/context.XXXXXX")
		# shellcheck disable=SC2064
		trap "rm -rf '$dir' '$archive.$$' '$CACHE'/buildah.$$.*" EXIT
		[ "$builder$name" = with_dockersquid ] || context "$name" "$dir"
		"$builder" "$name" "$dir" "$archive.$$"
		mv "$archive.$$" "$archive"
		rm -rf "$dir"
		# shellcheck disable=SC2012
		ls -t "$CACHE/images/$name-"*.tar | tail -n +$((KEEP + 1)) | xargs -r rm -f
	fi
	echo "$archive"
}
usual() {
	case $1 in
	squid) echo "about 80 s, once per Squid version" ;;
	operator) echo "10 to 60 s, as much as changed" ;;
	*) echo "a few seconds" ;;
	esac
}

[ $# -gt 0 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
for name in "$@"; do tag "$name" >/dev/null; done
for name in "$@"; do build "$name"; done
