//go:build bench

// Package bench measures the operator against what the same API server can do at best, on this machine and in this run. It
// prints ratios, since absolute times say little on a machine that others use. `make bench` runs everything; see
// docs/testing.md.
//
// One file per area; the others are what areas share. The managers run in a process of their own, which is this test
// binary once more, so that their CPU time and their heap are theirs alone.
package bench

import (
	"os"
	"testing"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(managersVariable); text != "" {
		os.Exit(runManagers(text))
	}
	if text := os.Getenv(echoVariable); text != "" {
		os.Exit(runEcho(text))
	}
	os.Exit(testenv.Run(m))
}
