# shellcheck shell=bash
# install_packages NAME...: installs those Debian packages that are missing.
install_packages() {
	local missing=()
	for name in "$@"; do
		dpkg-query -W -f='${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}
