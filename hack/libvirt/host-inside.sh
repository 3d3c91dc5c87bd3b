#!/usr/bin/env bash
# The first process of a hypervisor (see host-up.sh): DIR NAME INDEX AUTOSTART. Everything of the host ends with it.
set -euo pipefail
dir=$1 name=$2 index=$3 autostart=$4
hostname "$name"
for path in etc var/lib var/cache var/log; do mount --bind "$dir/${path//\//-}-libvirt" "/$path/libvirt"; done
for file in passwd group shadow; do mount --bind "$dir/$file" "/etc/$file"; done
mkdir -p /run/libvirt
mount -t tmpfs -o mode=755 tmpfs /run/libvirt
mount -t sysfs sysfs /sys # the links of this network namespace
# Machines are emulated, whatever this machine could do: a test that passes here passes everywhere. What is there instead must
# not be accessible: libvirt would ask QEMU again and again why it makes no use of it.
if [ -e /dev/kvm ]; then
	install -m 000 /dev/null /run/libvirt/no-kvm
	mount --bind /run/libvirt/no-kvm /dev/kvm
fi

ip link set lo up
until ip link set up0 up 2>/dev/null; do read -rt 0.05 <> <(:) || true; done # the cable is plugged in from outside
ip address add "10.77.$index.1/24" dev up0
ip route add default via "10.77.$index.254"
echo 1 >/proc/sys/net/ipv4/ip_forward
ip link add br0 type bridge forward_delay 0
ip address add "10.79.$index.1/24" dev br0
ip link set br0 up
dnsmasq --conf-file=/dev/null --interface=br0 --bind-interfaces --except-interface=lo --no-resolv --pid-file= \
	--dhcp-range="10.79.$index.10,10.79.$index.200,1h" --dhcp-leasefile="$dir/br0.leases" --log-facility="$dir/br0-dhcp.log"

# A network that starts with libvirtd is a link here.
[ "$autostart" = yes ] || rm -f /etc/libvirt/qemu/networks/autostart/egress.xml
virtlogd -d -p /run/libvirt/virtlogd.pid
libvirtd -d -p /run/libvirt/libvirtd.pid
virsh() { command virsh -q -c qemu:///system "$@"; }
# libvirt runs every QEMU once to see what it can, and remembers that: on a busy machine it takes longer than a client waits.
virsh capabilities >/dev/null
if ! virsh pool-info egress >/dev/null 2>&1; then
	virsh pool-define-as egress dir --target /var/lib/libvirt/images/egress
	virsh pool-autostart egress
	virsh pool-start egress
	cat >"$dir/network.xml" <<-XML
		<network>
		  <name>egress</name>
		  <forward mode='route'/>
		  <bridge name='virbr0' stp='off' delay='0'/>
		  <ip address='10.78.$index.1' netmask='255.255.255.0'>
		    <dhcp><range start='10.78.$index.10' end='10.78.$index.200'/></dhcp>
		  </ip>
		</network>
	XML
	virsh net-define "$dir/network.xml"
	[ "$autostart" = no ] || virsh net-start egress
fi
[ "$autostart" = no ] || virsh net-autostart egress
/usr/sbin/sshd -f "$dir/ssh/sshd_config" -E "$dir/sshd.log"
: >"$dir/ready"
# Ends what lost its parent: libvirt waits for a QEMU that nobody buries.
while :; do
	sleep 3600 &
	wait $! || true
done
