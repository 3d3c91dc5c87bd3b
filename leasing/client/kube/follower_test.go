package kube

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
)

// server is what a follower asks, as a script has it.
type server struct {
	ctrlclient.WithWatch // nothing else is asked

	mu      sync.Mutex
	asked   []string
	watches []*watch.RaceFreeFakeWatcher
	refuse  []error // of the next watches; nil: none
	lists   []error // of the next lists
	listed  *v1alpha1.ProxyLease
}

func (s *server) Watch(_ context.Context, _ ctrlclient.ObjectList, opts ...ctrlclient.ListOption) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, "watch "+asked(opts))
	if len(s.refuse) > 0 {
		err := s.refuse[0]
		s.refuse = s.refuse[1:]
		if err != nil {
			return nil, err
		}
	}
	w := watch.NewRaceFreeFake()
	s.watches = append(s.watches, w)
	return w, nil
}

func (s *server) List(_ context.Context, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, "list "+asked(opts))
	if len(s.lists) > 0 {
		err := s.lists[0]
		s.lists = s.lists[1:]
		if err != nil {
			return err
		}
	}
	leases := list.(*v1alpha1.ProxyLeaseList)
	leases.ResourceVersion = "100"
	if s.listed != nil {
		leases.Items = []v1alpha1.ProxyLease{*s.listed}
	}
	return nil
}

func asked(opts []ctrlclient.ListOption) string {
	o := (&ctrlclient.ListOptions{}).ApplyOptions(opts).AsListOptions()
	return o.FieldSelector + "@" + o.ResourceVersion
}

func (s *server) last() *watch.RaceFreeFakeWatcher {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[len(s.watches)-1]
}

// begun counts the watches.
func (s *server) begun() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.watches)
}

func (s *server) wants(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.asked, want) {
		t.Fatalf("asked %q, want %q", s.asked, want)
	}
	s.asked = nil
}

// left fails the test when a watch was not stopped.
func (s *server) left(t *testing.T) {
	t.Helper()
	for i, w := range s.watches {
		if !w.IsStopped() {
			t.Errorf("watch %d goes on", i)
		}
	}
}

func leaseAt(version string) *v1alpha1.ProxyLease {
	return &v1alpha1.ProxyLease{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "l", UID: "u", ResourceVersion: version}}
}

// following runs next in the background.
func following(t *testing.T, f *follower, ctx context.Context) <-chan string {
	t.Helper()
	out := make(chan string, 1)
	go func() {
		lease, err := f.next(ctx)
		switch {
		case err != nil:
			out <- "error: " + err.Error()
		case lease == nil:
			out <- "gone"
		default:
			out <- lease.ResourceVersion
		}
	}()
	return out
}

func expect(t *testing.T, got <-chan string, want string) {
	t.Helper()
	if s := <-got; !strings.HasPrefix(s, want) {
		t.Fatalf("got %q, want %q", s, want)
	}
}

func TestFollowerTakesTheWatchUpAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		s := &server{listed: leaseAt("90")}
		f := follow(ctx, s, leaseAt("5"))
		got := following(t, f, ctx)
		w := s.last()
		s.wants(t, "watch metadata.name=l@5")
		w.Add(leaseAt("6"))
		expect(t, got, "6")
		// A bookmark moves the point, and is no news.
		got = following(t, f, ctx)
		w.Action(watch.Bookmark, leaseAt("8"))
		synctest.Wait()
		w.Stop()
		expectWatch(t, s, "8")
		s.last().Modify(leaseAt("9"))
		expect(t, got, "9")
		// The server has forgotten the point: by an event, and by an answer.
		gone := apierrors.NewResourceExpired("too old").Status()
		s.refuse = []error{nil, apierrors.NewResourceExpired("too old")}
		got = following(t, f, ctx)
		s.last().Error(&gone)
		expect(t, got, "90")
		s.wants(t, "list metadata.name=l@")
		got = following(t, f, ctx)
		expectWatch(t, s, "100")
		s.last().Stop()
		expect(t, got, "90")
		s.wants(t, "watch metadata.name=l@100", "list metadata.name=l@")
		got = following(t, f, ctx)
		expectWatch(t, s, "100")
		s.last().Delete(leaseAt("101"))
		expect(t, got, "gone")
		f.stop()
		s.left(t)
	})
}

// expectWatch waits for the next watch, pauses included.
func expectWatch(t *testing.T, s *server, version string) {
	t.Helper()
	for range 100 {
		synctest.Wait()
		s.mu.Lock()
		begun := len(s.asked) > 0
		s.mu.Unlock()
		if begun {
			break
		}
		pass(10 * time.Millisecond)
	}
	s.wants(t, "watch metadata.name=l@"+version)
}

// pass lets the time of a bubble pass.
func pass(d time.Duration) { <-time.After(d) }

// A server that is away is asked again, now and then; what it refuses for good is told.
func TestFollowerIsPatient(t *testing.T) {
	away := errors.New("connection refused")
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "proxyleases"}, "", errors.New("no right"))
	t.Run("away", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{refuse: slices.Repeat([]error{away}, 20)}
			f := follow(t.Context(), s, leaseAt("5"))
			begun := time.Now()
			got := following(t, f, t.Context())
			for range 10_000 {
				pass(100 * time.Millisecond)
				if s.begun() > 0 {
					break
				}
			}
			if took := time.Since(begun); took < time.Minute || took > 5*time.Minute {
				t.Errorf("20 attempts in %v", took)
			}
			s.last().Add(leaseAt("6"))
			expect(t, got, "6")
			f.stop()
			s.left(t)
		})
	})
	t.Run("forbidden", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{refuse: []error{forbidden}}
			f := follow(t.Context(), s, leaseAt("5"))
			_, err := f.next(t.Context())
			if !errors.Is(err, client.ErrForbidden) {
				t.Errorf("%v", err)
			}
			f.stop()
		})
	})
	t.Run("the list fails", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &server{refuse: []error{apierrors.NewResourceExpired("too old")}, lists: []error{away, apierrors.NewInternalError(away)}}
			f := follow(t.Context(), s, leaseAt("5"))
			if lease, err := f.next(t.Context()); err != nil || lease != nil {
				t.Errorf("%v %v", lease, err)
			}
			s.wants(t, "watch metadata.name=l@5", "list metadata.name=l@", "list metadata.name=l@", "list metadata.name=l@")
			f.stop()
		})
	})
}

// Whoever waits is let go when its context ends, and the next one goes on; a follower that is stopped lets everybody go.
func TestFollowerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		acquiring, cancel := context.WithCancelCause(t.Context())
		f := follow(acquiring, s, leaseAt("5"))
		got := following(t, f, acquiring)
		synctest.Wait()
		cancel(errors.New("time is up"))
		expect(t, got, "error: time is up")
		got = following(t, f, t.Context())
		s.last().Add(leaseAt("6"))
		expect(t, got, "6")
		s.wants(t, "watch metadata.name=l@5")
		got = following(t, f, t.Context())
		synctest.Wait()
		f.stop()
		expect(t, got, "error: context canceled")
		f.stop()
		s.left(t)
	})
}

func TestAPIErrors(t *testing.T) {
	resource := schema.GroupResource{Group: v1alpha1.GroupName, Resource: "proxyleases"}
	for name, c := range map[string]struct {
		err    error
		is     error
		status int
		retry  time.Duration
	}{
		"forbidden":    {apierrors.NewForbidden(resource, "l", errors.New("no")), client.ErrForbidden, http.StatusForbidden, 0},
		"unauthorized": {apierrors.NewUnauthorized("no"), client.ErrUnauthorized, http.StatusUnauthorized, 0},
		"invalid":      {apierrors.NewInvalid(schema.GroupKind{}, "l", nil), client.ErrInvalid, http.StatusUnprocessableEntity, 0},
		"overloaded":   {apierrors.NewTooManyRequests("later", 7), nil, http.StatusTooManyRequests, 7 * time.Second},
		"timeout":      {apierrors.NewServerTimeout(resource, "create", 2), nil, http.StatusInternalServerError, 2 * time.Second},
		"broken":       {apierrors.NewInternalError(errors.New("x")), nil, http.StatusInternalServerError, 0},
	} {
		var e *client.Error
		if err := apiError(c.err); !errors.As(err, &e) || e.Status != c.status || e.RetryAfter != c.retry || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: %#v", name, err)
		}
	}
	if err := creationError(apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x")); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("no namespace: %v", err)
	}
	lost := errors.New("connection reset")
	if err := apiError(lost); !errors.Is(err, lost) {
		t.Errorf("no answer: %v", err)
	}
}
