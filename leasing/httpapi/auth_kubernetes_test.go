package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// reviewer is an API server with the tokens "admin" and "guest", with or without a number, of one user, each with the group that
// the token says, of which "admin" may do everything. It counts what it is asked.
type reviewer struct {
	mu      sync.Mutex
	down    bool
	revoked string // a token that is not good any more
	asked   int
	// hold, if there is one, is what reviews wait for.
	hold chan struct{}
}

func (r *reviewer) auth(t *testing.T) *Auth {
	t.Helper()
	auth, err := NewAuth(AuthConfig{Modes: []string{AuthKubernetes}, Kubernetes: r.kubernetes(t)})
	if err != nil {
		t.Fatal(err)
	}
	return auth
}

func (r *reviewer) kubernetes(t *testing.T) *Kubernetes {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			if r.hold != nil {
				<-r.hold
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.asked++
			if r.down {
				return errors.New("connection refused")
			}
			switch review := o.(type) {
			case *authenticationv1.TokenReview:
				group := strings.TrimRight(review.Spec.Token, "0123456789")
				review.Status.Authenticated = (group == "admin" || group == "guest") && review.Spec.Token != r.revoked
				review.Status.User = authenticationv1.UserInfo{Username: "u", UID: "1", Groups: []string{group}}
			case *authorizationv1.SubjectAccessReview:
				review.Status.Allowed = slices.Contains(review.Spec.Groups, "admin")
			}
			return nil
		},
	}).Build()
	return &Kubernetes{Client: c, Clock: clocktesting.NewFakePassiveClock(time.Unix(0, 0))}
}

func list(h http.Handler, token string) *httptest.ResponseRecorder {
	return listFrom(h, token, "192.0.2.1")
}

func listFrom(h http.Handler, token, address string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/v1/proxies", nil)
	r.RemoteAddr = net.JoinHostPort(address, "1234")
	r.Header.Set("Authorization", "Bearer "+token)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// What one token of a user may do says nothing about another token of the user.
func TestRightsAreRememberedForAllOfTheIdentity(t *testing.T) {
	_, _, s := newServer(t)
	r := &reviewer{}
	s.Auth = r.auth(t)
	for _, token := range []string{"admin", "guest", "admin"} {
		want := 200
		if token != "admin" {
			want = 403
		}
		if w := list(s.Handler(), token); w.Code != want {
			t.Fatalf("%s: %d %s", token, w.Code, w.Body)
		}
	}
	if r.asked != 4 {
		t.Fatalf("%d reviews, want each once", r.asked)
	}
}

func TestKubernetesDownIsNotAFailureOfTheRequest(t *testing.T) {
	_, _, s := newServer(t)
	s.Auth = (&reviewer{down: true}).auth(t)
	w := send(s.Handler(), "GET", "/v1/proxies", "")
	if p := answerProblem(t, w.Body.String()); w.Code != 503 || p.Code != wire.CodeUnavailable || w.Header().Get("Retry-After") != "1" {
		t.Fatalf("%d %+v", w.Code, p)
	}
}

func TestUnknownTokensDoNotFloodTheAPIServer(t *testing.T) {
	_, _, s := newServer(t)
	r := &reviewer{}
	s.Auth = r.auth(t)
	h := s.Handler()
	if w := list(h, "admin"); w.Code != 200 {
		t.Fatal(w.Code)
	}
	refused := 0
	for i := range 3 * strangerReviewBurst {
		w := list(h, fmt.Sprint("x", i))
		if w.Code == 429 {
			refused++
		}
	}
	if refused == 0 || r.asked > 3*strangerReviewBurst {
		t.Fatalf("%d refused, %d reviews", refused, r.asked)
	}
	// A token that is remembered is not held up.
	if w := list(h, "admin"); w.Code != 200 {
		t.Fatal(w.Code)
	}
}
