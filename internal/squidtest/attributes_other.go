//go:build !linux

package squidtest

import "syscall"

// attributes of Squid's process: a group of its own.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
