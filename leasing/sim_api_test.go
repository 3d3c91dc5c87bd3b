package leasing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/record"
)

// simTrace prints every change.
var simTrace = os.Getenv("SIMTRACE") != ""

// simID names an object of the simulated API server.
type simID struct {
	kind string
	key  types.NamespacedName
}

// simEvent is one change, as a watch shows it.
type simEvent struct {
	id      simID
	object  client.Object
	deleted bool
}

// simAPI is an API server in memory: resourceVersions, preconditions, and a log of changes for watches.
type simAPI struct {
	mu      sync.Mutex
	rv, uid int
	objects map[simID]client.Object
	log     []simEvent
	// grown is closed, and made anew, when the log grows.
	grown chan struct{}
	// unnamed switches the compare-and-swap of exclusive leases off: no Proxy ever names one.
	unnamed bool
	// onChange sees every change, under the lock; before or after is nil for a creation or a deletion.
	onChange func(before, after client.Object)
}

func simKind(o runtime.Object) string {
	switch o.(type) {
	case *v1alpha1.Proxy, *v1alpha1.ProxyList:
		return "Proxy"
	case *v1alpha1.ProxyLease, *v1alpha1.ProxyLeaseList:
		return "ProxyLease"
	}
	return fmt.Sprintf("%T", o)
}

func idOf(o client.Object) simID { return simID{simKind(o), client.ObjectKeyFromObject(o)} }

func resource(kind string) schema.GroupResource {
	return schema.GroupResource{Group: v1alpha1.GroupName, Resource: kind}
}

func (a *simAPI) put(id simID, o client.Object) {
	a.rv++
	before := a.objects[id]
	o.SetResourceVersion(strconv.Itoa(a.rv))
	a.objects[id] = o
	a.append(simEvent{id: id, object: o})
	if simTrace {
		switch o := o.(type) {
		case *v1alpha1.ProxyLease:
			b, _ := record.BindingOf(o)
			fmt.Println(time.Now().Format("04:05.000"), "rv", a.rv, o.Name, o.UID, o.Spec.Mode, o.Status.Phase, b)
		case *v1alpha1.Proxy:
			fmt.Println(time.Now().Format("04:05.000"), "rv", a.rv, o.Name, o.UID, "names", o.Status.Exclusive)
		}
	}
	if a.onChange != nil {
		a.onChange(before, o)
	}
}

func (a *simAPI) append(e simEvent) {
	a.log = append(a.log, e)
	if a.grown != nil {
		close(a.grown)
		a.grown = nil
	}
}

// since tells when there is more in the log than that many events.
func (a *simAPI) since(n int) <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.log) > n {
		c := make(chan struct{})
		close(c)
		return c
	}
	if a.grown == nil {
		a.grown = make(chan struct{})
	}
	return a.grown
}

func (a *simAPI) exclusive(id simID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	lease, ok := a.objects[id].(*v1alpha1.ProxyLease)
	return ok && lease.Spec.Mode == v1alpha1.LeaseExclusive
}

func (a *simAPI) get(id simID, into client.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return copyInto(a.objects[id], id, into)
}

func copyInto(o client.Object, id simID, into client.Object) error {
	if o == nil {
		return apierrors.NewNotFound(resource(id.kind), id.key.Name)
	}
	switch to := into.(type) {
	case *v1alpha1.Proxy:
		o.(*v1alpha1.Proxy).DeepCopyInto(to)
	case *v1alpha1.ProxyLease:
		o.(*v1alpha1.ProxyLease).DeepCopyInto(to)
	}
	return nil
}

func (a *simAPI) create(o client.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := idOf(o)
	if a.objects[id] != nil {
		return apierrors.NewAlreadyExists(resource(id.kind), id.key.Name)
	}
	a.uid++
	o.SetUID(types.UID("u" + strconv.Itoa(a.uid)))
	o.SetGeneration(1)
	o.SetCreationTimestamp(metav1.NewTime(time.Now()))
	stored := o.DeepCopyObject().(client.Object)
	a.put(id, stored)
	o.SetResourceVersion(stored.GetResourceVersion())
	return nil
}

func (a *simAPI) remove(id simID, p *metav1.Preconditions) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects[id]
	if o == nil {
		return apierrors.NewNotFound(resource(id.kind), id.key.Name)
	}
	if p != nil && (p.UID != nil && *p.UID != o.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != o.GetResourceVersion()) {
		return apierrors.NewConflict(resource(id.kind), id.key.Name, errors.New("precondition"))
	}
	a.rv++
	gone := o.DeepCopyObject().(client.Object)
	gone.SetResourceVersion(strconv.Itoa(a.rv))
	delete(a.objects, id)
	a.append(simEvent{id: id, object: gone, deleted: true})
	if simTrace {
		fmt.Println(time.Now().Format("04:05.000"), "deleted", id.key.Name, o.GetUID())
	}
	if a.onChange != nil {
		a.onChange(o, nil)
	}
	return nil
}

// change replaces an object by what edit makes of a copy; version "" is not compared.
func (a *simAPI) change(id simID, version string, edit func(client.Object) error) (client.Object, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects[id]
	if o == nil {
		return nil, apierrors.NewNotFound(resource(id.kind), id.key.Name)
	}
	if version != "" && version != o.GetResourceVersion() {
		return nil, apierrors.NewConflict(resource(id.kind), id.key.Name, errors.New("changed"))
	}
	o = o.DeepCopyObject().(client.Object)
	if err := edit(o); err != nil {
		return nil, err
	}
	a.put(id, o)
	return o.DeepCopyObject().(client.Object), nil
}

// apply is a server-side apply of a status by leasing, which owns the whole status of a lease and two fields of a Proxy's.
func (a *simAPI) apply(u *unstructured.Unstructured) error {
	id := simID{u.GetKind(), client.ObjectKeyFromObject(u)}
	o, err := a.change(id, u.GetResourceVersion(), func(o client.Object) error {
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		convert := runtime.DefaultUnstructuredConverter.FromUnstructured
		switch o := o.(type) {
		case *v1alpha1.ProxyLease:
			o.Status = v1alpha1.ProxyLeaseStatus{}
			return convert(status, &o.Status)
		case *v1alpha1.Proxy:
			var slice v1alpha1.ProxyStatus
			if err := convert(status, &slice); err != nil {
				return err
			}
			o.Status.Cooldowns, o.Status.Exclusive = slice.Cooldowns, slice.Exclusive
			if a.unnamed {
				o.Status.Exclusive = nil
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var status any
	switch o := o.(type) {
	case *v1alpha1.ProxyLease:
		status = &o.Status
	case *v1alpha1.Proxy:
		status = &o.Status
	}
	all, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	u.Object["status"] = all
	u.SetResourceVersion(o.GetResourceVersion())
	return nil
}

// simConn is the connection of one process to the simulated API server: it delays, drops, answers after the commit or not
// at all, and refuses. What a call meets depends on the seed and on the call, not on the order of goroutines.
type simConn struct {
	client.Client // nil: what is not simulated panics
	api           *simAPI
	proc          *simProcess
	mu            sync.Mutex
	calls         map[string]int
}

var errReset = errors.New("connection reset by peer")

// dice of the next call of that kind about that object.
func (c *simConn) dice(verb string, id simID) *rand.Rand {
	name := verb + " " + id.kind + " " + id.key.Name
	c.mu.Lock()
	c.calls[name]++
	n := c.calls[name]
	c.mu.Unlock()
	h := fnv.New64a()
	fmt.Fprint(h, c.proc.name, name, n)
	return rand.New(rand.NewPCG(c.proc.world.seed, h.Sum64()))
}

// pause waits; it ends early with the context.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// call carries a request to the server and its answer back.
func (c *simConn) call(ctx context.Context, verb string, id simID, commit func() error) error {
	r := c.dice(verb, id)
	there := time.Duration(1+r.IntN(20_000_000)) * time.Nanosecond
	back := time.Duration(1+r.IntN(20_000_000)) * time.Nanosecond
	late := time.Duration(r.IntN(40_000)) * time.Millisecond
	if c.proc.world.storm() {
		late = simLeaseDuration + time.Duration(r.IntN(12_000)-2_000)*time.Millisecond
	}
	fate := r.IntN(100)
	if fate >= c.proc.world.badness() {
		fate = 100
	} else {
		fate = r.IntN(8)
	}
	if meet := c.proc.world.meet; meet != nil {
		if err, met := meet(c.proc, verb, id, commit); met {
			return err
		}
	}
	reads := verb == "get" || verb == "list"
	blow := strike(none)
	// What lands late does most harm when it is the binding of an exclusive lease.
	binding := strike(c.proc.strike.Load()) == unanswered
	if verb == "create" && !binding || verb == "apply" && id.kind == "ProxyLease" && (!binding || c.api.exclusive(id)) {
		blow = strike(c.proc.strike.Swap(int32(none)))
	}
	switch blow {
	case beforeSending:
		c.proc.freeze()
		close(c.proc.struck)
	case afterWriting:
		fate = 100
	case unanswered:
		fate = 3
		close(c.proc.struck)
	}
	// A process that is frozen sends nothing; what it was about to send it sends when it goes on.
	c.proc.gate()
	if c.proc.dead() {
		return errReset
	}
	var err error
	switch {
	case fate == 0: // refused
		err = []error{
			apierrors.NewTooManyRequests("busy", 1), apierrors.NewInternalError(errors.New("etcd")), apierrors.NewServiceUnavailable("starting"),
		}[r.IntN(3)]
		_ = pause(ctx, there)
	case fate == 1 && !reads && verb != "create" && verb != "delete": // somebody else was faster
		err = apierrors.NewConflict(resource(id.kind), id.key.Name, errors.New("changed"))
		_ = pause(ctx, there)
	case fate == 2: // lost on the way there
		err = errReset
		if r.IntN(2) == 0 {
			<-ctx.Done()
			err = ctx.Err()
		} else {
			_ = pause(ctx, there)
		}
	case fate <= 4 && !reads: // carried out long after the caller gave up
		c.proc.world.later(there+late, func() { _ = commit() })
		err = errReset
		_ = pause(ctx, there+time.Second)
	case fate <= 7: // the answer is lost, or it is an error although the change was made
		_ = pause(context.Background(), there)
		_ = commit()
		err = errReset
		if r.IntN(2) == 0 {
			err = apierrors.NewTimeoutError("etcd", 1)
		}
	default:
		_ = pause(context.Background(), there)
		err = commit()
		if blow == afterWriting {
			c.proc.freeze()
			close(c.proc.struck)
		}
	}
	_ = pause(ctx, back)
	c.proc.gate()
	if c.proc.dead() {
		return errReset
	}
	return err
}

func (c *simConn) Scheme() *runtime.Scheme { return simScheme }

func (c *simConn) Create(ctx context.Context, o client.Object, _ ...client.CreateOption) error {
	sent := o.DeepCopyObject().(client.Object)
	err := c.call(ctx, "create", idOf(o), func() error { return c.api.create(sent) })
	if err == nil {
		return copyInto(sent, idOf(o), o)
	}
	return err
}

func (c *simConn) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	options := (&client.DeleteOptions{}).ApplyOptions(opts)
	id := idOf(o)
	return c.call(ctx, "delete", id, func() error { return c.api.remove(id, options.Preconditions) })
}

func (c *simConn) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	data, err := patch.Data(o)
	if err != nil {
		return err
	}
	var version struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal(data, &version); err != nil {
		return err
	}
	id := idOf(o)
	var after client.Object
	err = c.call(ctx, "patch", id, func() (err error) {
		after, err = c.api.change(id, version.Metadata.ResourceVersion, func(o client.Object) error { return json.Unmarshal(data, o) })
		return err
	})
	if err == nil {
		return copyInto(after, id, o)
	}
	return err
}

func (c *simConn) Status() client.SubResourceWriter { return simStatus{conn: c} }

type simStatus struct {
	client.SubResourceWriter
	conn *simConn
}

func (s simStatus) Apply(ctx context.Context, o runtime.ApplyConfiguration, _ ...client.SubResourceApplyOption) error {
	u := o.(interface{ GetKind() string }).(runtime.Unstructured)
	sent := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(u.UnstructuredContent())}
	err := s.conn.call(ctx, "apply", simID{sent.GetKind(), client.ObjectKeyFromObject(sent)}, func() error { return s.conn.api.apply(sent) })
	if err == nil {
		u.SetUnstructuredContent(sent.Object)
	}
	return err
}

// Get reads the cache of the process.
func (c *simConn) Get(_ context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	return c.proc.cache.get(simID{simKind(o), key}, o)
}

// simLive reads the API server.
type simLive struct{ *simConn }

func (l simLive) Get(ctx context.Context, key client.ObjectKey, o client.Object, _ ...client.GetOption) error {
	id := simID{simKind(o), key}
	return l.call(ctx, "get", id, func() error { return l.api.get(id, o) })
}

func (l simLive) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	err := l.call(ctx, "list", simID{kind: simKind(list)}, func() error {
		l.api.mu.Lock()
		defer l.api.mu.Unlock()
		for _, o := range l.api.objects {
			switch to := list.(type) {
			case *v1alpha1.ProxyList:
				if px, ok := o.(*v1alpha1.Proxy); ok {
					to.Items = append(to.Items, *px.DeepCopy())
				}
			case *v1alpha1.ProxyLeaseList:
				if lease, ok := o.(*v1alpha1.ProxyLease); ok {
					to.Items = append(to.Items, *lease.DeepCopy())
				}
			}
		}
		list.SetResourceVersion(strconv.Itoa(l.api.rv))
		return nil
	})
	if _, leases := list.(*v1alpha1.ProxyLeaseList); leases && err == nil {
		l.proc.world.listed(l.proc.name)
	}
	return err
}

// later carries a write out that nobody waits for any more: after a while, or just after a new leader has read what there is.
func (w *simWorld) later(after time.Duration, commit func()) {
	commit = sync.OnceFunc(commit)
	time.AfterFunc(after, commit)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.late = append(w.late, commit)
}

func (w *simWorld) listed(by string) {
	h := fnv.New64a()
	fmt.Fprint(h, "late", by)
	r := rand.New(rand.NewPCG(w.seed, h.Sum64()))
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, commit := range w.late {
		if r.IntN(4) > 0 {
			time.AfterFunc(time.Duration(r.IntN([]int{50, 50, 300}[r.IntN(3)]))*time.Millisecond, commit)
		}
	}
	w.late = nil
}
