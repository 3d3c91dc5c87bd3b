#!/usr/bin/env bash
# Builds the full image and prints its path: this machine's Debian with systemd, the real cloud-init and Squid, which user-data
# has to configure and start. The guest agent is not installed; its packages are in a source of the image's own, so that
# installing it works without a network. A list of all packages and versions is next to the image.
#
# The disk has a FAT partition, from which syslinux loads the kernel, and an ext4 one with the rest: no loop device, no mount.
# EGRESS_LIBVIRT_SCRATCH: a folder with 2 GB for the build; by default memory, where there is as much, else TMPDIR.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

BOOT_MIB=64 ROOT_MIB=1400 SCRATCH_KIB=2500000
PACKAGES=systemd,systemd-sysv,systemd-resolved,udev,dbus,linux-image-cloud-amd64,initramfs-tools,zstd,kmod,cloud-init,python3-minimal,squid,iproute2,netbase,ca-certificates

scratch() {
	local free
	free=$(df --output=avail /dev/shm 2>/dev/null | tail -n 1)
	if [ "${free:-0}" -gt $SCRATCH_KIB ] && [ "$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)" -gt $((2 * SCRATCH_KIB)) ]; then
		echo /dev/shm
	else
		echo "${TMPDIR:-/tmp}"
	fi
}

build_image() {
	local work files lists path excludes=()
	work=$(mktemp -d -p "${EGRESS_LIBVIRT_SCRATCH:-$(scratch)}" egress-full.XXXXXX)
	# shellcheck disable=SC2064
	trap "rm -rf --one-file-system '$work' '$1'" EXIT
	for path in doc man locale info; do excludes+=(--dpkgopt="path-exclude=/usr/share/$path/*"); done
	mapfile -t lists < <(sources)
	# The initramfs is made while the kernel is installed, so its configuration has to be there first.
	if ! TMPDIR=$work mmdebstrap --quiet --variant=minbase --mode=root --include=$PACKAGES "${excludes[@]}" \
		--dpkgopt=force-unsafe-io --dpkgopt=force-confold \
		--essential-hook="cp -r '$here/full/etc' \"\$1/\"" \
		--customize-hook="'$here/full/customize' \"\$1\"" \
		"$(suite)" "$work/root" "${lists[@]}" >"$work/log" 2>&1; then
		tail -n 30 "$work/log" >&2
		die "mmdebstrap could not make the root file system"
	fi
	chroot "$work/root" dpkg-query -W >"${1%.qcow2.*}.packages"

	files=$work/root/boot
	truncate -s ${BOOT_MIB}M "$work/boot"
	mkfs.vfat -F 16 "$work/boot" >/dev/null
	cp "$files"/vmlinuz-* "$work/vmlinuz"
	cp "$files"/initrd.img-* "$work/initrd"
	mcopy -i "$work/boot" "$work/vmlinuz" "$work/initrd" "$here/full/syslinux.cfg" ::
	syslinux --install "$work/boot"
	rm -f "$files"/*
	truncate -s ${ROOT_MIB}M "$work/ext4"
	mkfs.ext4 -q -F -L root -m 0 -O ^has_journal -d "$work/root" "$work/ext4"

	truncate -s $((1 + BOOT_MIB + ROOT_MIB))M "$work/disk"
	printf 'start=1MiB, size=%sMiB, type=e, bootable\ntype=83\n' $BOOT_MIB | sfdisk -q "$work/disk"
	dd if=/usr/lib/syslinux/mbr/mbr.bin of="$work/disk" bs=440 count=1 conv=notrunc status=none
	dd if="$work/boot" of="$work/disk" bs=1M seek=1 conv=notrunc,sparse status=none
	dd if="$work/ext4" of="$work/disk" bs=1M seek=$((1 + BOOT_MIB)) conv=notrunc,sparse status=none
	qemu-img convert -f raw -O qcow2 -c -o compression_type=zstd "$work/disk" "$1"
	rm -rf --one-file-system "$work"
	trap - EXIT
}

require_debian
need_packages mmdebstrap=mmdebstrap syslinux=syslinux /usr/lib/syslinux/mbr/mbr.bin=syslinux-common mcopy=mtools \
	mkfs.vfat=dosfstools mkfs.ext4=e2fsprogs sfdisk=fdisk qemu-img=qemu-utils
mapfile -t recipe < <(find "$here/full" -type f | LC_ALL=C sort)
cached full "3 to 15 minutes" "${BASH_SOURCE[0]}" "$here/lib.sh" "${recipe[@]}"
