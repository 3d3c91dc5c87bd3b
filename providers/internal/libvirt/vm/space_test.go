package vm

import (
	"testing"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/virtxml"
)

// TestFree: a thin disk counts with what it may still grow by, a promise as a whole, and other volumes not at all.
func TestFree(t *testing.T) {
	const id = "-6b1d2f1e-60a5-4b0a-9c0e-3d5a7d1f0c11"
	volumes := []virtxml.Volume{
		{Name: "px-a" + id + diskSuffix, Capacity: 100, Allocation: 30},
		{Name: "px-a" + id + seedSuffix, Capacity: 10, Allocation: 10},
		{Name: "px-b" + id + diskSuffix, Capacity: 50, Allocation: 60},
		{Name: "kvm2-base-debian-0123456789ab.qcow2", Capacity: 1000, Allocation: 1},
		{Name: "somebody's.img", Capacity: 1000},
	}
	if got := free(500, volumes, 40); got != 500-40-70 {
		t.Errorf("%d are free, want %d", got, 500-40-70)
	}
	if got := free(50, volumes, 0); got != -20 {
		t.Errorf("%d are free of a pool that is promised twice, want -20", got)
	}
}
