package squidtest

import "syscall"

// attributes of Squid's process: a group of its own, and the end when the test binary ends however it does.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
