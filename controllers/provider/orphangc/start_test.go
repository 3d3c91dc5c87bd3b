package orphangc

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// metric is the value of a metric of the bed's class, or of the number of its series for a histogram.
func (s *bed) metric(name string) float64 {
	s.t.Helper()
	families, err := s.registry.Gather()
	s.must(err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "class" && label.GetValue() == s.class.Name {
					return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return -1
}

// settled waits until the runner waits for its clock.
func (s *bed) settled() {
	s.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !s.clock.HasWaiters() {
		select {
		case <-deadline:
			s.t.Fatal("the runner does not wait")
		case <-tick.C:
		}
	}
}

func TestStart_WaitsForThePredecessorsCallsAndGoesOnAfterFailures(t *testing.T) {
	s := newBed(t)
	if !s.runner.NeedLeaderElection() {
		t.Error("it would run on replicas that do not lead")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.runner.Start(ctx); err != nil {
			t.Error(err)
		}
	})
	s.settled()
	s.clock.Step(startDelay - time.Second)
	s.settled()
	if n := s.cloud.Count(fake.MethodList); n != 0 {
		t.Errorf("%d Lists before a new leader may sweep", n)
	}
	s.cloud.Down(errors.New("503"))
	s.clock.Step(time.Second + time.Duration(jitter*float64(startDelay)))
	s.settled()
	s.cloud.Down(nil)
	for sweeps := 1; sweeps <= 3; sweeps++ {
		if n := s.cloud.Count(fake.MethodList); n != sweeps {
			t.Fatalf("%d Lists, want %d", n, sweeps)
		}
		s.clock.Step(DefaultPeriod - time.Second)
		s.settled()
		if n := s.cloud.Count(fake.MethodList); n != sweeps {
			t.Fatalf("%d Lists before the period was over, want %d", n, sweeps)
		}
		s.clock.Step(time.Second + time.Duration(jitter*float64(DefaultPeriod)))
		s.settled()
	}
	if s.names()["orphan"] {
		t.Error("the orphan is still there")
	}
	cancel()
	group.Wait()
}

// What fails because the manager stops is no finding.
func TestStart_AStopIsNotReported(t *testing.T) {
	s := newBed(t)
	s.must(s.sweep(1))
	before := s.now().ResourceVersion
	ctx, cancel := context.WithCancel(t.Context())
	s.cloud.Hook(fake.MethodList, func(fake.Call) { cancel() })
	s.cloud.Down(errors.New("the connection is closed"))
	if err := s.runner.SweepAll(ctx); err == nil {
		t.Error("no error")
	}
	s.idle(s.class.UID)
	if s.now().ResourceVersion != before {
		t.Errorf("written: %s", s.message())
	}
}

// idle waits until no sweep of a class is under way.
func (s *bed) idle(class types.UID) {
	s.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for m := s.runner.classes[class]; !m.begin(); {
		select {
		case <-deadline:
			s.t.Fatal("a sweep does not end")
		case <-tick.C:
		}
	}
	s.runner.classes[class].end()
}

// badFactory gives one class another provider.
type badFactory struct {
	*fake.Factory
	class string
	bad   func(providers.Provider) providers.Provider
}

func (f badFactory) Open(ctx context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	p, err := f.Factory.Open(ctx, class, rt)
	if err == nil && class.Name == f.class {
		p = f.bad(p)
	}
	return p, err
}

type badList struct {
	providers.Provider
	list func(ctx context.Context, inner providers.Provider) ([]providers.Instance, error)
}

func (b badList) List(ctx context.Context) ([]providers.Instance, error) {
	return b.list(ctx, b.Provider)
}

// second makes another class with an orphan in the same cloud, whose List is bad.
func (s *bed) second(list func(context.Context, providers.Provider) ([]providers.Instance, error)) *v1alpha1.ProviderClass {
	s.t.Helper()
	class := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: "bad-" + s.namespace}, Spec: s.class.Spec}
	s.must(s.client.Create(s.t.Context(), class))
	next := s.now().Status.DeepCopy()
	s.must(statusapply.Whole(s.t.Context(), s.client, v1alpha1.ManagerProvider(class.Spec.Type), class, &class.Status, next))
	s.runner = s.newRunner(badFactory{&fake.Factory{Cloud: s.cloud}, class.Name, func(p providers.Provider) providers.Provider {
		return badList{p, list}
	}})
	s.cloud.Plant(class.Name, providers.Instance{
		Ref: providers.Ref{Name: "bad", ID: "id-bad"}, State: providers.StateRunning, CreatedAt: s.clock.Now(),
		Owner: providers.Owner{ClusterID: "cluster", Namespace: s.namespace, Name: "bad", UID: "gone"},
	})
	s.clock.Step(time.Hour)
	return class
}

func TestA33_OtherClassesAreSwept(t *testing.T) {
	for name, list := range map[string]func(context.Context, providers.Provider) ([]providers.Instance, error){
		"failed": func(context.Context, providers.Provider) ([]providers.Instance, error) { return nil, errors.New("503") },
		"panic":  func(context.Context, providers.Provider) ([]providers.Instance, error) { panic("a mistake") },
		"no end": func(ctx context.Context, _ providers.Provider) ([]providers.Instance, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newBed(t)
			class := s.second(list)
			if name == "no end" {
				s.runner.SweepTimeout = 5 * time.Second
			}
			if err := s.sweep(2); err == nil {
				t.Error("no error")
			}
			if names := s.names(); names["orphan"] || !names["alive"] || !names["bad"] {
				t.Errorf("left %v", names)
			}
			if got := s.reason(); got != v1alpha1.ReasonOrphansFound {
				t.Errorf("reason %s", got)
			}
			s.must(s.client.Get(t.Context(), client.ObjectKeyFromObject(class), class))
			want := v1alpha1.ReasonListFailed
			if name == "panic" {
				want = ""
			}
			for _, c := range class.Status.Conditions {
				if c.Type == v1alpha1.ConditionGarbageCollection && c.Reason != want {
					t.Errorf("the failed class says %s, want %q", c.Reason, want)
				}
			}
		})
	}
}

// A provider that ignores the end of its time holds nobody up, is not asked again meanwhile, and what it says at last is
// not acted upon.
func TestA33_AListThatNeverEndsHoldsNobodyUp(t *testing.T) {
	s := newBed(t)
	lists, answer := make(chan struct{}, 10), make(chan struct{})
	class := s.second(func(_ context.Context, inner providers.Provider) ([]providers.Instance, error) {
		lists <- struct{}{}
		<-answer
		return inner.List(context.Background())
	})
	ctx, cancel := context.WithCancel(t.Context())
	swept := make(chan error)
	go func() { swept <- s.runner.SweepAll(ctx) }()
	<-lists
	// The time of the sweep is over.
	cancel()
	if err := <-swept; err == nil {
		t.Error("no error")
	}
	for range 3 {
		if err := s.sweep(1); err == nil || !strings.Contains(err.Error(), "has not ended") {
			t.Errorf("got %v", err)
		}
	}
	if names := s.names(); names["orphan"] || !names["bad"] {
		t.Errorf("left %v", names)
	}
	if len(lists) != 0 {
		t.Errorf("asked %d times more", len(lists))
	}
	s.runner.classes[class.UID].strikes = map[string]bool{}
	close(answer)
	s.idle(class.UID)
	if !s.names()["bad"] {
		t.Error("a sweep whose time was over deleted an instance")
	}
	s.must(s.sweep(2))
	if s.names()["bad"] {
		t.Error("the class is not swept any more")
	}
}

func TestMetrics(t *testing.T) {
	s := newBed(t)
	s.more(7)
	s.must(s.sweep(2))
	want := func(name string, value float64) {
		t.Helper()
		if got := s.metric("proxy_operator_provider_orphan" + name); got != value {
			t.Errorf("%s is %v, want %v", name, got, value)
		}
	}
	want("s", 8)
	want("_breaker_tripped", 1)
	want("s_deleted_total", 0)
	want("s_saved_total", 0)
	want("_sweep_failures_total", 0)
	want("_sweep_duration_seconds", 2)
	last := s.metric("proxy_operator_provider_orphan_sweep_last_success_timestamp_seconds")
	if ago := s.clock.Now().Sub(time.Unix(int64(last), 0)); ago != DefaultPeriod {
		t.Errorf("the last success was %v ago, want %v", ago, DefaultPeriod)
	}

	s.cloud.Down(errors.New("503"))
	if err := s.sweep(1); err == nil {
		t.Error("no error")
	}
	want("_sweep_failures_total", 1)
	want("_sweep_last_success_timestamp_seconds", last)
	s.cloud.Down(nil)

	s.must(s.sweep(1))
	s.confirm(new("8"))
	s.must(s.sweep(1))
	want("s_deleted_total", DefaultMaxDeletes)
	want("_breaker_tripped", 0)
	s.must(s.sweep(2))
	want("s", 0)
	want("s_deleted_total", 8)
	if problems, err := testutil.GatherAndLint(s.registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}

	// Off: nothing is known, and an old success must not look like a sweep that is overdue.
	s.setMode(v1alpha1.GarbageCollectionOff)
	s.must(s.sweep(1))
	want("s", -1)
	want("_sweep_last_success_timestamp_seconds", -1)
	want("s_deleted_total", 8)
}

// A class that was removed by force takes its strikes and its series with it; a namesake has its own.
func TestAClassThatIsGoneLeavesNothing(t *testing.T) {
	s := newBed(t)
	s.must(s.sweep(1))
	if len(s.runner.classes) != 1 || s.metric("proxy_operator_provider_orphans") != 1 {
		t.Fatalf("%v", s.runner.classes)
	}
	class := s.now()
	s.must(s.client.Delete(t.Context(), class))
	again := &v1alpha1.ProviderClass{ObjectMeta: metav1.ObjectMeta{Name: class.Name}, Spec: s.class.Spec}
	s.must(s.client.Create(t.Context(), again))
	s.accept(metav1.ConditionTrue)
	s.must(s.sweep(1))
	if !s.names()["orphan"] {
		t.Error("strikes of the former class counted")
	}
	if got := s.metric("proxy_operator_provider_orphan_sweep_duration_seconds"); got != 1 {
		t.Errorf("%v sweeps, want those of the present class", got)
	}
	s.must(s.client.Delete(t.Context(), again))
	s.must(s.sweep(1))
	if n, err := testutil.GatherAndCount(s.registry); err != nil || n != 0 {
		t.Errorf("%d series left, %v", n, err)
	}
	if len(s.runner.classes) != 0 {
		t.Errorf("left %v", s.runner.classes)
	}
	// Nobody brings them back.
	m := s.runner.metrics.remember(s.runner.kind, "gone")
	m.forget()
	m.found(Result{}, s.clock.Now())
	m.swept(time.Second, errors.New("late"))
	if n, err := testutil.GatherAndCount(prometheus.Gatherer(s.registry)); err != nil || n != 0 {
		t.Errorf("%d series came back, %v", n, err)
	}
}

// What a sweep found is told although the class controller wrote meanwhile, and announced once.
func TestAFindingIsWrittenOnWhatIsThereNow(t *testing.T) {
	s := newBed(t)
	s.more(7)
	stale := s.now()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"yes"}}}`))
	s.must(s.client.Patch(t.Context(), s.class.DeepCopy(), patch))
	s.runner.Client = interceptor.NewClient(s.client, interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			list.(*v1alpha1.ProviderClassList).Items = []v1alpha1.ProviderClass{*stale.DeepCopy()}
			return nil
		},
	})
	s.must(s.sweep(1))
	if got := s.reason(); got != v1alpha1.ReasonTooManyOrphans {
		t.Errorf("reason %s", got)
	}
	s.must(s.sweep(3))
	if n := len(s.events.Events); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}
