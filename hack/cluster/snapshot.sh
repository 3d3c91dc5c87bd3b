#!/usr/bin/env bash
# Prints, in a stable order and without counters, everything on this machine that the local cluster could have changed,
# so that two snapshots can be compared: `up` and `down` in between must make no difference (see test-updown.sh).
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/common.sh
. "$here/lib/common.sh"

section() { printf '== %s\n' "$*"; }

section "processes of the cluster, and all in a network namespace of their own"
own_namespace=$(readlink /proc/self/ns/net)
for dir in /proc/[0-9]*; do
	# A process may end while it is looked at.
	{ args=$(tr '\0' ' ' <"$dir/cmdline") && namespace=$(readlink "$dir/ns/net"); } 2>/dev/null || continue
	[ -n "$namespace" ] || continue
	if [ "$namespace" != "$own_namespace" ] || grep -q "/$CGROUP" "$dir/cgroup" 2>/dev/null ||
		[[ $args == *"$STATE/"* || $args == *"$RUN/"* ]]; then
		echo "$(cat "$dir/comm" 2>/dev/null): $args"
	fi
done | sort

section "mounts"
# The cluster mounts nothing in /tmp, but chroots and tests of others come and go there.
awk '$5 !~ "^/tmp/" {print $5, $4}' /proc/self/mountinfo | sort

section "links and addresses"
ip -o addr show | sed -E 's/^[0-9]+: //; s/(valid|preferred)_lft [^ ]+//g' | sort
ip -o link show | sed -E 's/^[0-9]+: //; s/ (qlen|state) [^ ]+//g' | awk '{print $1, $2}' | sort

section "named network namespaces"
ls /run/netns 2>/dev/null || true

section "routes and rules"
ip -4 route show table all | sort
ip -6 route show table all | sed -E 's/ expires [^ ]+//' | sort
ip -4 rule show
ip -6 rule show

section "packet filter"
! command -v nft >/dev/null || nft --stateless list ruleset

section "cgroups"
# Two levels: deeper ones come and go with the machine's own services.
find /sys/fs/cgroup -maxdepth 2 -type d | sort
find /sys/fs/cgroup -path "*$CGROUP*" -type d | sort
find /sys/fs/cgroup -maxdepth 2 -name cgroup.subtree_control -exec grep -H . {} + 2>/dev/null | sort || true

section "kernel settings"
# Without those that count or draw lots.
sysctl --all 2>/dev/null | grep -Ev '^(fs\.(dentry-state|file-nr|inode-nr|inode-state|quota\.|aio-nr)|kernel\.(random\.|ns_last_pid|pty\.nr)|net\.netfilter\.nf_conntrack_count|net\.ipv[46]\.(conf|neigh)\.veth)' | sort

section "files"
for path in "$STATE" "$RUN" /run/containerd /run/netns /var/lib/cni /var/lib/kubelet /var/log/containers /var/log/pods \
	/etc/cni /opt/cni /opt/containerd /run/kubernetes /etc/kubernetes /usr/libexec/kubernetes /var/lib/containerd /var/lib/containers; do
	[ ! -e "$path" ] || find "$path" -xdev -maxdepth 2 | sort
done
