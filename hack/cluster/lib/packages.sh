# shellcheck shell=bash
# Installs what comes from the distribution. Sourced, never run.

# need_packages COMMAND=PACKAGE...: installs the packages whose command (or absolute path) is missing.
need_packages() {
	local pair missing=()
	for pair in "$@"; do
		case ${pair%%=*} in
		/*) [ -e "${pair%%=*}" ] || missing+=("${pair#*=}") ;;
		*) command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}") ;;
		esac
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "missing: ${missing[*]}; only Debian's apt-get is known here, please install them"
	[ "$(id -u)" = 0 ] || die "missing: ${missing[*]}; please run: apt-get install --no-install-recommends ${missing[*]}"
	say "installing ${missing[*]} (usually under a minute, once)"
	local log
	log=$(mktemp)
	if ! install_without_services "${missing[@]}" >"$log" 2>&1 9<&-; then
		tail -n 20 "$log" >&2
		die "apt-get could not install ${missing[*]}; whole log: $log"
	fi
	rm -f "$log"
	# Nor are they started at the next boot.
	[ -d /run/systemd/system ] || return 0
	local package unit
	for package in "${missing[@]}"; do
		case $package in
		containerd) unit="containerd.service" ;;
		openssh-server) unit="ssh.service ssh.socket" ;;
		libvirt-daemon-system) unit="libvirtd.service libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirt-guests.service virtlogd.service virtlogd.socket virtlockd.service virtlockd.socket" ;;
		*) continue ;;
		esac
		# shellcheck disable=SC2086
		systemctl disable --now $unit >/dev/null 2>&1 || true
	done
}

# install_without_services PACKAGE...: Debian starts a service when it is installed. Here each test and cluster runs daemons of
# its own, and those would idle for ever. Another install that is running is waited for.
install_without_services() (
	policy=/usr/sbin/policy-rc.d
	if [ ! -e $policy ]; then
		trap 'rm -f $policy' EXIT
		printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
	fi
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -o DPkg::Lock::Timeout=300 -y -q --no-install-recommends "$@"
)
