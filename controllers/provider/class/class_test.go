package class

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/statusapply"
	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/fake"
	"crawl.example.com/egress-proxies-operator/providers/guard"
)

func TestMain(m *testing.M) { os.Exit(testenv.Run(m)) }

type bed struct {
	t     *testing.T
	env   *testenv.Env
	clock *clocktesting.FakeClock
	cloud *fake.Cloud
	class *v1alpha1.ProviderClass
	*Reconciler
}

func newBed(t *testing.T, change ...func(*v1alpha1.ProviderClass)) *bed {
	t.Helper()
	env := testenv.New(t)
	clock := clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	s := &bed{t: t, env: env, clock: clock, cloud: fake.NewCloud(clock, fake.Behaviour{})}
	factory := &fake.Factory{Cloud: s.cloud}
	s.class = &v1alpha1.ProviderClass{
		ObjectMeta: metav1.ObjectMeta{Name: env.Namespace(t)},
		Spec: v1alpha1.ProviderClassSpec{
			Type:              v1alpha1.ProviderKubernetes,
			AllowedNamespaces: v1alpha1.NamespaceAccess{From: v1alpha1.NamespacesFromAll},
		},
	}
	for _, f := range change {
		f(s.class)
	}
	s.must(env.Client.Create(t.Context(), s.class))
	s.Reconciler = NewReconciler(env.Client, events.NewFakeRecorder(100), Options{
		Set:   providers.NewSet(factory, providers.Runtime{ClusterID: "cluster", Clock: clock}, guard.ForSet(factory, clock, nil)),
		Clock: clock, ControllerName: v1alpha1.DefaultControllerName,
	})
	return s
}

func (s *bed) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// step reconciles and moves the clock to the next time.
func (s *bed) step() time.Duration {
	s.t.Helper()
	result, err := s.Reconcile(s.t.Context(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s.class)})
	s.must(err)
	s.clock.Step(result.RequeueAfter)
	return result.RequeueAfter
}

func (s *bed) get() *v1alpha1.ProviderClass {
	s.t.Helper()
	now := &v1alpha1.ProviderClass{}
	err := s.env.Client.Get(context.Background(), client.ObjectKeyFromObject(s.class), now)
	if apierrors.IsNotFound(err) {
		return nil
	}
	s.must(err)
	return now
}

func (s *bed) want(kind string, status metav1.ConditionStatus, reason string) metav1.Condition {
	s.t.Helper()
	c := meta.FindStatusCondition(s.get().Status.Conditions, kind)
	if c == nil {
		s.t.Fatalf("%s is absent", kind)
	}
	if c.Status != status || c.Reason != reason {
		s.t.Errorf("%s is %s/%s, want %s/%s", kind, c.Status, c.Reason, status, reason)
	}
	return *c
}

func TestAcceptedAndReady(t *testing.T) {
	s := newBed(t)
	s.want(v1alpha1.ConditionAccepted, metav1.ConditionUnknown, v1alpha1.ReasonPending)
	if after := s.step(); after < CheckPeriod {
		t.Errorf("checked again after %v", after)
	}
	s.want(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
	now := s.get()
	if now.Status.ObservedGeneration != now.Generation || now.Status.EgressScope != string(v1alpha1.EgressShared) {
		t.Errorf("got %+v", now.Status)
	}
	for range 10 {
		s.step()
	}
	if again := s.get(); again.ResourceVersion != now.ResourceVersion {
		t.Error("written although nothing changed")
	}
}

func TestEgressScope(t *testing.T) {
	for want, spec := range map[v1alpha1.EgressScope]v1alpha1.ProviderClassSpec{
		v1alpha1.EgressShared:      {Type: v1alpha1.ProviderKubernetes},
		v1alpha1.EgressPerInstance: {Type: v1alpha1.ProviderGCP},
		v1alpha1.EgressRotating:    {Type: v1alpha1.ProviderGCP, EgressScope: v1alpha1.EgressRotating},
	} {
		if got := egressScope(&spec); got != want {
			t.Errorf("%+v: got %s, want %s", spec, got, want)
		}
	}
}

func TestAnotherInstallationsClassIsLeftAlone(t *testing.T) {
	s := newBed(t, func(class *v1alpha1.ProviderClass) { class.Spec.ControllerName = "crawl.example.com/other" })
	before := s.get()
	s.step()
	if after := s.get(); after.ResourceVersion != before.ResourceVersion || len(s.cloud.Calls()) != 0 {
		t.Error("it was touched")
	}
}

func TestAnInvalidConfigurationNamesTheField(t *testing.T) {
	s := newBed(t)
	s.cloud.Reject(field.ErrorList{field.Invalid(field.NewPath("spec", "kubernetes", "image"), "x", "not an image")})
	s.step()
	if c := s.want(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidConfig); !strings.Contains(c.Message, "spec.kubernetes.image") {
		t.Errorf("message %q", c.Message)
	}
	s.want(v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonNotChecked)
	s.cloud.Reject(nil)
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
}

func TestReadyIsLostAtTheSecondFailureAndWrittenOnce(t *testing.T) {
	for reason, failure := range map[string]error{
		v1alpha1.ReasonAuthFailed:  providers.NewError(providers.Auth, "", "", errors.New("401")),
		v1alpha1.ReasonUnreachable: errors.New("dial"),
	} {
		t.Run(reason, func(t *testing.T) {
			s := newBed(t)
			s.step()
			s.cloud.Down(failure)
			if after := s.step(); after > 2*doubtPeriod {
				t.Errorf("doubted for %v", after)
			}
			s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
			s.step()
			s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, reason)
			// The breaker opens and half opens, which is no news.
			before := s.get()
			for range 20 {
				s.step()
			}
			if after := s.get(); after.ResourceVersion != before.ResourceVersion {
				t.Error("written although nothing changed")
			}
			s.cloud.Down(nil)
			for range 3 {
				s.step()
			}
			s.want(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReachable)
		})
	}
}

func TestGarbageCollectionsConditionIsKept(t *testing.T) {
	s := newBed(t)
	s.step()
	class := s.get()
	next := class.Status.DeepCopy()
	meta.SetStatusCondition(&next.Conditions, metav1.Condition{Type: v1alpha1.ConditionGarbageCollection, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonClean})
	s.must(statusapply.Whole(t.Context(), s.env.Client, s.manager, class, &class.Status, next))
	s.cloud.Down(errors.New("dial"))
	s.step()
	s.step()
	s.want(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	s.want(v1alpha1.ConditionGarbageCollection, metav1.ConditionTrue, v1alpha1.ReasonClean)
}

func TestA16_AClassStaysUntilItsInstancesAreGone(t *testing.T) {
	s := newBed(t, func(class *v1alpha1.ProviderClass) {
		controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
	})
	px := s.bind("px")
	s.cloud.Plant(s.class.Name, providers.Instance{Ref: providers.Ref{Name: "i"}, Owner: providers.Owner{ClusterID: "cluster", UID: "gone"}, State: providers.StateRunning})

	stays := func(why string) {
		t.Helper()
		for range 3 {
			s.step()
		}
		if s.get() == nil {
			t.Fatalf("the class is gone, %s", why)
		}
	}
	s.must(s.env.Client.Delete(t.Context(), s.class))
	stays("a Proxy is bound to it")
	if n := s.cloud.Count(fake.MethodList); n != 0 {
		t.Errorf("%d Lists while a Proxy is bound", n)
	}
	s.must(s.env.Client.Delete(t.Context(), px))
	stays("it has an instance")
	s.cloud.Remove("i")
	s.cloud.Fail(fake.MethodList, errors.New("503"), errors.New("503"), errors.New("503"))
	stays("the instances are not known")
	s.step()
	if s.get() != nil {
		t.Error("the class is still there")
	}
}

func TestA16_SkipCleanupIsCores(t *testing.T) {
	s := newBed(t, func(class *v1alpha1.ProviderClass) {
		controllerutil.AddFinalizer(class, v1alpha1.FinalizerClassInstances)
		class.Annotations = map[string]string{v1alpha1.AnnotationSkipCleanup: "true"}
	})
	s.must(s.env.Client.Delete(t.Context(), s.class))
	s.step()
	if now := s.get(); now == nil || !controllerutil.ContainsFinalizer(now, v1alpha1.FinalizerClassInstances) {
		t.Error("the provider manager released the class")
	}
}
