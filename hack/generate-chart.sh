#!/usr/bin/env bash
# Brings the CRDs, roles and policies of config/ into the chart. Called by `make generate`, whose --verify finds a copy that
# is out of date.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
go run ./hack/chartgen .
