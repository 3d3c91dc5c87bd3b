package policy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// server is an API server that knows who core is. fail makes it refuse what is read.
type server struct {
	client.WithWatch
	fail error
}

func newServer(t *testing.T) *server {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	s := &server{}
	s.WithWatch = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if review, ok := o.(*authenticationv1.SelfSubjectReview); ok {
				review.Status.UserInfo.Username = coreUser
				return s.fail
			}
			return c.Create(ctx, o, opts...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if s.fail != nil {
				return s.fail
			}
			return c.Get(ctx, key, o, opts...)
		},
	}).Build()
	return s
}

func newGuard(t *testing.T, s *server, log logr.Logger) *Guard {
	t.Helper()
	g, err := NewGuard(s, s, clock.RealClock{}, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGuardFollowsThePolicy(t *testing.T) {
	s := newServer(t)
	lines := 0
	g := newGuard(t, s, funcr.New(func(_, _ string) { lines++ }, funcr.Options{}))
	want := func(when string, ok bool, reason string) {
		t.Helper()
		if gotOK, got := g.Protected(); gotOK != ok || got != reason {
			t.Fatalf("%s: %v %q, want %v %q", when, gotOK, got, ok, reason)
		}
		if metric := testutil.ToFloat64(g.gauge); metric == 1 != ok {
			t.Fatalf("%s: the metric is %v", when, metric)
		}
	}
	want("before the first look", false, "")
	s.fail = errors.New("connection refused")
	g.Check(t.Context())
	want("while the API server does not answer", false, "")
	s.fail = nil
	for range 3 {
		g.Check(t.Context())
		want("without a policy", false, ReasonPolicyNotFound)
	}
	if lines != 1 {
		t.Errorf("%d lines in the log, want one", lines)
	}
	policy, binding := installed(t)
	if err := errors.Join(s.Create(t.Context(), policy), s.Create(t.Context(), binding)); err != nil {
		t.Fatal(err)
	}
	g.Check(t.Context())
	want("with it", true, "")
	s.fail = errors.New("connection refused")
	g.Check(t.Context())
	want("when the API server has stopped to answer", true, "")
	s.fail = apierrors.NewForbidden(schema.GroupResource{Resource: "validatingadmissionpolicies"}, DefaultName, errors.New("no"))
	g.Check(t.Context())
	want("without the right to look", false, ReasonNotReadable)
	s.fail = nil
	if err := s.Delete(t.Context(), binding); err != nil {
		t.Fatal(err)
	}
	g.Check(t.Context())
	want("without the binding", false, ReasonBindingNotFound)
}

// A Guard that runs takes a change in within its period.
func TestGuardLooksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		var log strings.Builder
		g := newGuard(t, s, funcr.New(func(_, line string) { log.WriteString(line) }, funcr.Options{}))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- g.Start(ctx) }()
		synctest.Wait()
		if ok, reason := g.Protected(); ok || reason != ReasonPolicyNotFound || !strings.Contains(log.String(), "policies.enabled") {
			t.Fatalf("%v %q, %s", ok, reason, log.String())
		}
		policy, binding := installed(t)
		if err := errors.Join(s.Create(ctx, policy), s.Create(ctx, binding)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(RetryPeriod) // of the bubble's clock
		synctest.Wait()
		if ok, _ := g.Protected(); !ok {
			t.Fatal("the policy is not found")
		}
		if err := s.Delete(ctx, policy); err != nil {
			t.Fatal(err)
		}
		time.Sleep(CheckPeriod)
		synctest.Wait()
		if ok, _ := g.Protected(); ok {
			t.Fatal("it is not missed")
		}
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}
