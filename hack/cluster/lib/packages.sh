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
	if ! { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 9<&-; then
		tail -n 20 "$log" >&2
		die "apt-get could not install ${missing[*]}; whole log: $log"
	fi
	rm -f "$log"
	# Debian starts a service at install. The cluster runs a containerd of its own and this one would idle for ever.
	if [[ " ${missing[*]} " == *" containerd "* ]] && [ -d /run/systemd/system ]; then
		systemctl disable --now containerd.service >/dev/null 2>&1 || true
	fi
}
