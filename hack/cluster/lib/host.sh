# shellcheck shell=bash disable=SC2034,SC2153
# What the cluster changes on the machine, recorded before it is changed so that `down` can put it back. Sourced, never run.

# Kernel settings that we, the kubelet or CNI plugins change.
SYSCTLS="net.ipv4.ip_forward net.ipv4.conf.all.forwarding net.ipv4.conf.default.forwarding
vm.overcommit_memory vm.panic_on_oom kernel.panic kernel.panic_on_oops kernel.keys.root_maxkeys kernel.keys.root_maxbytes"

# Directories outside of our own that containerd, the CNI plugins or the kubelet make.
FOREIGN_DIRS="/run/containerd /run/netns /var/lib/cni /var/log/containers /var/log/pods /var/lib/kubelet /etc/cni /opt/cni /opt/containerd
/run/kubernetes /usr/libexec/kubernetes /etc/kubernetes"

# record_host: once per cluster, before anything is changed.
record_host() {
	local key dir
	[ ! -e "$STATE/host/recorded" ] || return 0
	mkdir -p "$STATE/host"
	for key in $SYSCTLS; do
		[ ! -r "/proc/sys/${key//.//}" ] || echo "$key $(<"/proc/sys/${key//.//}")"
	done >"$STATE/host/sysctls"
	for dir in $FOREIGN_DIRS; do
		[ -e "$dir" ] || echo "$dir"
	done >"$STATE/host/absent-dirs"
	: >"$STATE/host/recorded"
}

# restore_sysctls: writes back what differs from the record.
restore_sysctls() {
	local key value
	[ -r "$STATE/host/sysctls" ] || return 0
	while read -r key value; do
		[ "$(<"/proc/sys/${key//.//}")" = "$value" ] || echo "$value" >"/proc/sys/${key//.//}"
	done <"$STATE/host/sysctls"
}

# remove_foreign_dirs: removes the directories that were not there before, if nothing of anybody else's is in them.
remove_foreign_dirs() {
	local dir
	[ -r "$STATE/host/absent-dirs" ] || return 0
	while read -r dir; do
		[ ! -d "$dir" ] || find "$dir" -xdev -depth -type d -empty -delete 2>/dev/null || true
	done <"$STATE/host/absent-dirs"
}

# cgroup_mounts: mount points of the cgroup hierarchies (one for cgroup v2, one per controller for v1).
cgroup_mounts() { awk '$3 == "cgroup" || $3 == "cgroup2" {print $2}' /proc/mounts; }

# make_cgroup: the parent of all pods' cgroups. Pods of another cluster on this machine are elsewhere.
make_cgroup() {
	local mount file controller
	while read -r mount; do
		[ ! -d "$mount/$CGROUP" ] || continue
		mkdir "$mount/$CGROUP"
		# v1: a new cpuset is empty and nothing can run in it.
		for file in cpuset.mems cpuset.cpus; do
			[ ! -f "$mount/$file" ] || [ ! -f "$mount/$CGROUP/$file" ] || [ -n "$(<"$mount/$CGROUP/$file")" ] ||
				cat "$mount/$file" >"$mount/$CGROUP/$file" 2>/dev/null || true
		done
		# v2: children have only the controllers that each parent passes on.
		grep -q . "$mount/cgroup.controllers" 2>/dev/null || continue
		for controller in cpu cpuset memory pids io hugetlb; do
			grep -qw "$controller" "$mount/cgroup.controllers" || continue
			if ! grep -qw "$controller" "$mount/cgroup.subtree_control"; then
				echo "+$controller" >"$mount/cgroup.subtree_control" && echo "$mount $controller" >>"$STATE/host/cgroup-controllers"
			fi
			echo "+$controller" >"$mount/$CGROUP/cgroup.subtree_control" || true
		done
	done < <(cgroup_mounts)
}

# cgroup_pids: every process in a pod of ours.
cgroup_pids() {
	local mount
	while read -r mount; do
		[ ! -d "$mount/$CGROUP" ] || find "$mount/$CGROUP" -name cgroup.procs -exec cat {} + 2>/dev/null
	done < <(cgroup_mounts) | sort -un
}

remove_cgroup() {
	local mount controller
	while read -r mount; do
		[ ! -d "$mount/$CGROUP" ] || find "$mount/$CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
	done < <(cgroup_mounts)
	[ -r "$STATE/host/cgroup-controllers" ] || return 0
	while read -r mount controller; do
		echo "-$controller" >"$mount/cgroup.subtree_control" 2>/dev/null || true # somebody may use it by now
	done <"$STATE/host/cgroup-controllers"
}

# make_network: the node's address, routes and filter rules. Pods get a veth pair each and are routed, not bridged, so that
# a Service's address translation sees both directions and the receiver always sees the sending pod's own address.
make_network() {
	if ! ip link show "$LINK" >/dev/null 2>&1; then
		CHANGED=yes
		ip link add "$LINK" type bridge
	fi
	ip addr replace "$NODE_IP/32" dev "$LINK"
	ip link set "$LINK" up
	# A machine without a default route could not even try to reach a Service otherwise.
	ip route replace "$SERVICE_CIDR" dev "$LINK" src "$NODE_IP"
	echo 1 >/proc/sys/net/ipv4/ip_forward
	local forward_was_off=""
	! grep -qx 'net.ipv4.ip_forward 0' "$STATE/host/sysctls" || forward_was_off="meta nfproto ipv4 drop"
	# Adding before deleting makes the whole replacement one transaction that never fails on a missing table.
	nft -f - <<-NFT
		table inet $NETWORK
		delete table inet $NETWORK
		table inet $NETWORK {
			# Only this machine and its pods may open connections to pods, Services, the API server and the kubelet.
			chain incoming {
				type filter hook prerouting priority mangle; policy accept;
				iifname { "lo", "$LINK" } accept
				iifname "veth*" accept
				ip daddr { $POD_CIDR, $SERVICE_CIDR } ct state != { established, related } drop
			}
			# Forwarding is needed for pods only: a machine that did not route before must not become a router.
			chain routed {
				type filter hook forward priority filter; policy accept;
				ip saddr $POD_CIDR accept
				ip daddr $POD_CIDR accept
				$forward_was_off
			}
			# Pods reach other machines with this machine's address, but pods, Services and this machine see the pod's own.
			chain outgoing {
				type nat hook postrouting priority srcnat; policy accept;
				oifname { "lo", "$LINK" } accept
				oifname "veth*" accept
				ip saddr $POD_CIDR ip daddr != { $POD_CIDR, $SERVICE_CIDR } masquerade
			}
		}
	NFT
	open_forwarding
}

# open_forwarding: a firewall that drops forwarded packets by policy (Docker's does) would drop the pods' too, and no rule
# in a table of our own can allow what another one drops.
open_forwarding() {
	local flag
	[ ! -e "$STATE/host/iptables" ] || return 0
	nft list ruleset | grep -q 'hook forward .*policy drop' || return 0
	command -v iptables >/dev/null || { say "warning: a firewall on this machine drops forwarded packets; allow $POD_CIDR there"; return; }
	: >"$STATE/host/iptables"
	for flag in -s -d; do iptables -I FORWARD $flag "$POD_CIDR" -j ACCEPT; done
}
close_forwarding() {
	local flag
	[ -e "$STATE/host/iptables" ] || return 0
	for flag in -s -d; do iptables -D FORWARD $flag "$POD_CIDR" -j ACCEPT 2>/dev/null || true; done
}

remove_network() {
	local link
	close_forwarding
	if command -v nft >/dev/null; then
		nft delete table inet "$NETWORK" 2>/dev/null || true
		nft delete table ip kube-proxy 2>/dev/null || true
		nft delete table ip6 kube-proxy 2>/dev/null || true
	fi
	# The kernel removes a veth pair with its namespace, a little later; what is still there gets a hand.
	wait_for 5 "the pods' links go" pod_links_gone || true
	for link in $(pod_links); do ip link delete "$link" 2>/dev/null || true; done
	ip link delete "$LINK" 2>/dev/null || true
}
# Our pods' links on the host side are those that carry the gateway's address.
pod_links() { ip -o -4 addr show to "$NODE_IP/32" | awk '{print $2}' | grep '^veth' || true; }
pod_links_gone() { [ -z "$(pod_links)" ]; }
