package libvirttest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// attributes of a daemon's process: a group of its own, and the end when the test binary ends however it does.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// running tells whether a process has not ended.
func running(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.HasPrefix(string(data[strings.LastIndexByte(string(data), ')')+1:]), " Z")
}

// children are the processes that a process has started and that have not ended.
func children(parent int) []int {
	var out []int
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// The name, in brackets, may have spaces in it.
		fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
		if len(fields) > 1 && fields[0] != "Z" && fields[1] == strconv.Itoa(parent) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/stat", &pid); err == nil {
				out = append(out, pid)
			}
		}
	}
	return out
}
