#!/usr/bin/env bash
# Builds the mini image and prints its path: a machine that is up in seconds under emulation. Debian's cloud kernel, and in its
# initramfs busybox, Debian's QEMU guest agent and the forward proxy of ./guest. mini/init reads the NoCloud seed, which it shows
# to whoever asks; it carries out nothing of it.
#
# The disk is a FAT file system without partitions that syslinux makes bootable: no loop device, no mount.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

DISK=48M
# What the kernel needs to find disk, seed, network and agent on every machine type that libvirt may choose.
MODULES="virtio_pci virtio_blk virtio_net virtio_console virtio_scsi virtio_rng isofs sr_mod ata_piix sd_mod failover"
APPLETS="sh mount mkdir insmod udhcpc ip hostname sleep cat sed echo ln cut"

modules() { # TREE VERSION: paths of the modules and what they depend on, in loading order, relative to TREE
	local name
	for name in $MODULES; do
		{ modprobe -d "$1" -S "$2" --show-depends "$name" 2>/dev/null || true; } | { grep '^insmod ' || true; } | cut -d' ' -f2
	done | awk '!seen[$0]++' | sed "s#^$1##"
}

build_image() {
	local work root version applet file
	work=$(mktemp -d)
	# shellcheck disable=SC2064
	trap "rm -rf '$work' '$1'" EXIT
	root=$work/root
	unpack "$(kernel)" "$work"
	unpack busybox-static "$work"
	unpack qemu-guest-agent "$work"
	version=$(ls "$work/lib/modules")
	mkdir -p "$root"/{bin,proc,sys,dev,run,tmp,seed,etc,var/run}
	mv "$work"/bin/busybox "$root/bin/" 2>/dev/null || mv "$work"/usr/bin/busybox "$root/bin/" # before or after the /usr merge
	for applet in $APPLETS; do ln -s busybox "$root/bin/$applet"; done
	depmod -b "$work" "$version"
	modules "$work" "$version" >"$root/etc/modules"
	while read -r file; do install -D -m644 "$work$file" "$root$file"; done <"$root/etc/modules"
	install -m755 "$work/usr/sbin/qemu-ga" "$root/bin/qemu-ga"
	# Its libraries are there with QEMU.
	ldd "$root/bin/qemu-ga" | grep -o '/[^ ]*' | while read -r file; do mkdir -p "$root$(dirname "$file")" && cp -L "$file" "$root$file"; done
	(cd "$REPO" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$root/bin/guest" ./hack/libvirt/guest)
	install -m755 "$here/mini/init" "$root/init"
	install -m755 "$here/mini/dhcp" "$root/etc/dhcp"
	(cd "$root" && find . | LC_ALL=C sort | cpio -o -H newc --quiet --reproducible) | zstd -q -6 >"$work/initrd"
	cp "$work"/boot/vmlinuz-* "$work/vmlinuz"
	truncate -s $DISK "$work/disk"
	mkfs.vfat -F 16 "$work/disk" >/dev/null
	mcopy -i "$work/disk" "$work/vmlinuz" "$work/initrd" "$here/mini/syslinux.cfg" ::
	syslinux --install "$work/disk"
	qemu-img convert -f raw -O qcow2 -c "$work/disk" "$1"
	rm -rf "$work"
	trap - EXIT
}

require_debian
need_packages syslinux=syslinux /usr/lib/syslinux/modules/bios/menu.c32=syslinux-common mcopy=mtools mkfs.vfat=dosfstools cpio=cpio \
	zstd=zstd modprobe=kmod qemu-system-x86_64=qemu-system-x86 qemu-img=qemu-utils
cached mini "half a minute" "${BASH_SOURCE[0]}" "$here/lib.sh" "$here"/mini/* "$here"/guest/*.go
