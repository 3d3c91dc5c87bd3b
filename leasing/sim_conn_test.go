package leasing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

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
	_, _ = fmt.Fprint(h, c.proc.name, name, n)
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
	blow := none
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
	_, _ = fmt.Fprint(h, "late", by)
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
