package libvirt

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/vm"
)

// Timing of the providers, see providers.Timing.
const (
	// Window: libvirt answers within seconds, and kvm's Create waits for the start of the machine.
	Window = 30 * time.Second
	// Settle: a definition that was accepted shows at once. The rest is for a call that was given up and is carried out late,
	// by a libvirtd that has hung; what appears later still is collected as an orphan.
	Settle = 45 * time.Second
	// Confirm: Get is never late.
	Confirm = 5 * time.Second
)

// Factory opens classes of one type.
type Factory struct {
	Policy
	// Root is put before the paths of key and known hosts; "" outside of tests.
	Root string
	// HTTP fetches images; http.DefaultTransport's settings, without a limit for the whole download, when nil.
	HTTP *http.Client

	mu   sync.Mutex
	lost map[machine]*vm.Lost
}

// machine is a libvirtd, by whatever classes and names of hosts it is reached.
type machine struct {
	address     string
	port        int
	socket, uri string
}

func machineOf(c host.Config) machine { return machine{c.Address, c.Port, c.Socket, c.URI} }

// lostOn is what builds on a machine have lost in the life of the process.
func (f *Factory) lostOn(c host.Config) *vm.Lost {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.lost == nil {
		f.lost = map[machine]*vm.Lost{}
	}
	if f.lost[machineOf(c)] == nil {
		f.lost[machineOf(c)] = &vm.Lost{}
	}
	return f.lost[machineOf(c)]
}

var (
	_ providers.Factory = &Factory{}
	_ providers.Timed   = &Factory{}
	_ providers.Limited = &Factory{}
)

// Type implements providers.Factory.
func (f *Factory) Type() v1alpha1.ProviderType { return f.Policy.Type }

// Timing implements providers.Timed.
func (f *Factory) Timing() providers.Timing {
	return providers.Timing{Window: Window, Settle: Settle, Confirm: Confirm}
}

// Limits implements providers.Limited: hosts of one's own have no quota of calls, and each is spared by its own limit.
func (f *Factory) Limits() providers.Limits { return providers.Limits{CallsPerSecond: 50, Burst: 100} }

// Validate implements providers.Factory.
func (f *Factory) Validate(class *v1alpha1.ProviderClass) field.ErrorList {
	_, problems := f.read(class)
	return problems
}

// Open implements providers.Factory. It reads no key and dials no host; the first call does.
func (f *Factory) Open(_ context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	op := "open " + string(f.Policy.Type) + " provider"
	if wrong := validation.IsValidLabelValue(rt.ClusterID); rt.ClusterID == "" || len(wrong) > 0 {
		return nil, fmt.Errorf("%s: the cluster id %q is no label value", op, rt.ClusterID)
	}
	s, problems := f.read(class)
	if len(problems) > 0 {
		return nil, fmt.Errorf("%s: %w", op, problems.ToAggregate())
	}
	m, err := newMetrics(rt.Registerer)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", op, err)
	}
	return newProvider(f, rt, s, m), nil
}

// Warnings are what a manager says at its start: it works without SSH keys, until a class names one.
func (f *Factory) Warnings() []string {
	entries, err := os.ReadDir(f.Root + CredentialsDir)
	// The kubelet's own entries are there without any key, too.
	visible := slices.DeleteFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), ".") })
	if err == nil && len(visible) > 0 {
		return nil
	}
	return []string{"There are no SSH keys at " + CredentialsDir + ": the Secret kvm-ssh is missing, or not mounted. Only classes with sshSecretRef reach their hosts"}
}

// readFile reads a file of the manager.
func (f *Factory) readFile(path string) ([]byte, error) { return os.ReadFile(f.Root + path) }
