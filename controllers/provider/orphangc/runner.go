package orphangc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// DefaultPeriod is the time between two sweeps.
	DefaultPeriod = 10 * time.Minute
	// DefaultSweepTimeout bounds the sweep of one class. A list of instances may take a minute and a half, see
	// providers/guard.
	DefaultSweepTimeout = 5 * time.Minute
	// startDelay keeps a new leader from sweeping while calls of its predecessor may be on their way.
	startDelay = 5 * time.Minute
	// jitter spreads the sweeps of several managers, as a fraction.
	jitter = 0.2
	// parallel is how many classes are swept at once.
	parallel = 4
	// reportTimeout bounds the write of what a sweep found, which may come after the sweep's own time is over.
	reportTimeout = 30 * time.Second
)

// Options of the runner.
type Options struct {
	// Set opens the providers; its Factory says which type is swept.
	Set   *providers.Set
	Clock clock.WithTicker
	// ClusterID is the mark of the instances that may be deleted.
	ClusterID string
	// ControllerName: only classes with it are swept.
	ControllerName string
	// Namespaces that are watched; empty means all.
	Namespaces []string
	// Period, MinAge, MaxDeletes and SweepTimeout: 0 means the default.
	Period, MinAge time.Duration
	MaxDeletes     int
	SweepTimeout   time.Duration
	// Registerer for the metrics; nil for none.
	Registerer prometheus.Registerer
}

// Runner sweeps all classes of a type now and then. It runs on the leader only.
type Runner struct {
	Options
	// Client writes and reads classes; Reader reads Proxies past every cache.
	Client   client.Client
	Reader   client.Reader
	Recorder events.EventRecorder

	kind     v1alpha1.ProviderType
	manager  string
	metrics  *metrics
	pageSize int64
	// classes are what is known of each class. SweepAll, which never runs twice at a time, is the only one to change it.
	classes map[types.UID]*memory
}

// NewRunner makes a Runner. reader must not be a cache.
func NewRunner(c client.Client, reader client.Reader, recorder events.EventRecorder, o Options) (*Runner, error) {
	o.Period = cmp.Or(o.Period, DefaultPeriod)
	o.MinAge = cmp.Or(o.MinAge, DefaultMinAge)
	o.MaxDeletes = cmp.Or(o.MaxDeletes, DefaultMaxDeletes)
	o.SweepTimeout = cmp.Or(o.SweepTimeout, DefaultSweepTimeout)
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	kind := o.Set.Factory().Type()
	return &Runner{
		Options: o, Client: c, Reader: reader, Recorder: recorder,
		kind: kind, manager: v1alpha1.ManagerProvider(kind), metrics: m, pageSize: pageSize,
		classes: map[types.UID]*memory{},
	}, nil
}

// Add adds the runner to a provider manager.
func Add(mgr manager.Manager, o Options) error {
	name := "orphan-gc-" + string(o.Set.Factory().Type())
	r, err := NewRunner(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetEventRecorder(name), o)
	if err != nil {
		return err
	}
	if err := mgr.Add(r); err != nil {
		return fmt.Errorf("add %s: %w", name, err)
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (r *Runner) NeedLeaderElection() bool { return true }

// Start implements manager.Runnable.
func (r *Runner) Start(ctx context.Context) error {
	ctx = log.IntoContext(ctx, log.FromContext(ctx).WithName("orphan-gc").WithValues("providerType", r.kind))
	next := startDelay
	for {
		timer := r.Clock.NewTimer(wait.Jitter(next, jitter))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		if err := r.SweepAll(ctx); err != nil && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "A sweep failed")
		}
		next = r.Period
	}
}

// SweepAll sweeps each class of the type, a few at a time. A class that cannot be swept, fast or at all, does not keep the
// others from it.
func (r *Runner) SweepAll(ctx context.Context) error {
	classes := &v1alpha1.ProviderClassList{}
	if err := r.Client.List(ctx, classes); err != nil {
		return fmt.Errorf("list classes: %w", err)
	}
	mine := map[types.UID]*v1alpha1.ProviderClass{}
	for i := range classes.Items {
		if class := &classes.Items[i]; class.Spec.Type == r.kind && class.Spec.ControllerName == r.ControllerName {
			mine[class.UID] = class
		}
	}
	r.forgetAllBut(mine)
	var (
		group    sync.WaitGroup
		slots    = make(chan struct{}, parallel)
		mu       sync.Mutex
		problems []error
	)
	for uid, class := range mine {
		m := r.classes[uid]
		if m == nil {
			m = r.metrics.remember(r.kind, class.Name)
			r.classes[uid] = m
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			if err := r.sweepInTime(ctx, class, m); err != nil {
				mu.Lock()
				defer mu.Unlock()
				problems = append(problems, fmt.Errorf("sweep class %s: %w", class.Name, err))
			}
		})
	}
	group.Wait()
	return errors.Join(problems...)
}

// forgetAllBut drops what is known of classes that are gone. It comes before the sweeps, because a namesake of such a class
// has the same series. The provider goes too: a sweep may have opened it again after the class controller closed it.
func (r *Runner) forgetAllBut(present map[types.UID]*v1alpha1.ProviderClass) {
	for uid, m := range r.classes {
		if present[uid] == nil {
			m.forget()
			r.Set.Forget(uid)
			delete(r.classes, uid)
		}
	}
}

// sweepInTime sweeps one class and does not wait for a provider that ignores the end of its time. Such a sweep can do no harm
// later: its context has ended, so that the look at the Proxies that comes before every deletion fails. The class is left
// out until it is over.
func (r *Runner) sweepInTime(ctx context.Context, class *v1alpha1.ProviderClass, m *memory) (err error) {
	start := r.Clock.Now()
	defer func() { m.swept(r.Clock.Since(start), err) }()
	if !m.begin() {
		return errors.New("the sweep before has not ended yet")
	}
	done := make(chan error, 1)
	bounded, cancel := context.WithTimeout(ctx, r.SweepTimeout)
	defer cancel()
	go func() {
		err := r.sweepSafely(bounded, class, m)
		m.end()
		done <- err
	}()
	patience, cancelPatience := context.WithTimeout(ctx, r.SweepTimeout+reportTimeout)
	defer cancelPatience()
	select {
	case err := <-done:
		return err
	case <-patience.Done():
		return fmt.Errorf("wait for the end of the sweep: %w", patience.Err())
	}
}

// sweepSafely makes a panic an error: a mistake in one class must not end the manager, which serves the others.
func (r *Runner) sweepSafely(ctx context.Context, class *v1alpha1.ProviderClass, m *memory) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
			log.FromContext(ctx).Error(err, "A sweep panicked", "class", class.Name, "stack", string(debug.Stack()))
		}
	}()
	return r.sweep(ctx, class, m)
}
