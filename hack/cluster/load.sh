#!/usr/bin/env bash
# Loads image archives (docker-archive tar files, as hack/images/build.sh makes them) into the cluster.
#
#   hack/cluster/load.sh ARCHIVE...
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib/common.sh
. "$here/lib/common.sh"

[ $# -gt 0 ] || { sed -n '2,4p' "$0" >&2; exit 2; }
for archive in "$@"; do
	[ -r "$archive" ] || die "cannot read the archive $archive"
done
[ "${CLUSTER:-local}" != kind ] || exec "$here/kind.sh" load "$@"

# An import takes seconds, so a file that is loaded already is skipped. What counts is the image's digest in containerd:
# the note remembers which digest the import of this very file gave.
mkdir -p "$STATE/loaded"
for archive in "$@"; do
	note=$STATE/loaded/$(realpath "$archive" | sha256sum | cut -c1-16)
	stamp=$(stat -c '%s %Y' "$archive")
	if [ -r "$note" ] && [ "$(head -n 1 "$note")" = "$stamp" ]; then
		images=$(tail -n +2 "$note")
		[ "$(ctr_k8s images list | awk '{print $1, $3}' | grep -cxF "$images")" != "$(wc -l <<<"$images")" ] || continue
	fi
	say "loading $(basename "$archive")"
	names=$(tar -xOf "$archive" manifest.json | grep -o '"RepoTags":\[[^]]*\]' | grep -o '"[^"]*:[^"]*"' | tr -d '"' | grep -v '^RepoTags')
	ctr_k8s images import --snapshotter "$(<"$STATE/snapshotter")" "$archive" >/dev/null
	{
		echo "$stamp"
		ctr_k8s images list | awk '{print $1, $3}' | grep -F "$(sed 's/$/ /' <<<"$names")"
	} >"$note"
done
