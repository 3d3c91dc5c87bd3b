package vm

import (
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/host"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/images"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

const (
	// BuildLimit is how long a build may take beside the download of its image.
	BuildLimit = 5 * time.Minute
	// InterruptedAfter is how old a record may be that does not run and that this process does not build: until then another
	// process may be building it, a manager that has just lost its lease.
	InterruptedAfter = time.Minute
	// MaxBuilds at once on one host: half of its calls, so that a slow disk does not hold up those who look.
	MaxBuilds = host.MaxCalls / 2
	// closePatience is how long Close lets the calls of builds end by themselves.
	closePatience = 5 * time.Second
	// imagePoll is how often a build looks whether its image has arrived, beside being told.
	imagePoll = 10 * time.Second
)

// Connection makes calls on the hypervisor; *host.Host is one.
type Connection interface {
	Do(ctx context.Context, call func(*rpc.Conn) error) error
}

// Policy is what kvm and kvm2 differ in.
type Policy struct {
	// WaitForStart lets Create wait until the machine was started, unless its image is still on its way.
	WaitForStart bool
	// CheckSpace refuses a machine for whose disk the pool has no room left, counting what other disks may still grow by.
	CheckSpace bool
	// Autostart starts the machine again with its host.
	Autostart bool
}

// Options of an Engine. All but Logger are required.
type Options struct {
	Policy
	// Provider, Class and ClusterID mark the machines.
	Provider  v1alpha1.ProviderType
	Class     string
	ClusterID string
	// Host is where; its pool, network or bridge are used for new machines.
	Host host.Config
	// Control makes the calls. Guest makes those that a guest can hold up: the questions to its agent.
	Control, Guest Connection
	// Images on the host.
	Images *images.Store
	// DomainType is kvm or qemu.
	DomainType string
	// DiskBytes is the size of a disk, unless its image is larger.
	DiskBytes int64
	// VendorData and InstallGuestAgent go into every seed.
	VendorData        string
	InstallGuestAgent bool
	// Lost is shared by all that work on the host.
	Lost   *Lost
	Clock  clock.WithTicker
	Logger logr.Logger
	// Wake is called when something happened to a machine.
	Wake func(providers.Owner)
}

// Engine is one host for one class. It is safe for concurrent use.
type Engine struct {
	Options
	ctx    context.Context
	cancel context.CancelFunc
	slots  chan struct{}
	// space is held from the look at the pool until what was promised is noted.
	space sync.Mutex

	mu     sync.Mutex
	closed bool
	wg     sync.WaitGroup
	builds map[string]*build
	ended  map[string]ending
	// idleSince is when a machine was first seen not to run, by UUID.
	idleSince map[string]time.Time
	// running are the owners of machines that ran when they were last looked at, by UUID.
	running map[string]providers.Owner
	// doubtful are the UUIDs of records whose definition got no answer, by name.
	doubtful map[string]string
	// arrived is closed and made anew whenever an image may have arrived.
	arrived chan struct{}
}

// ending is how a build came to nothing.
type ending struct {
	err error
	at  time.Time
}

// endingsKept is how long that is remembered. The operator asks within seconds.
const endingsKept = 15 * time.Minute

// New makes an Engine. It makes no call.
func New(o Options) *Engine {
	ctx, cancel := context.WithCancel(context.Background())
	return &Engine{
		Options: o, ctx: ctx, cancel: cancel, slots: make(chan struct{}, MaxBuilds),
		builds: map[string]*build{}, ended: map[string]ending{}, idleSince: map[string]time.Time{},
		doubtful: map[string]string{}, running: map[string]providers.Owner{},
		arrived: make(chan struct{}),
	}
}

// ImageArrived tells the builds that wait for an image to look again.
func (e *Engine) ImageArrived() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.arrived)
	e.arrived = make(chan struct{})
}

func (e *Engine) imageSignal() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.arrived
}

// Close ends the builds and waits for them. What they have made stays, unless its record is gone. A second call does nothing.
func (e *Engine) Close() {
	e.mu.Lock()
	e.closed = true
	for _, b := range e.builds {
		b.stop()
	}
	e.mu.Unlock()
	giveUp := time.AfterFunc(closePatience, e.cancel)
	defer giveUp.Stop()
	e.wg.Wait()
	e.cancel()
}

// buildOf is the build of an incarnation in this process; nil when there is none.
func (e *Engine) buildOf(uuid string) *build {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.builds[uuid]
}

// endingOf is how an incarnation came to nothing; nil when that is not known.
func (e *Engine) endingOf(uuid string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended[uuid].err
}

// remember notes how a build came to nothing, and forgets old ones.
func (e *Engine) remember(uuid string, err error) {
	now := e.Clock.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	for other, end := range e.ended {
		if now.Sub(end.at) > endingsKept {
			delete(e.ended, other)
		}
	}
	e.ended[uuid] = ending{err, now}
}
