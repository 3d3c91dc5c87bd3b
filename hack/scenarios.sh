#!/usr/bin/env bash
# Prints one line per scenario of docs/scenarios.md: the test that proves it, or why it is out. Runs the tests for that, also
# those with real hypervisors, which need root; with RESULTS=FILE it reads what `go test -json` printed before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -n "${RESULTS:-}" ]; then
	go run ./hack/scenarios <"$RESULTS"
else
	{
		code=0
		hack/test.sh -json || code=1
		hack/libvirt/test.sh -json || code=1
		exit $code
	} | go run ./hack/scenarios
fi
