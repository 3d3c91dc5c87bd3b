//go:build bench

package bench

import (
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// leaseWatch sees when leases become bound.
type leaseWatch struct {
	mu sync.Mutex
	// bound are leases that were seen to be bound, and when; calls wait for that.
	bound map[types.NamespacedName]boundLease
	calls map[types.NamespacedName]chan struct{}
}

type boundLease struct {
	lease *v1alpha1.ProxyLease
	at    time.Time
}

// watchLeases watches both namespaces until the test ends.
func watchLeases(b *leasingBench) *leaseWatch {
	t := b.t
	t.Helper()
	w := &leaseWatch{bound: map[types.NamespacedName]boundLease{}, calls: map[types.NamespacedName]chan struct{}{}}
	testenv.Watch(t, b.config, &v1alpha1.ProxyLease{}, w.see, b.namespace, b.raw)
	return w
}

func (w *leaseWatch) see(lease *v1alpha1.ProxyLease, gone bool) {
	key := client.ObjectKeyFromObject(lease)
	w.mu.Lock()
	defer w.mu.Unlock()
	if gone {
		delete(w.bound, key)
		return
	}
	if lease.Status.Phase != v1alpha1.LeaseBound {
		return
	}
	if _, known := w.bound[key]; known {
		return
	}
	w.bound[key] = boundLease{lease, time.Now()}
	if c := w.calls[key]; c != nil {
		close(c)
		delete(w.calls, key)
	}
}

// get waits until a lease is bound.
func (w *leaseWatch) get(b *leasingBench, key types.NamespacedName) boundLease {
	w.mu.Lock()
	if seen, ok := w.bound[key]; ok {
		w.mu.Unlock()
		return seen
	}
	c := w.calls[key]
	if c == nil {
		c = make(chan struct{})
		w.calls[key] = c
	}
	w.mu.Unlock()
	select {
	case <-c:
	case <-time.After(patience):
		b.t.Errorf("lease %s is not bound", key)
		return boundLease{at: time.Now()}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bound[key]
}

// boundAt is when a lease was seen to be bound.
func (w *leaseWatch) boundAt(b *leasingBench, key types.NamespacedName) time.Time {
	return w.get(b, key).at
}

// await gives a lease of core's namespace when it is bound.
func (w *leaseWatch) await(b *leasingBench, name string) *v1alpha1.ProxyLease {
	return w.get(b, types.NamespacedName{Namespace: b.namespace, Name: name}).lease
}

func splitHostPort(t *testing.T, address string) (host string, port int32) {
	t.Helper()
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return host, int32(n)
}
