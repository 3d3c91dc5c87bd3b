package leasing

import (
	"errors"
	"fmt"
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
	case *metav1.PartialObjectMetadata:
		return o.GetObjectKind().GroupVersionKind().Kind
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

// noSuchNamespace is the namespace that does not exist; all others do.
const noSuchNamespace = "nosuch"

func copyInto(o client.Object, id simID, into client.Object) error {
	if id.kind == "Namespace" && id.key.Name != noSuchNamespace {
		return nil
	}
	if o == nil {
		return apierrors.NewNotFound(resource(id.kind), id.key.Name)
	}
	switch to := into.(type) {
	case *v1alpha1.Proxy:
		o.(*v1alpha1.Proxy).DeepCopyInto(to)
	case *v1alpha1.ProxyLease:
		o.(*v1alpha1.ProxyLease).DeepCopyInto(to)
	case *v1alpha1.ProxyPool:
		o.(*v1alpha1.ProxyPool).DeepCopyInto(to)
	}
	return nil
}

func (a *simAPI) create(o client.Object) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := idOf(o)
	if o.GetNamespace() == noSuchNamespace {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, noSuchNamespace)
	}
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
