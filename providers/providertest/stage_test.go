package providertest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
)

// stage is the fake cloud with everything a Harness can have, and a place for lies between it and the suite.
type stage struct {
	cloud *fake.Cloud
	clock *clocktesting.FakeClock

	// lie is put around every Provider.
	lie func(l *liar)
	// validate and times replace what the factory says.
	validate func(*v1alpha1.ProviderClass) field.ErrorList
	times    providers.Timing
	rate     providers.Limits
	// opened is called by Open.
	opened func(*v1alpha1.ProviderClass)
	// short is in which way List sees only a part of what there is, and shown how many instances it was shown then.
	short string
	shown int
	// shrunk tells that the class does not name the last zone any more.
	shrunk bool
	// over is closed when the check is over, for lies that hang.
	over chan struct{}
	// opens is for lies that count the Providers.
	opens int
	// noUserData says that the provider takes none.
	noUserData bool
}

// invalidImage of a kubernetes block is what the stage's classes must not have.
const invalidImage = "invalid"

// stageUserData is how much user data the stage's cloud takes, in bytes.
const stageUserData = 1000

func newStage() *stage {
	clock := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	return &stage{clock: clock, cloud: fake.NewCloud(clock, stageBehaviour)}
}

var stageBehaviour = fake.Behaviour{
	Visible: 2 * time.Second, Start: 10 * time.Second, Stop: 5 * time.Second, Zones: []string{"a", "b", "c"}, Wakes: true, MaxUserData: stageUserData,
}

const (
	// stageToken is the credential of the stage's classes.
	stageToken = "token-of-the-class"
	// stageRetryAfter is what the stage's cloud asks to be waited.
	stageRetryAfter = 7 * time.Second

	// Ways in which the stage's lists are short.
	pageFails     = "a later page"
	zoneIsMissing = "a zone, by a warning"
)

func (s *stage) harness() Harness {
	class := func(name, image string) *v1alpha1.ProviderClass {
		return &v1alpha1.ProviderClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Generation: 1},
			Spec:       v1alpha1.ProviderClassSpec{Type: v1alpha1.ProviderKubernetes, Kubernetes: &v1alpha1.KubernetesClass{Image: image}},
		}
	}
	userData := []byte("#cloud-config")
	if s.noUserData {
		userData = nil
	}
	return Harness{
		Factory:  stageFactory{s},
		Runtime:  providers.Runtime{ClusterID: "cluster", Clock: s.clock},
		Class:    func(name string) *v1alpha1.ProviderClass { return class(name, "") },
		Spec:     func() v1alpha1.ProxySpec { return v1alpha1.ProxySpec{} },
		Tick:     func() { s.clock.Step(time.Second) },
		Patience: 30,
		Invalid: map[string]v1alpha1.ProxySpec{
			"spec.placement.image": {ProxyTemplateSpec: v1alpha1.ProxyTemplateSpec{Placement: &v1alpha1.Placement{Image: fake.InvalidImage}}},
		},
		InvalidClasses: map[string]*v1alpha1.ProviderClass{"spec.kubernetes.image": class("a", invalidImage)},
		UserData:       userData,
		UserDataLimit:  stageUserData,
		Credentials:    &providers.Credentials{Username: "crawler", Password: "secret"},
		Secrets:        []string{stageToken},
		Zones:          stageBehaviour.Zones,
		PageSize:       3,
		Calls:          func() int { return len(s.cloud.Calls()) },
		Exists: func(ref providers.Ref) bool {
			return slices.ContainsFunc(s.cloud.Instances(), func(i providers.Instance) bool { return i.Name == ref.Name })
		},
		Foreign: func(_ testing.TB, ref providers.Ref) {
			s.cloud.Plant("a", providers.Instance{Ref: ref, State: providers.StateRunning})
		},
		Fail: func(reason providers.Reason) func() {
			methods := []string{}
			if reason == providers.Capacity {
				methods = append(methods, fake.MethodCreate)
			}
			err := providers.NewError(reason, "", "", fmt.Errorf("refused: Bearer ***"))
			if reason == providers.RateLimited {
				err.RetryAfter = stageRetryAfter
			}
			s.cloud.Down(err, methods...)
			return func() { s.cloud.Down(nil) }
		},
		RetryAfter: stageRetryAfter,
		Hang:       s.cloud.Stall,
		Partial:    map[string]Partial{pageFails: s.partial(pageFails), zoneIsMissing: s.partial(zoneIsMissing)},
		Missing: map[string]func(*providers.CreateRequest){
			"its zone": func(req *providers.CreateRequest) { req.Zone = "z" },
		},
		Shrink: func() func() {
			fewer := stageBehaviour
			fewer.Zones = fewer.Zones[:len(fewer.Zones)-1]
			s.cloud.SetBehaviour(fewer)
			s.shrunk = true
			return func() {
				s.cloud.SetBehaviour(stageBehaviour)
				s.shrunk = false
			}
		},
	}
}

func (s *stage) partial(lacks string) Partial {
	return Partial{
		Hide: func() func() {
			s.short, s.shown = lacks, 0
			return func() { s.short = "" }
		},
		Shown: func() int { return s.shown },
	}
}

type stageFactory struct{ *stage }

func (f stageFactory) Type() v1alpha1.ProviderType { return v1alpha1.ProviderKubernetes }

func (f stageFactory) Timing() providers.Timing { return f.times }

func (f stageFactory) Limits() providers.Limits { return f.rate }

func (f stageFactory) Validate(class *v1alpha1.ProviderClass) field.ErrorList {
	if f.validate != nil {
		return f.validate(class)
	}
	if class.Spec.Kubernetes.Image == invalidImage {
		return field.ErrorList{field.Invalid(field.NewPath("spec", "kubernetes", "image"), invalidImage, "is no image")}
	}
	return nil
}

func (f stageFactory) Open(ctx context.Context, class *v1alpha1.ProviderClass, rt providers.Runtime) (providers.Provider, error) {
	if f.opened != nil {
		f.opened(class)
	}
	inner, err := (&fake.Factory{Cloud: f.cloud}).Open(ctx, class, rt)
	if err != nil {
		return nil, err
	}
	l := &liar{Provider: inner, stage: f.stage, class: class.Name, uid: class.UID, rt: rt}
	l.list = func(ctx context.Context) ([]providers.Instance, error) {
		if l.short != "" {
			l.shown += 2
			return nil, providers.NewError(providers.Unavailable, "list instances", "a zone did not answer", nil)
		}
		return inner.List(ctx)
	}
	if f.lie != nil {
		f.lie(l)
	}
	return l, nil
}

// liar is a Provider that is honest where no field says otherwise.
type liar struct {
	providers.Provider
	*stage
	class string
	uid   types.UID
	rt    providers.Runtime

	check     func(context.Context) error
	validSpec func(*v1alpha1.ProxySpec) error
	create    func(context.Context, providers.CreateRequest) (providers.Receipt, error)
	get       func(context.Context, providers.Ref) (providers.Instance, error)
	delete    func(context.Context, providers.Ref) error
	list      func(context.Context) ([]providers.Instance, error)
	place     func(*v1alpha1.ProxySpec, types.UID, []string) (string, error)
	close     func() error
	events    func() <-chan ownerEvent
	hosts     func() []providers.HostState
}

func (l *liar) Check(ctx context.Context) error {
	if l.check != nil {
		return l.check(ctx)
	}
	return l.Provider.Check(ctx)
}

func (l *liar) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	if l.validSpec != nil {
		return l.validSpec(spec)
	}
	return l.Provider.ValidateSpec(spec)
}

func (l *liar) Create(ctx context.Context, req providers.CreateRequest) (providers.Receipt, error) {
	if l.create != nil {
		return l.create(ctx, req)
	}
	return l.Provider.Create(ctx, req)
}

func (l *liar) Get(ctx context.Context, ref providers.Ref) (providers.Instance, error) {
	if l.get != nil {
		return l.get(ctx, ref)
	}
	return l.Provider.Get(ctx, ref)
}

func (l *liar) Delete(ctx context.Context, ref providers.Ref) error {
	if l.delete != nil {
		return l.delete(ctx, ref)
	}
	return l.Provider.Delete(ctx, ref)
}

func (l *liar) List(ctx context.Context) ([]providers.Instance, error) { return l.list(ctx) }

func (l *liar) Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error) {
	if l.place != nil {
		return l.place(spec, owner, tried)
	}
	return l.Provider.Place(spec, owner, tried)
}

func (l *liar) Close() error {
	if l.close != nil {
		return l.close()
	}
	return l.Provider.Close()
}

func (l *liar) Events() <-chan ownerEvent {
	if l.events != nil {
		return l.events()
	}
	return l.Provider.(providers.Eventer).Events()
}

func (l *liar) Hosts() []providers.HostState {
	if l.hosts != nil {
		return l.hosts()
	}
	return l.Provider.(providers.HostReporter).Hosts()
}

// recorder is a test that keeps its verdict to itself.
type recorder struct {
	testing.TB

	mu       sync.Mutex
	failures []string
	skipped  string
	cleanups []func()
}

// verdict runs a check and tells what it found wrong, and why it was skipped.
func (c check) verdict(t *testing.T, s *stage) (failures []string, skipped string) {
	t.Helper()
	r := &recorder{}
	// Time stands still for everything but the check, so that what waits for a deadline need not.
	synctest.Test(t, func(t *testing.T) {
		r.TB = t
		done := make(chan struct{})
		go func() {
			defer close(done)
			defer func() {
				if p := recover(); p != nil {
					r.Errorf("panic: %v", p)
				}
			}()
			s.over = make(chan struct{})
			c.run(r, s.harness())
		}()
		<-done
		failures, skipped = r.failures, r.skipped
		// What goes wrong now is the consequence of a lie, and no verdict.
		for _, cleanup := range slices.Backward(r.cleanups) {
			cleanup()
		}
		close(s.over)
	})
	return failures, skipped
}

func (r *recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Error(args ...any) { r.Errorf("%s", fmt.Sprint(args...)) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Fatal(args ...any) { r.Fatalf("%s", fmt.Sprint(args...)) }

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skip(args ...any) { r.Skipf("%s", fmt.Sprint(args...)) }

func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }
