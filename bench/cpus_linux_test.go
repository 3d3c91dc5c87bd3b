//go:build bench && linux

package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// The API server gets half of the CPUs and everything else the other half: the managers have a machine of their own in a
// cluster, and so have the clients that a rate is compared with. Where both sides share CPUs, a rate says as much about the
// clients as about the work that they make for the API server.

// apart runs start, which starts the control plane, on one half of the CPUs, and leaves the other half to this process and
// to those that it starts later. With one CPU there is nothing to share out.
func apart(t *testing.T, start func()) {
	t.Helper()
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		t.Fatalf("read the CPUs of this process: %v", err)
	}
	if all.Count() < 2 {
		start()
		return
	}
	var first, second unix.CPUSet
	taken := 0
	for cpu := range len(all) * strconv.IntSize {
		switch {
		case !all.IsSet(cpu):
		case taken < all.Count()/2:
			first.Set(cpu)
			taken++
		default:
			second.Set(cpu)
		}
	}
	// Processes inherit the CPUs of the thread that starts them.
	runOn(t, &first)
	start()
	runOn(t, &second)
	t.Cleanup(func() { runOn(t, &all) })
	fmt.Printf("# the API server has %d of %d CPUs, the managers and the clients the others\n", first.Count(), all.Count())
}

// runOn moves all threads of this process to some CPUs. New threads inherit theirs, so it goes on until none is missed.
func runOn(t *testing.T, cpus *unix.CPUSet) {
	t.Helper()
	moved := map[string]bool{}
	for {
		before := len(moved)
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Fatalf("list the threads of this process: %v", err)
		}
		for _, thread := range threads {
			id, err := strconv.Atoi(thread.Name())
			if err != nil || moved[thread.Name()] {
				continue
			}
			if err := unix.SchedSetaffinity(id, cpus); err != nil && err != unix.ESRCH {
				t.Fatalf("move a thread to its CPUs: %v", err)
			}
			moved[thread.Name()] = true
		}
		if len(moved) == before {
			break
		}
	}
	runtime.GOMAXPROCS(cpus.Count())
}
