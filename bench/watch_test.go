//go:build bench

package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// readiness watches the Proxies of a namespace. One watch costs the API server less than asking again and again would.
type readiness struct {
	mu sync.Mutex
	// ready are the Proxies that were seen to be Ready, present those that exist.
	ready, present map[types.UID]*v1alpha1.Proxy
	// last is when one became ready or went away.
	last time.Time
}

func watchReadiness(t *testing.T, env *testenv.Env, namespace string) *readiness {
	t.Helper()
	r := &readiness{ready: map[types.UID]*v1alpha1.Proxy{}, present: map[types.UID]*v1alpha1.Proxy{}}
	testenv.Watch(t, env.Config, &v1alpha1.Proxy{}, r.see, namespace)
	return r
}

func (r *readiness) see(px *v1alpha1.Proxy, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gone {
		delete(r.present, px.UID)
		delete(r.ready, px.UID)
		r.last = time.Now()
		return
	}
	r.present[px.UID] = px
	if r.ready[px.UID] == nil && meta.IsStatusConditionTrue(px.Status.Conditions, v1alpha1.ConditionReady) {
		r.last = time.Now()
		r.ready[px.UID] = px
	}
}

// wait waits until done and gives the moment of the last change. A run that waits in vain says how far it came.
func (r *readiness) wait(p *process, limit time.Duration, what string, done func(r *readiness) bool) time.Time {
	t := p.t
	t.Helper()
	finished := false
	defer func() {
		if !finished {
			t.Logf("waiting for %s, these are there: %s", what, r.summary())
		}
	}()
	p.waitFor(limit, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		finished = done(r)
		return finished
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

// summary is how many Proxies there are in each phase, with the reasons of Provisioned and Ready.
func (r *readiness) summary() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	counts := map[string]int{}
	for _, px := range r.present {
		text := string(px.Status.Phase)
		for _, name := range []string{v1alpha1.ConditionProvisioned, v1alpha1.ConditionReady} {
			if c := meta.FindStatusCondition(px.Status.Conditions, name); c != nil {
				text += " " + c.Reason
			}
		}
		counts[text]++
	}
	return fmt.Sprint(counts)
}

// one is any Proxy that is ready, as it was then.
func (r *readiness) one(t *testing.T) *v1alpha1.Proxy {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, px := range r.ready {
		return px
	}
	t.Fatal("no Proxy is ready")
	return nil
}
