# shellcheck shell=bash
# Shared by the scripts of this folder. Sourced, never run.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../cluster/lib/common.sh
. "$here/../cluster/lib/common.sh"
# shellcheck source=../cluster/lib/packages.sh
. "$here/../cluster/lib/packages.sh"

KEEP=2 # images of one kind that stay in the cache

require_debian() {
	[ "$(uname -s)" = Linux ] && [ "$(uname -m)" = x86_64 ] || die "the hypervisors for tests need Linux on x86-64"
	[ "$(id -u)" = 0 ] || die "the hypervisors for tests run libvirtd and QEMU in namespaces, so they need root"
}

suite() { . /etc/os-release && echo "$VERSION_CODENAME"; }

# sources: the machine's own package sources, one file a line.
sources() {
	local file
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
		[ ! -s "$file" ] || echo "$file"
	done
}

# unpack PACKAGE DIR: the files of a package that is not installed here, because the machine's own programs would change.
unpack() {
	local dir
	dir=$(mktemp -d)
	(cd "$dir" && { apt-get download -qq "$1" || { apt-get update -qq && apt-get download -qq "$1"; }; } >log 2>&1 && dpkg-deb -x ./*.deb "$2") ||
		{ cat "$dir/log" >&2; rm -rf "$dir"; die "the package $1 could not be fetched and unpacked"; }
	rm -rf "$dir"
}

# kernel: the package with the kernel that linux-image-cloud-amd64 stands for.
kernel() {
	local name
	name=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $2; exit}')
	[ -n "$name" ] || { apt-get update -qq; name=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image-/ {print $2; exit}'); }
	[ -n "$name" ] || die "this distribution has no package linux-image-cloud-amd64"
	echo "$name"
}

# cached NAME USUAL RECIPE...: prints the path of the image that these files and this distribution make. When it is not in the
# cache, makes it with `build_image FILE` of the caller, aside, so that two builds at once never meet half an image.
cached() {
	local name=$1 usual=$2 key image
	shift 2
	key=$({ suite; go version; cat "$@"; } | sha256sum | cut -c1-12)
	image=$CACHE/libvirt/$name-$key.qcow2
	if [ ! -s "$image" ]; then
		say "building the $name image (usually $usual, once; kept in $CACHE/libvirt)"
		mkdir -p "$CACHE/libvirt"
		build_image "$image.$$" >&2
		mv "$image.$$" "$image"
		# shellcheck disable=SC2012
		ls -t "$CACHE/libvirt/$name-"*.qcow2 | tail -n +$((KEEP + 1)) | xargs -r rm -f
	fi
	echo "$image"
}
