package libvirtlab

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const libvirtdPIDFile = "/run/libvirt/libvirtd.pid"

// StopLibvirtd ends the host's libvirtd as a package's upgrade does. Its machines go on.
func (h Host) StopLibvirtd(t testing.TB) {
	t.Helper()
	h.Exec(t, "sh", "-c", `pid=$(cat `+libvirtdPIDFile+`) && kill $pid && while [ -d /proc/$pid ]; do sleep 0.1; done`)
}

// StartLibvirtd starts it again.
func (h Host) StartLibvirtd(t testing.TB) {
	t.Helper()
	h.Exec(t, "libvirtd", "-d", "-p", libvirtdPIDFile)
}

// RestartSSH ends the host's sshd with all of its sessions, and starts it again.
func (h Host) RestartSSH(t testing.TB) {
	t.Helper()
	h.Exec(t, "sh", "-c", `
		pid=$(cat "$0/sshd.pid") && sessions=$(cat /proc/$pid/task/$pid/children) && kill -9 $pid $sessions &&
		while [ -d /proc/$pid ]; do sleep 0.1; done && exec /usr/sbin/sshd -f "$0/ssh/sshd_config" -E "$0/sshd.log"`, h.dir())
}

// QEMU is the process of a machine on the host, and when it was started, in ticks: another one is another boot.
func (h Host) QEMU(t testing.TB, domain string) string {
	t.Helper()
	return strings.TrimSpace(h.Exec(t, "sh", "-c", `pid=$(cat /run/libvirt/qemu/"$0".pid) && sed "s/.*) //" /proc/$pid/stat | cut -d" " -f20 && echo $pid`, domain))
}

// dir is the lab's folder with what the host is made of.
func (h Host) dir() string { return filepath.Dir(filepath.Dir(h.KeyFile)) }

// Credentials are for a class that has all these hosts: one key, which from now on all of them accept, and known_hosts.
func Credentials(t testing.TB, hosts ...Host) (key, knownHosts []byte) {
	t.Helper()
	public := strings.TrimSpace(string(contents(t, hosts[0].KeyFile+".pub")))
	for _, h := range hosts {
		file := filepath.Join(filepath.Dir(h.KeyFile), "authorized_keys")
		if lines := contents(t, file); !strings.Contains(string(lines), public) {
			if err := os.WriteFile(file, append(lines, []byte("restrict,port-forwarding "+public+"\n")...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		knownHosts = append(knownHosts, contents(t, h.KnownHostsFile)...)
	}
	return contents(t, hosts[0].KeyFile), knownHosts
}

// Site is the name of a site on the Internet as far as guests are concerned, and its address, at which a test may listen.
func Site(t testing.TB) (name, address string) {
	t.Helper()
	lab(t)
	name, address = os.Getenv("EGRESS_LAB_SITE"), os.Getenv("EGRESS_LAB_SITE_ADDRESS")
	if got, err := net.DefaultResolver.LookupHost(context.WithoutCancel(t.Context()), name); err != nil || len(got) != 1 || got[0] != address {
		t.Fatal(errors.Join(errors.New("the lab's site "+name+" is not at "+address), err))
	}
	return name, address
}

func contents(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
