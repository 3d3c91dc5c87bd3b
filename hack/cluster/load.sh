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

# An import takes seconds, so an archive that is loaded already is skipped. What counts is what containerd has: the note
# remembers the line "name digest" that the import of this very file led to.
mkdir -p "$STATE/loaded"
image_line() { ctr_k8s images list "name==$1" | awk 'NR == 2 {print $1, $3}'; }
for archive in "$@"; do
	name=$(tar -xOf "$archive" manifest.json | sed -n 's/.*"RepoTags":\["\([^"]*\)"\].*/\1/p')
	[ -n "$name" ] || die "$archive: not a docker-archive with exactly one tag"
	stamp="$(realpath "$archive") $(stat -c '%s %Y' "$archive")"
	note=$STATE/loaded/${name//[^a-z0-9.]/_}
	[ ! -r "$note" ] || [ "$(<"$note")" != "$stamp"$'\n'"$(image_line "$name")" ] || continue
	say "loading $name"
	ctr_k8s images import --snapshotter "$(<"$STATE/snapshotter")" "$archive" >/dev/null
	printf '%s\n%s\n' "$stamp" "$(image_line "$name")" >"$note"
done
