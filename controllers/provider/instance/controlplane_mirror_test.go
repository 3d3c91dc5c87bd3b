package instance

import (
	"context"
	"fmt"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// mirror remembers every version of the Proxies, classes and Secrets that are written through its clients, in their
// order. All writes go to the API server; what the clients read is a matter of their kind: see client and late.
type mirror struct {
	server client.WithWatch

	mu      sync.Mutex
	history map[mirrored][]client.Object // nil: gone
	order   []mirrored
	// changed is told of every new version, as a watch would; before or after is nil when there was or is none.
	changed func(before, after client.Object)
}

type mirrored struct {
	kind string
	client.ObjectKey
}

func newMirror(server client.WithWatch) *mirror {
	return &mirror{server: server, history: map[mirrored][]client.Object{}}
}

// newOf makes an empty object of a mirrored kind; nil for any other.
func newOf(kind string) client.Object {
	switch kind {
	case "Proxy":
		return &v1alpha1.Proxy{}
	case "ProviderClass":
		return &v1alpha1.ProviderClass{}
	case "Secret":
		return &corev1.Secret{}
	}
	return nil
}

func kindOf(obj client.Object) string {
	switch obj.(type) {
	case *v1alpha1.Proxy:
		return "Proxy"
	case *v1alpha1.ProviderClass:
		return "ProviderClass"
	case *corev1.Secret:
		return "Secret"
	}
	return ""
}

func copyInto(from, to client.Object) {
	switch from := from.(type) {
	case *v1alpha1.Proxy:
		from.DeepCopyInto(to.(*v1alpha1.Proxy))
	case *v1alpha1.ProviderClass:
		from.DeepCopyInto(to.(*v1alpha1.ProviderClass))
	case *corev1.Secret:
		from.DeepCopyInto(to.(*corev1.Secret))
	}
}

// observe takes in what the API server has now.
func (m *mirror) observe(kind string, key client.ObjectKey) error {
	now := newOf(kind)
	if now == nil {
		return nil
	}
	err := m.server.Get(context.Background(), key, now)
	switch {
	case apierrors.IsNotFound(err):
		m.take(mirrored{kind, key}, nil)
	case err != nil:
		return fmt.Errorf("observe %s %s: %w", kind, key, err)
	default:
		m.take(mirrored{kind, key}, now)
	}
	return nil
}

// answered takes in the answer to a write.
func (m *mirror) answered(obj client.Object) {
	kind := kindOf(obj)
	if kind == "" {
		return
	}
	k := mirrored{kind, client.ObjectKeyFromObject(obj)}
	if !obj.GetDeletionTimestamp().IsZero() && len(obj.GetFinalizers()) == 0 {
		m.take(k, nil)
		return
	}
	now := newOf(kind)
	copyInto(obj, now)
	m.take(k, now)
}

// take adds a version; nil when the object is gone.
func (m *mirror) take(k mirrored, now client.Object) {
	m.mu.Lock()
	seen := m.history[k]
	var before client.Object
	if len(seen) == 0 {
		m.order = append(m.order, k)
	} else {
		before = seen[len(seen)-1]
	}
	news := !equalVersions(before, now) && !older(now, before)
	if news || len(seen) == 0 {
		m.history[k] = append(seen, now)
	}
	tell := m.changed
	m.mu.Unlock()
	if news && tell != nil {
		tell(before, now)
	}
}

func equalVersions(a, b client.Object) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.GetResourceVersion() == b.GetResourceVersion()
}

// older tells whether an answer comes after that to a later write.
func older(a, b client.Object) bool {
	if a == nil || b == nil {
		return false
	}
	x, errX := strconv.ParseUint(a.GetResourceVersion(), 10, 64)
	y, errY := strconv.ParseUint(b.GetResourceVersion(), 10, 64)
	return errX == nil && errY == nil && x < y
}

// versions are all versions of an object so far, reading it first when it is new.
func (m *mirror) versions(kind string, key client.ObjectKey) ([]client.Object, error) {
	k := mirrored{kind, key}
	m.mu.Lock()
	seen := m.history[k]
	m.mu.Unlock()
	if len(seen) > 0 {
		return seen, nil
	}
	err := m.observe(kind, key)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.history[k], err
}

// client gives a client that reads what a cache would have that is never late.
func (m *mirror) client() client.WithWatch {
	return m.clientThat(func(_ mirrored, seen []client.Object) client.Object { return seen[len(seen)-1] })
}

// late gives a client that is always behind. A stuck one never sees the newest n versions; one that is not goes through
// all versions and needs n more reads for each. Each call makes a cache of its own, which starts n versions behind.
func (m *mirror) late(n int, stuck bool) client.WithWatch {
	if stuck {
		return m.clientThat(func(_ mirrored, seen []client.Object) client.Object { return seen[max(0, len(seen)-1-n)] })
	}
	var mu sync.Mutex
	type place struct{ at, reads int }
	places := map[mirrored]place{}
	return m.clientThat(func(k mirrored, seen []client.Object) client.Object {
		mu.Lock()
		defer mu.Unlock()
		p, known := places[k]
		if !known {
			p.at = max(0, len(seen)-1-n)
		}
		if p.reads++; p.reads > n && p.at < len(seen)-1 {
			p.at, p.reads = p.at+1, 0
		}
		places[k] = p
		return seen[p.at]
	})
}

func (m *mirror) clientThat(picks func(k mirrored, seen []client.Object) client.Object) client.WithWatch {
	after := func(err error, obj client.Object) error {
		if err == nil {
			m.answered(obj)
		}
		return err
	}
	return interceptor.NewClient(m.server, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			kind := kindOf(obj)
			if kind == "" {
				return c.Get(ctx, key, obj, opts...)
			}
			seen, err := m.versions(kind, key)
			if err != nil {
				return err
			}
			picked := picks(mirrored{kind, key}, seen)
			if picked == nil {
				return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, key.Name)
			}
			copyInto(picked, obj)
			return nil
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			proxies, ok := list.(*v1alpha1.ProxyList)
			if !ok {
				return c.List(ctx, list, opts...)
			}
			m.list(proxies, picks, opts...)
			return nil
		},
		Create: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.CreateOption) error {
			return after(c.Create(ctx, obj, opts...), obj)
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.UpdateOption) error {
			return after(c.Update(ctx, obj, opts...), obj)
		},
		Patch: func(ctx context.Context, c client.WithWatch, obj client.Object, patch client.Patch, opts ...client.PatchOption) error {
			return after(c.Patch(ctx, obj, patch, opts...), obj)
		},
		Delete: func(ctx context.Context, c client.WithWatch, obj client.Object, opts ...client.DeleteOption) error {
			if err := c.Delete(ctx, obj, opts...); err != nil {
				return err
			}
			return m.observe(kindOf(obj), client.ObjectKeyFromObject(obj))
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, obj runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			if err := c.SubResource(sub).Apply(ctx, obj, opts...); err != nil {
				return err
			}
			answer, ok := obj.(runtime.Unstructured)
			if !ok {
				return fmt.Errorf("mirror an apply of %T", obj)
			}
			now := newOf(answer.GetObjectKind().GroupVersionKind().Kind)
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(answer.UnstructuredContent(), now); err != nil {
				return fmt.Errorf("mirror an apply: %w", err)
			}
			m.answered(now)
			return nil
		},
	})
}

// list answers with the Proxies, by the indexes of production.
func (m *mirror) list(into *v1alpha1.ProxyList, picks func(mirrored, []client.Object) client.Object, opts ...client.ListOption) {
	options := client.ListOptions{}
	options.ApplyOptions(opts)
	m.mu.Lock()
	keys := m.order
	m.mu.Unlock()
	for _, k := range keys {
		if k.kind != "Proxy" || (options.Namespace != "" && options.Namespace != k.Namespace) {
			continue
		}
		m.mu.Lock()
		seen := m.history[k]
		m.mu.Unlock()
		px, ok := picks(k, seen).(*v1alpha1.Proxy)
		if !ok || px == nil || !selects(options, px) {
			continue
		}
		if !ptr.Deref(options.UnsafeDisableDeepCopy, false) {
			px = px.DeepCopy()
		}
		into.Items = append(into.Items, *px)
	}
}

func selects(options client.ListOptions, px *v1alpha1.Proxy) bool {
	if options.FieldSelector == nil {
		return true
	}
	indexes := map[string]client.IndexerFunc{classIndex: indexClass, secretIndex: indexSecrets}
	for _, requirement := range options.FieldSelector.Requirements() {
		found := false
		for _, value := range indexes[requirement.Field](px) {
			found = found || value == requirement.Value
		}
		if !found {
			return false
		}
	}
	return true
}
