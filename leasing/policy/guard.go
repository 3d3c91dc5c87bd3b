package policy

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// CheckPeriod is how often is looked while grants are protected. A policy that somebody deletes is missed for so long.
	CheckPeriod = 10 * time.Second
	// RetryPeriod is how often is looked while they are not, or while it is not known.
	RetryPeriod = 2 * time.Second
	// checkTimeout bounds one look.
	checkTimeout = 5 * time.Second
)

// Guard looks again and again whether grants are protected. Every replica runs one.
type Guard struct {
	// Live reads from the API server; Client asks it who core is.
	Live   client.Reader
	Client client.Client
	Clock  clock.Clock
	Log    logr.Logger

	found atomic.Pointer[finding]
	gauge prometheus.Gauge
	user  string // who core is; empty: not asked yet
}

// finding is what the last look that found out something has found.
type finding struct{ reason, detail string }

// NewGuard makes a Guard that knows nothing yet, and registers its metric.
func NewGuard(live client.Reader, c client.Client, clk clock.Clock, log logr.Logger, r prometheus.Registerer) (*Guard, error) {
	g := &Guard{Live: live, Client: c, Clock: clk, Log: log, gauge: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "proxy_operator_leases_grant_policy_in_force",
		Help: "Whether an admission policy keeps others than core from writing grants (1) or grants over HTTP are refused (0).",
	})}
	if err := r.Register(g.gauge); err != nil {
		return nil, fmt.Errorf("register the metric of the admission policy: %w", err)
	}
	return g, nil
}

// Protected tells whether others are kept from writing grants. If not, with the reason, which is empty as long as nothing is
// known.
func (g *Guard) Protected() (ok bool, reason string) {
	f := g.found.Load()
	if f == nil {
		return false, ""
	}
	return f.reason == "", f.reason
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica answers calls.
func (g *Guard) NeedLeaderElection() bool { return false }

// Start looks until ctx ends.
func (g *Guard) Start(ctx context.Context) error {
	for {
		g.Check(ctx)
		pause := RetryPeriod
		if ok, _ := g.Protected(); ok {
			pause = CheckPeriod
		}
		timer := g.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// Check looks once. An API server that does not answer changes nothing: it grants nothing either. It must not be called by
// two at once.
func (g *Guard) Check(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	f, err := g.look(ctx)
	if err != nil {
		g.Log.V(1).Info("It cannot be found out whether grants are protected", "reason", err.Error())
		return
	}
	before := g.found.Swap(f)
	if before != nil && *before == *f {
		return
	}
	if f.reason == "" {
		g.gauge.Set(1)
		g.Log.Info("The admission policy protects grants")
		return
	}
	g.gauge.Set(0)
	g.Log.Error(nil, "Leases are not granted over HTTP: others could write spec.grant of a ProxyLease. Install the admission policies (chart: policies.enabled)",
		"reason", f.reason, "detail", f.detail)
}

// look reads the policy and its binding.
func (g *Guard) look(ctx context.Context) (*finding, error) {
	if g.user == "" {
		review := &authenticationv1.SelfSubjectReview{}
		if err := g.Client.Create(ctx, review); err != nil {
			return notReadable(fmt.Errorf("ask the API server who this is: %w", err))
		}
		g.user = review.Status.UserInfo.Username
	}
	key := types.NamespacedName{Name: NameFor(g.user)}
	policy, binding := &admissionv1.ValidatingAdmissionPolicy{}, &admissionv1.ValidatingAdmissionPolicyBinding{}
	if err := g.Live.Get(ctx, key, policy); apierrors.IsNotFound(err) {
		policy = nil
	} else if err != nil {
		return notReadable(fmt.Errorf("read the admission policy: %w", err))
	}
	if err := g.Live.Get(ctx, key, binding); apierrors.IsNotFound(err) {
		binding = nil
	} else if err != nil {
		return notReadable(fmt.Errorf("read the binding of the admission policy: %w", err))
	}
	f := &finding{}
	f.reason, f.detail = Judge(g.user, key.Name, policy, binding)
	return f, nil
}

// notReadable is a finding when the API server refuses, and no finding when it does not answer.
func notReadable(err error) (*finding, error) {
	if apierrors.IsForbidden(err) {
		return &finding{reason: ReasonNotReadable, detail: err.Error()}, nil
	}
	return nil, err
}
