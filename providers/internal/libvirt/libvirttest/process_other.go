//go:build !linux

package libvirttest

import "syscall"

// attributes of a daemon's process: a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// children of a process are not known here.
func children(int) []int { return nil }

// running is not known here.
func running(int) bool { return false }
