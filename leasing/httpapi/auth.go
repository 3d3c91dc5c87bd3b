package httpapi

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Identity is who sends a request.
type Identity struct {
	// Name is unique among all ways to authenticate.
	Name string
	// user is what Kubernetes knows of the identity; nil for others.
	user *kubernetesUser
}

// Access is what a request wants to do, in the words of Kubernetes RBAC.
type Access struct {
	Verb, Resource, Namespace string
}

// Authenticator is one way to find out who sends a request and what they may do.
type Authenticator interface {
	// Authenticate finds out whose the bearer token is; ok is false when it is not known here. source is the address that
	// sent it; the zero Addr when it is not known.
	Authenticate(ctx context.Context, token string, source netip.Addr) (id Identity, ok bool, err error)
	// Authorize tells whether an identity that this authenticator gave may have the access.
	Authorize(ctx context.Context, id Identity, access Access) (bool, error)
}

// Ways to authenticate, as --api-auth names them.
const (
	AuthToken      = "token"
	AuthKubernetes = "kubernetes"
	AuthNone       = "none"
)

// AuthConfig says how requests are authenticated.
type AuthConfig struct {
	// Modes are the ways to try, in this order: token, kubernetes; or none alone.
	Modes []string
	// TokenFile has the bearer token of mode token. It is read again when it changes.
	TokenFile string
	// Kubernetes reviews tokens for mode kubernetes.
	Kubernetes *Kubernetes
	Clock      clock.PassiveClock
	Log        logr.Logger
}

// Auth authenticates and authorizes requests.
type Auth struct {
	// open lets everybody in.
	open bool
	ways []Authenticator
}

// NewAuth checks the configuration. The error is one line that says what to do.
func NewAuth(c AuthConfig) (*Auth, error) {
	if len(c.Modes) == 0 {
		return nil, errors.New("the HTTP API has no authentication: set --api-auth to token, kubernetes or, to let everybody in, none")
	}
	auth := &Auth{}
	for _, mode := range c.Modes {
		switch mode {
		case AuthNone:
			if len(c.Modes) > 1 {
				return nil, errors.New("--api-auth: none lets everybody in and cannot be combined with other ways")
			}
			auth.open = true
		case AuthToken:
			if c.TokenFile == "" {
				return nil, errors.New("--api-auth=token needs --api-token-file")
			}
			way := &tokenFile{path: c.TokenFile, clock: c.Clock, log: c.Log}
			if err := way.read(); err != nil {
				return nil, fmt.Errorf("--api-token-file: %w", err)
			}
			auth.ways = append(auth.ways, way)
		case AuthKubernetes:
			auth.ways = append(auth.ways, c.Kubernetes)
		default:
			return nil, fmt.Errorf("--api-auth: %q is not one of token, kubernetes, none", mode)
		}
	}
	return auth, nil
}

// Open tells whether everybody is let in.
func (a *Auth) Open() bool { return a.open }

// caller is an authenticated sender of a request.
type caller struct {
	Identity
	way Authenticator // nil: may do everything
}

func (a *Auth) authenticate(r *http.Request) (caller, error) {
	if a.open {
		return caller{Identity: Identity{Name: "anonymous"}}, nil
	}
	unauthorized := &Error{Status: http.StatusUnauthorized, Code: wire.CodeUnauthorized, Detail: "A valid bearer token is required: Authorization: Bearer TOKEN"}
	headers := r.Header.Values("Authorization")
	if len(headers) != 1 {
		return caller{}, unauthorized
	}
	scheme, token, _ := strings.Cut(headers[0], " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return caller{}, unauthorized
	}
	// Headers that name another source are not believed: whoever calls may write them.
	address, _ := netip.ParseAddrPort(r.RemoteAddr)
	source := address.Addr()
	var failed error
	for _, way := range a.ways {
		id, ok, err := way.Authenticate(r.Context(), token, source)
		if ok {
			return caller{Identity: id, way: way}, nil
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return caller{}, fmt.Errorf("authenticate: %w", failed)
	}
	return caller{}, unauthorized
}

func (c caller) authorize(ctx context.Context, access Access) error {
	if c.way == nil {
		return nil
	}
	allowed, err := c.way.Authorize(ctx, c.Identity, access)
	if err != nil {
		return fmt.Errorf("authorize: %w", err)
	}
	if !allowed {
		return &Error{
			Status: http.StatusForbidden, Code: wire.CodeForbidden,
			Detail: fmt.Sprintf("%s may not %s %s in namespace %s", c.Name, access.Verb, access.Resource, access.Namespace),
		}
	}
	return nil
}

// tokenCheckPeriod is how often the token file is looked at, at most.
const tokenCheckPeriod = time.Second

// maxTokenFile bounds the token file, in bytes.
const maxTokenFile = 4096

// tokenFile is the one token of a file. Whoever has it may do everything.
type tokenFile struct {
	path  string
	clock clock.PassiveClock
	log   logr.Logger

	mu      sync.Mutex
	hash    [sha256.Size]byte
	usable  bool
	checked time.Time
	broken  string // the last error that was logged
}

func (t *tokenFile) read() error {
	t.checked = t.clock.Now()
	t.usable = false
	data, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("read the token: %w", err)
	}
	if len(data) > maxTokenFile {
		return fmt.Errorf("%s is longer than %d bytes", t.path, maxTokenFile)
	}
	token := strings.TrimSpace(string(data))
	if token == "" {
		return fmt.Errorf("%s has no token", t.path)
	}
	for _, c := range token {
		if c <= ' ' || c > '~' {
			return fmt.Errorf("%s: a token consists of printable ASCII characters without spaces", t.path)
		}
	}
	t.hash, t.usable = sha256.Sum256([]byte(token)), true
	return nil
}

// Authenticate implements Authenticator. A file that became unreadable or empty lets nobody in.
func (t *tokenFile) Authenticate(_ context.Context, token string, _ netip.Addr) (Identity, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.clock.Since(t.checked) >= tokenCheckPeriod {
		problem := ""
		if err := t.read(); err != nil {
			problem = err.Error()
		}
		if problem != "" && problem != t.broken {
			t.log.Info("The API token cannot be used; requests with it are refused", "problem", problem)
		}
		t.broken = problem
	}
	hash := sha256.Sum256([]byte(token))
	// The comparison of hashes takes the same time whatever the token, its length included.
	same := subtle.ConstantTimeCompare(hash[:], t.hash[:]) == 1
	return Identity{Name: "token"}, same && t.usable, nil
}

// Authorize implements Authenticator.
func (t *tokenFile) Authorize(context.Context, Identity, Access) (bool, error) { return true, nil }
