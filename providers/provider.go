// Package providers is the contract between the operator and the code that makes proxies: what a provider must be able to
// do, what it may say, and how it names and marks what it makes. It knows no provider and no controller.
//
// The comments here say what each method is for. The rules in full, why they are there and which test checks them are in
// docs/provider-contract.md.
package providers

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Factory makes Providers of one type. It is stateless but for what it was built with. It may implement Timed and Limited
// besides.
type Factory interface {
	// Type is the type whose classes this factory opens.
	Type() v1alpha1.ProviderType
	// Validate checks the configuration of a class without any I/O; its errors name the field and become the class's
	// Accepted condition, so that equal classes must give equal text.
	Validate(class *v1alpha1.ProviderClass) field.ErrorList
	// Open makes the Provider of one class, which Validate has accepted. It must be cheap and must not dial: a class whose
	// provider is down is opened as well. When a class changes, the new Provider is opened before the old one is closed.
	Open(ctx context.Context, class *v1alpha1.ProviderClass, rt Runtime) (Provider, error)
}

// Provider is one ProviderClass at one generation. All methods are safe for concurrent use, honour ctx and return errors of
// the taxonomy in errors.go. Nothing that must outlast a restart lives in it. Rate limits, breakers, timeouts, metrics and
// spans are put around it by providers/guard. It may implement Eventer and HostReporter besides.
type Provider interface {
	// Check tells whether credentials and endpoint work, and changes nothing; its error becomes the class's Ready condition.
	Check(ctx context.Context) error
	// ValidateSpec returns an InvalidSpec error that names the field, without any I/O. It is asked in every reconcile; where
	// user data comes from a Secret, once more with it resolved, in spec.cloudInit.inline.
	ValidateSpec(spec *v1alpha1.ProxySpec) error
	// Create starts making an instance and returns before it runs. A nil error or AlreadyExists means accepted, nothing
	// more. It is idempotent by req.Name, also for calls at the same time from several processes. What holds the name for
	// another owner, or for none, is a Conflict; what holds it and does not show yet is accepted. It never says NotFound.
	Create(ctx context.Context, req CreateRequest) (Receipt, error)
	// Get is the only proof of existence. It returns what holds the name now, whoever owns it and whatever ref.ID says.
	// NotFound means that nothing does: an instance that is being deleted is returned with StateTerminating, and any doubt is
	// Unavailable. With ref.Zone only that place is looked at, also when the class does not name it any more; without it every
	// place where the instance could be, or Unavailable.
	Get(ctx context.Context, ref Ref) (Instance, error)
	// Delete starts deleting. A nil error or NotFound means accepted; it is no proof of absence. When ref.ID is set, no
	// other incarnation may be touched; what does not carry the mark of this cluster never is, and is a Conflict or NotFound.
	Delete(ctx context.Context, ref Ref) error
	// List returns all instances of this cluster and class, those that are being deleted too, with the same Ref, Owner, Hash
	// and CreatedAt as Get, in all places that the account reaches. A partial list is an error, without instances.
	List(ctx context.Context) ([]Instance, error)
	// Place chooses the zone or host for a new instance before the intent is stored, without any I/O: the one that spec
	// names, else the same one for the same question, leaving out those in tried as long as another is left; "" where the
	// provider has no places. Members of a pool have equal specifications, so the choice goes by owner, the Proxy's UID: see
	// Spread.
	Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (string, error)
	// Close releases what the Provider holds; a second call does nothing. Calls under way and later ones may fail with
	// Unavailable.
	Close() error
}

// Eventer is implemented by providers that can tell that something happened to an instance, so that the controller looks
// before its next poll. Events may be lost, doubled and late.
type Eventer interface {
	// Events returns the same channel each time. The provider must not wait for a reader.
	Events() <-chan event.TypedGenericEvent[Owner]
}

// Runtime is what a manager hands to the factories.
type Runtime struct {
	// ClusterID marks every instance; by default the UID of the kube-system namespace. It is a label value.
	ClusterID string
	// Clock is the time for everything that waits or expires.
	Clock clock.WithTicker
	// Client reads and writes the cluster; only the kubernetes provider gets one, and the two that follow.
	Client client.Client
	// Reader reads from the API server itself: a cache that has not seen a new object yet would call it gone.
	Reader client.Reader
	// Informers tell of changes; nil leaves Providers without events.
	Informers cache.Informers
	// Namespaces that the operator watches; empty means all.
	Namespaces []string
	// Logger for what no caller sees, such as background work. It must not be told secrets.
	Logger logr.Logger
	// CacheDir may hold what can be fetched again; "" when there is none.
	CacheDir string
	// Secrets reads a Secret of the operator's namespace, for classes that name one for their credentials; nil where the
	// manager may read none.
	Secrets func(ctx context.Context, name string) (map[string][]byte, error)
	// Registerer for metrics of the provider's own, which must bear being registered once per class; nil for none.
	Registerer prometheus.Registerer
}

// Owner is the Proxy an instance belongs to. It is written on every instance, read back exactly, and is the only licence to
// delete it. It is comparable.
type Owner struct {
	ClusterID string
	Namespace string
	Name      string
	UID       types.UID
}

// Ref finds an instance. Namespace and Name are always known; the rest is known once it was seen or, for Zone, chosen.
type Ref struct {
	// Namespace of the Proxy, for providers whose instances live beside it.
	Namespace string
	// Name is deterministic, see InstanceName.
	Name string
	// Zone or host; "" when none was recorded.
	Zone string
	// ID is the provider's own id of one incarnation, at most 253 characters; "" before the first Get. No two incarnations
	// share one, also of the same name.
	ID string
	// ProviderID is self-contained: gce://project/zone/name, libvirt://host/uuid, pod://namespace/name. At most 1024
	// characters. It is for people, and a hint for Get; Name and Zone decide.
	ProviderID string
	// Operation is what the Receipt of the last accepted Create said; "" when that is not known. Get may look it up to tell
	// why nothing is there, see Error.Outcome.
	Operation string
}

// State is what an instance is doing.
type State string

// The states of an instance. Each has one reaction, see docs/provider-contract.md.
const (
	// StatePending: on its way; too long in it, and it is replaced.
	StatePending State = "Pending"
	// StateRunning: runs; in use once it has an address.
	StateRunning State = "Running"
	// StateStopped and StateFailed: will not run by itself again; it is replaced.
	StateStopped State = "Stopped"
	StateFailed  State = "Failed"
	// StateTerminating: being deleted, by whomever; it is waited for.
	StateTerminating State = "Terminating"
)

// Instance is what a provider knows of one instance.
type Instance struct {
	Ref
	Owner Owner
	// Hash is what the instance was made from, see InstanceHash.
	Hash  string
	State State
	// Addresses of the instance, the endpoint first; empty until known. IP addresses or DNS names without a port, at most 8.
	Addresses []string
	// CreatedAt of this incarnation by the provider's clock, the same each time; garbage collection needs it.
	CreatedAt time.Time
	// Message is a stable sentence about the state: no ids, no times, no counts, since every change of it is a write. At most
	// MaxMessage characters.
	Message string
}

// CreateRequest is everything an instance is made from. Nothing in it may be changed, logged or put into an error.
type CreateRequest struct {
	// Name is an RFC 1035 label of at most 63 characters.
	Name  string
	Owner Owner
	// Zone was chosen by Place and is stored already.
	Zone string
	// Hash is to be written on the instance and read back; it is not to be understood. At most 64 characters.
	Hash string
	// Attempt is the same in all calls of one attempt and another in every other attempt of the Proxy: what a key of
	// idempotency is made from. At most 64 characters; "" when it is not known.
	Attempt string
	// Labels of the Proxy, for providers that can show them.
	Labels map[string]string
	// Spec is a copy.
	Spec v1alpha1.ProxySpec
	// UserData is the resolved cloud-init.
	UserData []byte
	// Credentials that the proxy must ask for; nil when it asks for none.
	Credentials *Credentials
}

// Receipt is an opaque note of the provider about an accepted Create; it is stored in status.instance.operation, which
// people may read. At most 1024 characters. Get is handed it in Ref.Operation until the next attempt.
type Receipt struct {
	Operation string
}

// Credentials are a user name and a password. They never print.
type Credentials struct {
	Username string
	Password string
}

// String implements fmt.Stringer.
func (Credentials) String() string { return "REDACTED" }

// GoString implements fmt.GoStringer.
func (Credentials) GoString() string { return "REDACTED" }

// MarshalLog implements logr.Marshaler.
func (Credentials) MarshalLog() any { return "REDACTED" }
