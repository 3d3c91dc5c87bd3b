// Package libvirtlab is what tests on real hypervisors share: hack/libvirt/lab.sh starts them and runs the test binary beside
// them, this package says where they are and does to them what happens to hosts. Such tests are behind the build tag libvirt;
// `make test-libvirt` runs them.
package libvirtlab

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// How long things may take on a busy machine, at least six times what they take on an idle one.
const (
	// BootLimit is for a machine with the mini image, from its start to its answer.
	BootLimit = 4 * time.Minute
	// FullBootLimit is for one with the full image, until Squid answers.
	FullBootLimit = 10 * time.Minute
	// SettleLimit is for what libvirt finds out by itself: a machine that stopped, an agent that connects.
	SettleLimit = 2 * time.Minute
	// commandLimit is for one of the lab's scripts.
	commandLimit = 3 * time.Minute
	pollPeriod   = 200 * time.Millisecond
)

// Host is a hypervisor, as host-up.sh describes it.
type Host struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Port    int    `json:"port"`
	User    string `json:"user"`
	// KeyFile and KnownHostsFile are for the user's login.
	KeyFile        string `json:"keyFile"`
	KnownHostsFile string `json:"knownHostsFile"`
	Socket         string `json:"socket"`
	URI            string `json:"uri"`
	// Pool is the name of the storage pool, PoolPath its folder on the host.
	Pool     string `json:"pool"`
	PoolPath string `json:"poolPath"`
	// Network is of libvirt and knows its leases; Bridge is one on which another DHCP server answers. The prefixes are theirs.
	Network       string `json:"network"`
	NetworkPrefix string `json:"networkPrefix"`
	Bridge        string `json:"bridge"`
	BridgePrefix  string `json:"bridgePrefix"`
	// LabAddress is where guests reach what the test listens on.
	LabAddress string `json:"labAddress"`
}

// Hosts that the lab has from its start, by name. Outside of a lab the test is skipped, or fails when nothing may be missing.
func Hosts(t testing.TB) []Host {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(lab(t), "h[0-9]*", "host.json"))
	if err != nil {
		t.Fatal(err)
	}
	hosts := make([]Host, 0, len(files))
	for _, file := range files {
		hosts = append(hosts, read(t, file))
	}
	slices.SortFunc(hosts, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	return hosts
}

// Start makes another host, which ends with the test. Its name is not one of those that Hosts has.
func Start(t testing.TB, name string) Host {
	t.Helper()
	host := read(t, strings.TrimSpace(script(t, "host-up.sh", name)))
	t.Cleanup(func() {
		if t.Failed() {
			// Its logs are worth keeping.
			script(t, "host-down.sh", name, "--keep")
			return
		}
		script(t, "host-down.sh", name)
	})
	return host
}

// PowerCut ends everything that runs on the host at once. Its disk stays.
func (h Host) PowerCut(t testing.TB) {
	t.Helper()
	script(t, "host-down.sh", h.Name, "--keep")
}

// Boot starts the host after a PowerCut.
func (h Host) Boot(t testing.TB) {
	t.Helper()
	script(t, "host-up.sh", h.Name)
}

// BootWithoutNetwork starts the host after a PowerCut, with its libvirt network inactive.
func (h Host) BootWithoutNetwork(t testing.TB) {
	t.Helper()
	script(t, "host-up.sh", h.Name, "--network-inactive")
}

// Exec runs a command on the host as its root and returns what it prints. The test fails when the command does.
func (h Host) Exec(t testing.TB, command ...string) string {
	t.Helper()
	return script(t, "host-exec.sh", append([]string{h.Name}, command...)...)
}

// Virsh runs a command of virsh on the host.
func (h Host) Virsh(t testing.TB, command ...string) string {
	t.Helper()
	return h.Exec(t, append([]string{"virsh", "-q", "-c", h.URI}, command...)...)
}

// Domains are the names of all domains, running or not.
func (h Host) Domains(t testing.TB) []string {
	t.Helper()
	return strings.Fields(h.Virsh(t, "list", "--all", "--name"))
}

// Files are the names in the pool's folder, one of which must not have a line break.
func (h Host) Files(t testing.TB) []string {
	t.Helper()
	return strings.FieldsFunc(h.Exec(t, "ls", "-A", h.PoolPath), func(r rune) bool { return r == '\n' })
}

// MiniImage is the file of an image that is up in seconds, with a forward proxy on port 3128 that shows its seed, and what
// else Guest does.
func MiniImage(t testing.TB) string { return image(t, "EGRESS_LAB_MINI") }

// FullImage is the file of a Debian image with cloud-init, Squid, which is not running, and packages of the guest agent.
func FullImage(t testing.TB) string { return image(t, "EGRESS_LAB_FULL") }

// Eventually polls until the condition holds or the limit is over, and then fails with what it last said.
func Eventually(t testing.TB, limit time.Duration, what string, condition func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not so after %s: %v", what, limit, err)
		case <-tick.C:
		}
	}
}

func lab(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("EGRESS_LAB")
	if dir == "" {
		missing(t, "this test runs in a lab with hypervisors: make test-libvirt")
	}
	return dir
}

func image(t testing.TB, variable string) string {
	t.Helper()
	file := os.Getenv(variable)
	if file == "" {
		missing(t, variable+" names no image: make test-libvirt builds it")
	}
	return file
}

func missing(t testing.TB, message string) {
	t.Helper()
	if os.Getenv("EGRESS_REQUIRE_ALL") == "1" {
		t.Fatal(message)
	}
	t.Skip(message)
}

func read(t testing.TB, file string) Host {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var host Host
	if err := json.Unmarshal(data, &host); err != nil {
		t.Fatalf("parse %s: %v", file, err)
	}
	return host
}

// script runs one of hack/libvirt. It is used in cleanups as well, when the test's context has ended.
func script(t testing.TB, name string, arguments ...string) string {
	t.Helper()
	lab(t)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), commandLimit)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(os.Getenv("EGRESS_LAB_SCRIPTS"), name), arguments...)
	var stderr strings.Builder
	command.Stderr = &stderr
	// What host-up.sh leaves running has its own output; nobody waits for it.
	command.WaitDelay = time.Second
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(arguments, " "), err, out, stderr.String())
	}
	return string(out)
}
