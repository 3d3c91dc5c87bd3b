// Package fake is a programmable cloud in memory, for tests of everything that uses a provider. It is never part of the
// product.
//
// The state lives in a Cloud and not in the Providers that a Factory opens on it, so that a test can "restart" a manager
// by making everything else anew. Time is the Cloud's clock: nothing happens in the background.
package fake

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/providers"
)

// Methods of a Provider, for the programming of failures and in the call log.
const (
	MethodCheck  = "Check"
	MethodCreate = "Create"
	MethodGet    = "Get"
	MethodDelete = "Delete"
	MethodList   = "List"
)

// Behaviour is how the cloud acts when nothing special is programmed.
type Behaviour struct {
	// Visible is how long Get and List miss what Create accepted.
	Visible time.Duration
	// Start is how long an instance takes from Create until it runs and has an address.
	Start time.Duration
	// Stop is how long an instance takes from Delete until it is gone.
	Stop time.Duration
	// Operations makes Create answer with an operation, as clouds do that explain later why nothing came of it.
	Operations bool
	// Zones the cloud has; names are unique within one. Empty means a single place without a name.
	Zones []string
	// NeedsZone makes ValidateSpec refuse a specification without spec.placement.zone.
	NeedsZone bool
	// MaxUserData is how much user data an instance takes, in bytes; 0 means no limit.
	MaxUserData int
	// Addresses that every instance has, to lead to something real. Empty means one address of its own in 10.0.0.0/8.
	Addresses []string
	// Wakes tells the managers of every accepted Create and Delete, as a watch of instances would; otherwise they poll.
	Wakes bool
}

// Call is one entry of the call log.
type Call struct {
	Method string
	// Name, Zone and ID as far as the method has them.
	Name, Zone, ID string
	// Time of the call by the cloud's clock.
	Time time.Time
}

// Cloud is the state of a fake provider. It is safe for concurrent use.
type Cloud struct {
	clock clock.PassiveClock

	mu        sync.Mutex
	behaviour Behaviour
	machines  []*machine
	sequence  int
	calls     []Call
	failures  map[string][]error
	lost      map[string]int
	vanish    int
	ended     map[string]*providers.Error // by operation
	miss      int
	down      map[string]error
	dark      []string      // zones that do not answer
	stalled   chan struct{} // nil: nothing hangs
	rejected  field.ErrorList
	closed    error
	hosts     []providers.HostState
	hooks     map[string]func(Call)
	listeners map[*provider]chan event.TypedGenericEvent[providers.Owner]
}

// machine is an instance with its future.
type machine struct {
	class     string
	instance  providers.Instance
	visibleAt time.Time
	runsAt    time.Time
	goneAt    time.Time // zero: not being deleted
	state     providers.State
	receipt   providers.Receipt
	request   providers.CreateRequest
}

// NewCloud makes an empty cloud that reads time from c.
func NewCloud(c clock.PassiveClock, b Behaviour) *Cloud {
	return &Cloud{
		clock: c, behaviour: b,
		ended: map[string]*providers.Error{}, failures: map[string][]error{}, lost: map[string]int{}, down: map[string]error{}, hooks: map[string]func(Call){},
		listeners: map[*provider]chan event.TypedGenericEvent[providers.Owner]{},
	}
}

// SetBehaviour changes how the cloud acts from now on.
func (c *Cloud) SetBehaviour(b Behaviour) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.behaviour = b
}

// Fail makes the next calls of a method return the errors, without any effect; a nil lets one call through.
func (c *Cloud) Fail(method string, errs ...error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[method] = append(c.failures[method], errs...)
}

// LoseReply makes the next n calls of a method take effect and answer Unavailable.
func (c *Cloud) LoseReply(method string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost[method] += n
}

// Vanish makes the next n Creates be accepted and come to nothing.
func (c *Cloud) Vanish(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.vanish += n
}

// End makes instances of a name vanish as an operation that fails does. Get explains it to those who name the operation, see
// Behaviour.Operations.
func (c *Cloud) End(name string, why *providers.Error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines = slices.DeleteFunc(c.machines, func(m *machine) bool {
		if m.instance.Name == name {
			c.ended[m.receipt.Operation] = why
		}
		return m.instance.Name == name
	})
}

// Miss makes the next n Gets say NotFound, whatever there is.
func (c *Cloud) Miss(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.miss += n
}

// Down makes every call of the methods, or of all when none is named, fail with err until it is called with nil.
func (c *Cloud) Down(err error, methods ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(methods) == 0 {
		methods = []string{MethodCheck, MethodCreate, MethodGet, MethodDelete, MethodList}
	}
	for _, method := range methods {
		c.down[method] = err
	}
}

// Darken makes zones not answer, and all others again. A Get without a zone does not find what is there, and then says so.
func (c *Cloud) Darken(zones ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dark = zones
}

// isDark is the error of a zone that does not answer, or nil.
func (c *Cloud) isDark(zone, op string) error {
	if !slices.Contains(c.dark, zone) {
		return nil
	}
	problem := providers.NewError(providers.Unavailable, op, "a zone does not answer", nil)
	problem.Local = true
	return problem
}

// Stall makes every call hang, before it has any effect, until its context ends or resume is called.
func (c *Cloud) Stall() (resume func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stalled := make(chan struct{})
	c.stalled = stalled
	return sync.OnceFunc(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		close(stalled)
		if c.stalled == stalled {
			c.stalled = nil
		}
	})
}

// Reject makes Factory.Validate return problems.
func (c *Cloud) Reject(problems field.ErrorList) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rejected = problems
}

// SetHosts makes the providers report hosts, as those of hypervisors do; none by default.
func (c *Cloud) SetHosts(hosts ...providers.HostState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hosts = hosts
}

// RefuseToOpen makes Factory.Open fail with err until it is called with nil.
func (c *Cloud) RefuseToOpen(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = err
}

// Hook runs f at the start of every call of a method, outside of the cloud's lock; nil removes it.
func (c *Cloud) Hook(method string, f func(Call)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hooks[method] = f
}

// Calls is the log of all calls so far.
func (c *Cloud) Calls() []Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.calls)
}

// Count is how often a method was called.
func (c *Cloud) Count(method string) int {
	n := 0
	for _, call := range c.Calls() {
		if call.Method == method {
			n++
		}
	}
	return n
}

// Mutations is how many calls were made that change something.
func (c *Cloud) Mutations() int { return c.Count(MethodCreate) + c.Count(MethodDelete) }

// Instances is the truth: everything that exists, whether Get sees it yet or not.
func (c *Cloud) Instances() []providers.Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	out := make([]providers.Instance, 0, len(c.machines))
	for _, m := range c.machines {
		out = append(out, m.view(c.clock.Now()))
	}
	return out
}

// Request is what the newest instance of a name was created with.
func (c *Cloud) Request(name string) (providers.CreateRequest, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range slices.Backward(c.machines) {
		if m.instance.Name == name {
			return m.request, true
		}
	}
	return providers.CreateRequest{}, false
}

// Remove takes instances of a name away, as a person at the console would.
func (c *Cloud) Remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.machines = slices.DeleteFunc(c.machines, func(m *machine) bool { return m.instance.Name == name })
}

// SetState fixes the state of the instances of a name.
func (c *Cloud) SetState(name string, state providers.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.machines {
		if m.instance.Name == name {
			m.state = state
		}
	}
}

// Plant puts an instance into a class's account as it is, for example one of another owner.
func (c *Cloud) Plant(class string, instance providers.Instance) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequence++
	if instance.ID == "" {
		instance.ID = c.id()
	}
	now := c.clock.Now()
	c.machines = append(c.machines, &machine{class: class, instance: instance, visibleAt: now, runsAt: now, state: instance.State})
}

// Notify wakes the managers that use the cloud, as a watch of instances would.
func (c *Cloud) Notify(owner providers.Owner) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.notify(owner)
}

// notify is Notify with the lock held.
func (c *Cloud) notify(owner providers.Owner) {
	for _, events := range c.listeners {
		select {
		case events <- event.TypedGenericEvent[providers.Owner]{Object: owner}:
		default:
		}
	}
}

// begin logs a call and gives the programmed outcome: whether to act, and what to answer instead of the truth.
func (c *Cloud) begin(call Call) (act bool, answer error) {
	c.mu.Lock()
	call.Time = c.clock.Now()
	c.calls = append(c.calls, call)
	hook := c.hooks[call.Method]
	c.mu.Unlock()
	if hook != nil {
		hook(call)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.settle()
	if err := c.down[call.Method]; err != nil {
		return false, err
	}
	if queue := c.failures[call.Method]; len(queue) > 0 {
		c.failures[call.Method] = queue[1:]
		if queue[0] != nil {
			return false, queue[0]
		}
	}
	if c.lost[call.Method] > 0 {
		c.lost[call.Method]--
		return true, providers.NewError(providers.Unavailable, "", "", errReplyLost)
	}
	return true, nil
}

// settle removes what is gone by now. The lock is held.
func (c *Cloud) settle() {
	now := c.clock.Now()
	c.machines = slices.DeleteFunc(c.machines, func(m *machine) bool { return !m.goneAt.IsZero() && !now.Before(m.goneAt) })
}

// addresses of the instance that is created now. The lock is held.
func (c *Cloud) addresses() []string {
	if len(c.behaviour.Addresses) > 0 {
		return slices.Clone(c.behaviour.Addresses)
	}
	return []string{fmt.Sprintf("10.%d.%d.%d", c.sequence>>16&255, c.sequence>>8&255, c.sequence&255)}
}

func (c *Cloud) id() string { return fmt.Sprintf("incarnation-%d", c.sequence) }

// view is the instance as it is at a moment.
func (m *machine) view(now time.Time) providers.Instance {
	view := m.instance
	view.Addresses = slices.Clone(m.instance.Addresses)
	switch {
	case !m.goneAt.IsZero():
		view.State = providers.StateTerminating
	case m.state != "":
		view.State = m.state
	case now.Before(m.runsAt):
		view.State = providers.StatePending
		view.Addresses = nil
	default:
		view.State = providers.StateRunning
	}
	return view
}
