#!/usr/bin/env bash
# Starts a hypervisor within the lab (lab.sh), or starts it again after host-down.sh --keep, and prints the path of its
# host.json.
#
#   hack/libvirt/host-up.sh NAME [--network-inactive]
#
# A hypervisor is namespaces (network, mounts, host name, processes) with a libvirtd, virtlogd and sshd of its own, a storage
# pool "egress", a libvirt network "egress" and a bridge br0 on whose network another DHCP server answers. With
# --network-inactive the libvirt network is not started, as on a host that boots and where somebody forgot "autostart".
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../cluster/lib/common.sh
. "$here/../cluster/lib/common.sh"

name=${1:?usage: host-up.sh NAME [--network-inactive]} autostart=yes
[ "${2:-}" != --network-inactive ] || autostart=no
[[ $name =~ ^[a-z][a-z0-9-]{0,9}$ ]] || die "host name $name: want at most 10 of a-z, 0-9 and -"
[ -n "${EGRESS_LAB:-}" ] || die "host-up.sh runs within the lab: hack/libvirt/lab.sh"
dir=$EGRESS_LAB/$name
[ ! -e "$dir/pid" ] || die "the host $name is up"

new() {
	local index=1 key
	until mkdir "$EGRESS_LAB/.index-$index" 2>/dev/null; do index=$((index + 1)); done # two may come at once
	mkdir -p "$dir"/{var-log-libvirt/qemu,var-cache-libvirt,ssh}
	echo "$index" >"$dir/index"
	# The package's own state, as on a machine where it was just installed.
	cp -a /etc/libvirt "$dir/etc-libvirt"
	cp -a /var/lib/libvirt "$dir/var-lib-libvirt"
	# What another host has found out about QEMU holds here as well.
	local other
	for other in "$EGRESS_LAB"/*/var-cache-libvirt/qemu; do
		if [ -e "$other" ]; then cp -a "$other" "$dir/var-cache-libvirt/" && break; fi
	done
	rm -rf "$dir"/etc-libvirt/{qemu,storage}/{networks,autostart} "$dir"/var-lib-libvirt/images/*
	mkdir -p "$dir/var-lib-libvirt/images/egress"
	chmod 711 "$dir/var-lib-libvirt/images" "$dir/var-lib-libvirt/images/egress"
	cat >"$dir/etc-libvirt/libvirtd.conf" <<-CONF
		unix_sock_group = "libvirt"
		unix_sock_rw_perms = "0770"
		auth_unix_rw = "none"
		auth_unix_ro = "none"
		host_uuid = "$(</proc/sys/kernel/random/uuid)"
		log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
	CONF
	cat >"$dir/etc-libvirt/qemu.conf" <<-CONF
		security_driver = "none"
		cgroup_controllers = []
		namespaces = []
		stdio_handler = "logd"
	CONF
	# The account that the guide describes: no shell, member of libvirt, its key good for forwarding only.
	for file in passwd group shadow; do cp -a "/etc/$file" "$dir/$file"; done
	echo "egress:x:5077:5077::/nonexistent:/usr/sbin/nologin" >>"$dir/passwd"
	echo "egress:x:5077:" >>"$dir/group"
	echo 'egress:*:19000::::::' >>"$dir/shadow"
	sed -i '/^libvirt:/ { s/:$/:egress/; t; s/$/,egress/ }' "$dir/group"
	for key in ed25519 ecdsa; do ssh-keygen -q -t $key -N '' -C "$name" -f "$dir/ssh/host_$key"; done
	ssh-keygen -q -t ed25519 -N '' -C client -f "$dir/ssh/client"
	echo "restrict,port-forwarding $(<"$dir/ssh/client.pub")" >"$dir/ssh/authorized_keys"
	for key in ed25519 ecdsa; do
		echo "10.77.$index.1 $(cut -d' ' -f1,2 "$dir/ssh/host_$key.pub")"
	done >"$dir/ssh/known_hosts"
	cat >"$dir/ssh/sshd_config" <<-CONF
		Port 22
		HostKey $dir/ssh/host_ed25519
		HostKey $dir/ssh/host_ecdsa
		PidFile $dir/sshd.pid
		AuthorizedKeysFile $dir/ssh/authorized_keys
		StrictModes no
		UsePAM no
		PasswordAuthentication no
		KbdInteractiveAuthentication no
		LogLevel VERBOSE
	CONF
	cat >"$dir/host.json" <<-JSON
		{
		  "name": "$name",
		  "address": "10.77.$index.1",
		  "port": 22,
		  "user": "egress",
		  "keyFile": "$dir/ssh/client",
		  "knownHostsFile": "$dir/ssh/known_hosts",
		  "socket": "/run/libvirt/libvirt-sock",
		  "uri": "qemu:///system",
		  "pool": "egress",
		  "poolPath": "/var/lib/libvirt/images/egress",
		  "network": "egress",
		  "networkPrefix": "10.78.$index.0/24",
		  "bridge": "br0",
		  "bridgePrefix": "10.79.$index.0/24",
		  "labAddress": "$EGRESS_LAB_ADDRESS"
		}
	JSON
}

[ -e "$dir/host.json" ] || new
index=$(<"$dir/index")
rm -f "$dir/ready"
setsid unshare --net --mount --uts --pid --fork --kill-child --mount-proc --propagation private \
	"$here/host-inside.sh" "$dir" "$name" "$index" $autostart >>"$dir/host.log" 2>&1 </dev/null &
outer=$!
# The two ends of the cable: the new namespace is there as soon as its first process is.
first() { first=$(<"/proc/$outer/task/$outer/children") && first=${first%% *} && [ -n "$first" ] && [ "$(readlink "/proc/$first/ns/net")" != "$(readlink /proc/self/ns/net)" ]; }
wait_for 30 "the namespaces of $name" first || { cat "$dir/host.log" >&2; exit 1; }
echo "$first" >"$dir/pid"
ip link add "v-$name" type veth peer name up0 netns "$first"
ip address add "10.77.$index.254/24" dev "v-$name"
ip link set "v-$name" up
ip route replace "10.78.$index.0/24" via "10.77.$index.1"
ip route replace "10.79.$index.0/24" via "10.77.$index.1"
ready() { [ -e "$dir/ready" ] || [ ! -d "/proc/$outer" ]; }
wait_for 120 "the start of $name" ready || true
[ -e "$dir/ready" ] || { tail -n 30 "$dir/host.log" >&2; kill -9 "$first" 2>/dev/null || true; rm -f "$dir/pid"; die "the host $name did not start"; }
echo "$dir/host.json"
