// Package providers is the contract between the operator and the code that makes proxies: what a provider must be able to
// do, what it may say, and how it names and marks what it makes. It knows no provider and no controller.
package providers

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Factory makes Providers of one type. It is stateless but for what it was built with.
type Factory interface {
	// Type is the type whose classes this factory opens.
	Type() v1alpha1.ProviderType
	// Validate checks the configuration of a class without any I/O; its errors name the field and become the class's
	// Accepted condition.
	Validate(class *v1alpha1.ProviderClass) field.ErrorList
	// Open makes the Provider of one class. It must be cheap and must not dial.
	Open(ctx context.Context, class *v1alpha1.ProviderClass, rt Runtime) (Provider, error)
}

// Provider is one ProviderClass. All methods are safe for concurrent use, honour ctx and return errors of the taxonomy
// in errors.go. Rate limits, breakers, timeouts, metrics and spans are put around it by providers/guard.
type Provider interface {
	// Check tells whether credentials and endpoint work; its error becomes the class's Ready condition.
	Check(ctx context.Context) error
	// ValidateSpec returns an InvalidSpec error that names the field, without any I/O.
	ValidateSpec(spec *v1alpha1.ProxySpec) error
	// Create starts making an instance and returns before it runs. A nil error or AlreadyExists means accepted, nothing
	// more. It is idempotent by req.Name.
	Create(ctx context.Context, req CreateRequest) (Receipt, error)
	// Get is the only proof of existence. NotFound means that the instance is really gone; one that is being deleted is
	// returned with StateTerminating. Without ref.Zone every place where it could be is looked at, or Unavailable.
	Get(ctx context.Context, ref Ref) (Instance, error)
	// Delete starts deleting. A nil error or NotFound means accepted; it is no proof of absence. When ref.ID is set, no
	// other incarnation may be touched.
	Delete(ctx context.Context, ref Ref) error
	// List returns all instances of this cluster and class. A partial list is an error.
	List(ctx context.Context) ([]Instance, error)
	// Place chooses the zone or host for a new instance before the intent is stored, leaving out those in tried as long
	// as another is left; "" where the provider has no places.
	Place(spec *v1alpha1.ProxySpec, tried []string) (string, error)
	// Close releases what the Provider holds. Calls under way may fail with Unavailable.
	Close() error
}

// Eventer is implemented by providers that can tell that something happened to an instance, so that the controller looks
// before its next poll. Events may be lost, doubled and late.
type Eventer interface {
	Events() <-chan event.TypedGenericEvent[Owner]
}

// Runtime is what a manager hands to the factories.
type Runtime struct {
	// ClusterID marks every instance; by default the UID of the kube-system namespace.
	ClusterID string
	Clock     clock.WithTicker
	// Client reads and writes the cluster; only the kubernetes provider gets one, and the two that follow.
	Client client.Client
	// Reader reads from the API server itself: a cache that has not seen a new object yet would call it gone.
	Reader client.Reader
	// Informers tell of changes; nil leaves Providers without events.
	Informers cache.Informers
	// Namespaces that the operator watches; empty means all.
	Namespaces []string
	Logger     logr.Logger
	// CacheDir may hold what can be fetched again.
	CacheDir string
}

// Owner is the Proxy an instance belongs to. It is written on every instance and is the only licence to delete it.
type Owner struct {
	ClusterID string
	Namespace string
	Name      string
	UID       types.UID
}

// Ref finds an instance. Name is always known; the rest is known once it was seen or, for Zone, chosen.
type Ref struct {
	// Namespace of the Proxy, for providers whose instances live beside it.
	Namespace string
	// Name is deterministic, see InstanceName.
	Name string
	// Zone or host; "" when none was recorded.
	Zone string
	// ID is the provider's own id of one incarnation; "" before the first Get.
	ID string
	// ProviderID is self-contained: gce://project/zone/name, libvirt://host/uuid, pod://namespace/name.
	ProviderID string
}

// State is what an instance is doing.
type State string

// The states of an instance.
const (
	StatePending     State = "Pending"
	StateRunning     State = "Running"
	StateStopped     State = "Stopped"
	StateFailed      State = "Failed"
	StateTerminating State = "Terminating"
)

// Instance is what a provider knows of one instance.
type Instance struct {
	Ref
	Owner Owner
	// Hash is what the instance was made from, see InstanceHash.
	Hash  string
	State State
	// Addresses of the instance, the endpoint first; empty until known.
	Addresses []string
	// CreatedAt by the provider's clock; garbage collection needs it.
	CreatedAt time.Time
	// Message is a stable sentence about the state: no ids, no times, no counts, since every change of it is a write.
	Message string
}

// CreateRequest is everything an instance is made from.
type CreateRequest struct {
	Name  string
	Owner Owner
	// Zone was chosen by Place and is stored already.
	Zone string
	Hash string
	// Labels of the Proxy, for providers that can show them.
	Labels map[string]string
	// Spec is a copy.
	Spec v1alpha1.ProxySpec
	// UserData is the resolved cloud-init.
	UserData []byte
	// Credentials that the proxy must ask for; nil when it asks for none.
	Credentials *Credentials
}

// Receipt is an opaque note of the provider about an accepted Create; it is stored in status.instance.operation.
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
