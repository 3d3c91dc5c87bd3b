//go:build bench && !linux

package bench

import "testing"

// apart runs start; how CPUs are shared out is known for Linux only.
func apart(_ *testing.T, start func()) { start() }
