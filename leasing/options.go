package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/leasing/retention"
)

// Defaults of the limits.
const (
	// DefaultMaxWaiting is the most HTTP calls that wait for a proxy at once.
	DefaultMaxWaiting = 10_000
	// DefaultIdentityShare bounds the HTTP calls of one identity that wait: it may have one in so many of MaxWaiting.
	// A token that all crawlers share is one identity, so the share is large.
	DefaultIdentityShare = 2
	// DefaultMaxWaitingPerHolder is the most HTTP calls of one holder that wait at once.
	DefaultMaxWaitingPerHolder = 1_000
	// DefaultExclusivePatience is how long Exclusive leases wait until they claim a proxy.
	DefaultExclusivePatience = 15 * time.Second
)

// Verdicts is what leasing needs of the health engine: the newest verdict, which is in memory before it is in a status.
type Verdicts interface {
	// Verdict on an incarnation of a proxy; known is false when there is none. It must neither block nor call back.
	Verdict(proxy types.UID, instanceID string) (healthy, known bool)
}

// VerdictFunc is a function as Verdicts.
type VerdictFunc func(proxy types.UID, instanceID string) (healthy, known bool)

// Verdict implements Verdicts.
func (f VerdictFunc) Verdict(proxy types.UID, instanceID string) (healthy, known bool) {
	return f(proxy, instanceID)
}

// Hinter makes the health engine probe a proxy soon: a report is a reason to look, never a verdict.
type Hinter interface {
	Hint(proxy types.UID)
}

// Credentials reads the credentials of a proxy.
type Credentials interface {
	// Read gives the user name and password in the Secret; the error names what is wrong with it and never its content.
	Read(ctx context.Context, namespace, secret string) (username, password string, err error)
}

// Guard tells whether others are kept from writing grants: without that nothing is granted over HTTP.
type Guard interface {
	// Protected is false with the reason, which is empty as long as nothing is known.
	Protected() (ok bool, reason string)
}

// Options of an Allocator. Client, Live, Cache and Registerer are required.
type Options struct {
	// Client writes, and reads from the cache.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Cache has the informers.
	Cache    cache.Cache
	Clock    clock.Clock
	Log      logr.Logger
	Recorder events.EventRecorder
	// Registerer takes the metrics.
	Registerer prometheus.Registerer
	// Verdicts and Hinter are the health engine; nil: there is none.
	Verdicts Verdicts
	Hinter   Hinter
	// Guard is asked before a grant over HTTP; nil: grants are protected.
	Guard Guard
	// Credentials of proxies; nil: they are read by Client from Secrets that carry the label for it.
	Credentials Credentials
	// Leads tells by a clock whether this process may still act as the leader (see Fence); nil: always.
	Leads func() bool
	// Namespaces that are watched; empty: all.
	Namespaces []string
	// MaxWaiting, MaxWaitingPerIdentity and MaxWaitingPerHolder limit the HTTP calls that wait, of each replica; 0: the
	// defaults. A holder is what a call says beside its identity, so only the other two bound what one caller can take.
	MaxWaiting, MaxWaitingPerIdentity, MaxWaitingPerHolder int
	// MaxLeases is how many ProxyLease objects there may be, live and finished ones of all namespaces, until no more are
	// granted by HTTP; 0: retention.DefaultMaxLeases.
	MaxLeases int
	// MaxFinishedPerNamespace is how many finished leases of a namespace are kept; 0: retention.MaxFinishedPerNamespace.
	MaxFinishedPerNamespace int
	// RestartGrace is how long after a start no lease expires; 0: expiry.RestartGrace.
	RestartGrace time.Duration
	// ExclusivePatience is how long Exclusive leases wait until they claim a proxy, so that it takes no others until it is
	// empty; 0: the default.
	ExclusivePatience time.Duration
}

func (o *Options) complete() error {
	if o.Client == nil || o.Live == nil || o.Cache == nil || o.Registerer == nil {
		return errors.New("leasing: Client, Live, Cache and Registerer are required")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	if o.Recorder == nil {
		o.Recorder = &events.FakeRecorder{}
	}
	if o.Credentials == nil {
		o.Credentials = SecretCredentials{Reader: o.Client}
	}
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	if o.MaxWaiting == 0 {
		o.MaxWaiting = DefaultMaxWaiting
	}
	if o.MaxWaitingPerIdentity == 0 {
		o.MaxWaitingPerIdentity = (o.MaxWaiting + DefaultIdentityShare - 1) / DefaultIdentityShare
	}
	if o.MaxWaitingPerHolder == 0 {
		o.MaxWaitingPerHolder = DefaultMaxWaitingPerHolder
	}
	if o.MaxLeases == 0 {
		o.MaxLeases = retention.DefaultMaxLeases
	}
	if o.ExclusivePatience == 0 {
		o.ExclusivePatience = DefaultExclusivePatience
	}
	return nil
}
