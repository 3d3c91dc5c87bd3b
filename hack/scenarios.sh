#!/usr/bin/env bash
# Prints one line per scenario of docs/scenarios.md: the test that proves it, or why it is out. Runs the tests for that;
# with RESULTS=FILE it reads what `go test -json` printed before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ -n "${RESULTS:-}" ]; then
	go run ./hack/scenarios <"$RESULTS"
else
	hack/test.sh -json | go run ./hack/scenarios
fi
