#!/usr/bin/env bash
# Regenerates everything that is derived from the Go types: deep copies, apply configurations, CRDs, and the copies of CRDs
# and RBAC in the chart. With --verify it fails when that changes anything.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

generate() {
	local gen
	gen=$(hack/component.sh controller-gen)
	"$gen" object:headerFile=hack/boilerplate.go.txt crd \
		applyconfiguration:headerFile=hack/boilerplate.go.txt \
		paths=./apis/... output:crd:artifacts:config=config/crd/bases
	# A condition is written whole by one manager. No marker says so of a type that is not ours; without it the API server
	# tracks the owner of each of its fields, which makes every write of a status dearer.
	sed -i '/^ *- type$/{n;s/^\( *\)type: object$/&\n\1x-kubernetes-map-type: atomic/}' config/crd/bases/*.yaml
	if [ -x hack/generate-chart.sh ]; then hack/generate-chart.sh; fi
}

digest() { git ls-files -co --exclude-standard apis config charts | sort | xargs -d '\n' -r sha256sum 2>/dev/null | sha256sum; }

if [ "${1:-}" = --verify ]; then
	before=$(digest)
	generate
	if [ "$before" != "$(digest)" ]; then
		git status --short apis config charts >&2
		echo "generated files are out of date: run 'make generate' and commit the result" >&2
		exit 1
	fi
else
	generate
fi
