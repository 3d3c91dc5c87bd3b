package peer

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/internal/version"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
)

var seed = bytes.Repeat([]byte{7}, SeedSize)

// leader answers on loopback until the test ends, and gives its address.
func leader(t *testing.T, seed []byte, lease func(context.Context, Call) (Answer, error)) (address string, stop func()) {
	t.Helper()
	return serving(t, seed, &Server{Lease: lease, Log: logr.Discard(), Noticed: func(context.Context, Notice) error {
		t.Error("it is told something")
		return nil
	}})
}

func serving(t *testing.T, seed []byte, server *Server) (address string, stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := server.Serve(ctx, listener, seed); err != nil {
			t.Error(err)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return listener.Addr().String(), stop
}

func asking(address string) (*Client, *clocktesting.FakePassiveClock) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	return &Client{Leader: func() string { return address }, Seed: func() ([]byte, bool) { return seed, true }, Clock: clock}, clock
}

var call = Call{
	Request: httpapi.LeaseRequest{
		Namespace: "team", Selector: map[string]string{"geo": "eu"}, Targets: []string{"shop.example"}, TTLSeconds: 60, Mode: v1alpha1.LeaseExclusive,
		Holder: "token/a", Wait: 3 * time.Second, Exclude: []string{"p"}, Key: "k",
	},
	Identity: "token", Name: "http-1",
}

func TestTheLeaderIsAskedForALease(t *testing.T) {
	granted := Answer{Replayed: true, Lease: httpapi.Lease{
		Ref: httpapi.Ref{Namespace: "team", Name: "http-1", UID: "u"}, ExpireTime: time.Date(2030, 1, 2, 3, 4, 5, 6000, time.UTC), TTLSeconds: 60,
		Mode: v1alpha1.LeaseExclusive, Holder: "token/a", Draining: true, Username: "u", Password: "p\"\x01ä",
		Proxy: httpapi.Proxy{Namespace: "team", Name: "p", Host: "192.0.2.1", Port: 3128, Labels: map[string]string{"a": "b"}, Healthy: true, Leasable: true},
	}}
	refused := Answer{Error: &httpapi.Error{Status: 503, Code: "no_proxy_available", Field: "f", Reason: "Cooling", Detail: "d", RetryAfter: 1500 * time.Millisecond}}
	var asked Call
	var answer Answer
	address, _ := leader(t, seed, func(_ context.Context, c Call) (Answer, error) { asked = c; return answer, nil })
	c, _ := asking(address)
	for _, answer = range []Answer{granted, refused} {
		got, err := c.Lease(t.Context(), call)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(answer, got); diff != "" {
			t.Error(diff)
		}
	}
	want := call
	want.Request.Identity = "token"
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Error(diff)
	}
}

func TestTheLeaderIsToldOfWhatWasWritten(t *testing.T) {
	want := Notice{Released: httpapi.Ref{Namespace: "team", Name: "l", UID: "u"}, Proxy: types.NamespacedName{Namespace: "team", Name: "p"}}
	var told Notice
	var outcome error
	address, _ := serving(t, seed, &Server{Log: logr.Discard(), Noticed: func(_ context.Context, n Notice) error { told = n; return outcome }})
	c, _ := asking(address)
	if err := c.Tell(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Error(diff)
	}
	for _, kind := range []struct{ outcome, want error }{{ErrNotAsked, ErrNotAsked}, {errors.New("etcd"), ErrUnknown}} {
		outcome = kind.outcome
		if err := c.Tell(t.Context(), want); !errors.Is(err, kind.want) {
			t.Errorf("%v, want %v", err, kind.want)
		}
	}
}

// Whatever keeps the leader from acting is told apart from what leaves that open.
func TestWhatBecameOfARequestIsKnownOrCalledUnknown(t *testing.T) {
	for name, c := range map[string]struct {
		seed  []byte
		lease func(ctx context.Context, giveUp func()) error
		want  error
	}{
		"it does not lead":                   {seed, func(context.Context, func()) error { return ErrNotAsked }, ErrNotAsked},
		"another installation":               {bytes.Repeat([]byte{8}, SeedSize), nil, ErrNotAsked},
		"it fails":                           {seed, func(context.Context, func()) error { return errors.New("etcd") }, ErrUnknown},
		"it panics":                          {seed, func(context.Context, func()) error { panic(http.ErrAbortHandler) }, ErrUnknown},
		"it does not answer before the call": {seed, func(ctx context.Context, giveUp func()) error { giveUp(); <-ctx.Done(); return ctx.Err() }, ErrUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			acted := false
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			address, stop := leader(t, c.seed, func(ctx context.Context, _ Call) (Answer, error) {
				acted = true
				return Answer{}, c.lease(ctx, cancel)
			})
			client, _ := asking(address)
			_, err := client.Lease(ctx, call)
			stop()
			if !errors.Is(err, c.want) || acted != (c.lease != nil) {
				t.Errorf("%v, acted %t", err, acted)
			}
		})
	}
}

// A replica that is gone without a word is noticed by the leader, which must not act for it much later, and a leader by the
// replica: both ask the other end whether it is there.
func TestASilentConnectionIsNoticedAtBothEnds(t *testing.T) {
	acts, noticed := make(chan struct{}), make(chan struct{})
	address, _ := leader(t, seed, func(ctx context.Context, _ Call) (Answer, error) {
		close(acts)
		<-ctx.Done()
		close(noticed)
		return Answer{}, ctx.Err()
	})
	relayed, cut := relay(t, address)
	c, _ := asking(relayed)
	heard := make(chan error, 1)
	go func() { _, err := c.Lease(t.Context(), call); heard <- err }()
	<-acts
	cut()
	gone := noticed
	late := time.After(4 * (pingAfter + pingTimeout))
	for range 2 {
		select {
		case err := <-heard:
			if !errors.Is(err, ErrUnknown) {
				t.Error(err)
			}
		case <-gone:
			gone = nil
		case <-late:
			t.Fatal("nobody has noticed")
		}
	}
}

// relay passes one connection on until it is cut: then it stays open and silent.
func relay(t *testing.T, to string) (address string, cut func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var silent atomic.Bool
	var all sync.WaitGroup
	var ends []net.Conn
	all.Go(func() {
		a, err := listener.Accept()
		if err != nil {
			return
		}
		b, err := (&net.Dialer{}).Dial("tcp", to)
		if err != nil {
			t.Error(err)
			return
		}
		ends = []net.Conn{a, b}
		pass := func(from, to net.Conn) {
			buffer := make([]byte, 64<<10)
			for {
				n, err := from.Read(buffer)
				if err != nil {
					return
				}
				if silent.Load() {
					continue
				}
				_, _ = to.Write(buffer[:n])
			}
		}
		all.Go(func() { pass(a, b) })
		all.Go(func() { pass(b, a) })
	})
	t.Cleanup(func() {
		_ = listener.Close()
		for _, end := range ends {
			_ = end.Close()
		}
		all.Wait()
	})
	return listener.Addr().String(), func() { silent.Store(true) }
}

// However many ask at once, there is one connection.
func TestManyWhoAskAtOnceShareAConnection(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	counted := &countingListener{Listener: listener}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		server := &Server{Lease: func(context.Context, Call) (Answer, error) { return Answer{}, nil }, Log: logr.Discard()}
		if err := server.Serve(ctx, counted, seed); err != nil {
			t.Error(err)
		}
	})
	defer done.Wait()
	defer cancel()
	c, _ := asking(listener.Addr().String())
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			if _, err := c.Lease(t.Context(), call); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := counted.n.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

type countingListener struct {
	net.Listener
	n atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return conn, err
}

// An answer may be as large as the labels of a Proxy.
func TestALargeAnswerComesThrough(t *testing.T) {
	labels := map[string]string{}
	for i := range 9000 {
		labels[fmt.Sprintf("%060d/%060d", i, i)] = "value"
	}
	address, _ := leader(t, seed, func(context.Context, Call) (Answer, error) {
		return Answer{Lease: httpapi.Lease{Proxy: httpapi.Proxy{Labels: labels}}}, nil
	})
	c, _ := asking(address)
	if got, err := c.Lease(t.Context(), call); err != nil || len(got.Lease.Proxy.Labels) != len(labels) {
		t.Errorf("%d labels, %v", len(got.Lease.Proxy.Labels), err)
	}
}

// A leader that cannot be reached costs one attempt, and is tried again later; another one is asked at once.
func TestALeaderThatCannotBeReachedIsAvoidedForAWhile(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := listener.Addr().String()
	_ = listener.Close()
	there, _ := leader(t, seed, func(context.Context, Call) (Answer, error) { return Answer{}, nil })
	now := gone
	c, clock := asking("")
	c.Leader = func() string { return now }
	ask := func() error { _, err := c.Lease(t.Context(), call); return err }

	first := ask()
	if !errors.Is(first, ErrNotAsked) || !isDialError(first) {
		t.Fatalf("%v", first)
	}
	if again := ask(); !errors.Is(again, ErrNotAsked) || isDialError(again) {
		t.Errorf("it is tried again at once: %v", again)
	}
	now = there
	if err := ask(); err != nil {
		t.Errorf("the next leader is not asked: %v", err)
	}
	now = gone
	clock.SetTime(clock.Now().Add(avoidance))
	if again := ask(); !isDialError(again) {
		t.Errorf("it is not tried again: %v", again)
	}
}

func isDialError(err error) bool {
	dial, ok := errors.AsType[*net.OpError](err)
	return ok && dial.Op == "dial"
}

func TestNobodyIsAskedWithoutALeaderOrASecret(t *testing.T) {
	c, _ := asking("")
	if _, err := c.Lease(t.Context(), call); !errors.Is(err, ErrNotAsked) {
		t.Error(err)
	}
	c, _ = asking("127.0.0.1:1")
	c.Seed = func() ([]byte, bool) { return nil, false }
	if _, err := c.Lease(t.Context(), call); !errors.Is(err, ErrNotAsked) {
		t.Error(err)
	}
}

// Strangers get no answer, and what is no call of this version is not acted upon.
func TestStrangersAndOtherVersionsAreNotServed(t *testing.T) {
	address, _ := leader(t, seed, func(context.Context, Call) (Answer, error) { t.Error("it acts"); return Answer{}, nil })
	known, err := clientTLS(seed)
	if err != nil {
		t.Fatal(err)
	}
	post := func(config *tls.Config, path, header, body string) (int, error) {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
		defer client.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+path, bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set(headerVersion, header)
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	for _, path := range []string{pathLease, pathNotice, "/other"} {
		if _, err := post(&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}, path, version.String(), "{}"); err == nil {
			t.Errorf("%s: a stranger gets an answer", path)
		}
		for _, sent := range [][2]string{{"another", `{"name":"n"}`}, {version.String(), ``}, {version.String(), `[]`}} {
			if status, err := post(known, path, sent[0], sent[1]); err != nil || status != http.StatusMisdirectedRequest {
				t.Errorf("%s %q: %d, %v", path, sent, status, err)
			}
		}
	}
	if status, err := post(known, pathLease, version.String(), `{}`); err != nil || status != http.StatusMisdirectedRequest {
		t.Errorf("a lease without a name: %d, %v", status, err)
	}
}

// Every replica makes the same credentials, now and after a restart; those of another secret differ.
func TestCredentialsFollowFromTheSecretAlone(t *testing.T) {
	one, _, err := credentials(seed)
	if err != nil {
		t.Fatal(err)
	}
	same, _, err := credentials(bytes.Clone(seed))
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := credentials(bytes.Repeat([]byte{8}, SeedSize))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(one.Certificate[0], same.Certificate[0]) || bytes.Equal(one.Certificate[0], other.Certificate[0]) {
		t.Error("the certificates are not as the secrets")
	}
	if _, _, err := credentials(seed[1:]); err == nil {
		t.Error("a short secret is taken")
	}
}
