package leasing

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/peer"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// Defaults and limits of the HTTP server.
const (
	// DefaultHTTPAddress is where the API listens.
	DefaultHTTPAddress = ":8090"
	// DefaultNamespace is meant by requests that name none.
	DefaultNamespace = "default"

	headerTimeout = 5 * time.Second
	bodyTimeout   = 15 * time.Second
	idleTimeout   = 2 * time.Minute
	// answerTimeout covers the longest wait for a proxy.
	answerTimeout = (wire.MaxWaitSeconds + 30) * time.Second
	// maxHeader bounds a request's head, in bytes.
	maxHeader = 16 << 10
	// shutdownTimeout is how long calls that run may go on when the process stops.
	shutdownTimeout = 10 * time.Second
	// peerPurpose is what the secret of the replicas is derived for.
	peerPurpose = "replicas-v1"
	// signingRetry is the pause between attempts to load the signing key.
	signingRetry = 2 * time.Second
)

// HTTPOptions of the HTTP API.
type HTTPOptions struct {
	// Address to listen on; empty: DefaultHTTPAddress. Listener wins over it.
	Address  string
	Listener net.Listener
	// Auth says who may do what; required.
	Auth *httpapi.Auth
	// Namespace of the operator: the Secret that signs lease ids is there.
	Namespace string
	// DefaultNamespace is meant by requests that name none; empty: "default".
	DefaultNamespace string
	// TLS serves https; nil: http.
	TLS *tls.Config
	// PeerListener answers other replicas when this one leads; nil: they make objects for it to find.
	PeerListener net.Listener
	// Leader is the address at which the leader answers this replica; empty: it does not. nil: none ever does.
	Leader func() string
}

// HTTPServer serves the HTTP API. Every replica runs one.
type HTTPServer struct {
	allocator *Allocator
	signer    *httpapi.Signer
	server    *http.Server
	listener  net.Listener
	tls       bool
	peers     *peer.Server
	peersAt   net.Listener
	log       logr.Logger
	clock     clock.Clock
}

// NewHTTPServer makes the server of an Allocator.
func NewHTTPServer(a *Allocator, o HTTPOptions) (*HTTPServer, error) {
	if o.Auth == nil {
		return nil, errors.New("the HTTP API has no authentication")
	}
	if o.Address == "" {
		o.Address = DefaultHTTPAddress
	}
	if o.DefaultNamespace == "" {
		o.DefaultNamespace = DefaultNamespace
	}
	metrics, err := httpapi.NewMetrics(a.Registerer)
	if err != nil {
		return nil, err
	}
	log := a.Log.WithName("api")
	signer := &httpapi.Signer{Live: a.Live, Client: a.Client, Namespace: o.Namespace}
	backend := Backend{Allocator: a}
	if o.Leader != nil {
		backend.Leader = &peer.Client{
			Leader: o.Leader, Clock: a.Clock,
			Seed: func() ([]byte, bool) { return signer.Derive(peerPurpose, peer.SeedSize) },
		}
	}
	api := &httpapi.Server{
		Backend: counted{backend}, Auth: o.Auth, Signer: signer, DefaultNamespace: o.DefaultNamespace, Namespaces: a.Namespaces,
		Log: log, Metrics: metrics,
	}
	return &HTTPServer{
		allocator: a, signer: signer, listener: o.Listener, tls: o.TLS != nil, log: log, clock: a.Clock,
		peers: &peer.Server{Lease: backend.leaseForReplica, Noticed: backend.noticed, Log: log.WithName("peer")}, peersAt: o.PeerListener,
		server: &http.Server{
			Addr: o.Address, Handler: api.Handler(), TLSConfig: o.TLS, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout,
			WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		},
	}, nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *HTTPServer) NeedLeaderElection() bool { return false }

var (
	_ manager.Runnable               = (*HTTPServer)(nil)
	_ manager.LeaderElectionRunnable = (*HTTPServer)(nil)
)

// Start serves until ctx ends, and then lets running calls finish.
func (s *HTTPServer) Start(ctx context.Context) error {
	listener := s.listener
	if listener == nil {
		var err error
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", s.server.Addr); err != nil {
			return fmt.Errorf("listen for the HTTP API: %w", err)
		}
	}
	background, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(func() {
		s.loadKey(background)
		s.servePeers(background)
	})
	helpers.Go(func() {
		if err := s.allocator.Follow(background); err != nil && background.Err() == nil {
			s.log.Error(err, "Follow leases")
		}
	})
	served := make(chan error, 1)
	go func() {
		if s.tls {
			served <- s.server.ServeTLS(listener, "", "")
		} else {
			served <- s.server.Serve(listener)
		}
	}()
	s.log.Info("Serving the HTTP API", "address", listener.Addr().String())
	select {
	case err := <-served:
		return fmt.Errorf("serve the HTTP API: %w", err)
	case <-ctx.Done():
	}
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer stop()
	if err := s.server.Shutdown(ending); err != nil {
		// Calls that wait for a proxy are cut off; they are repeated with their key.
		s.log.Info("Some calls were cut off", "reason", err.Error())
		_ = s.server.Close()
	}
	return nil
}

// servePeers answers other replicas until ctx ends, once the key is loaded.
func (s *HTTPServer) servePeers(ctx context.Context) {
	seed, ok := s.signer.Derive(peerPurpose, peer.SeedSize)
	if s.peersAt == nil || !ok {
		return
	}
	s.log.Info("Answering other replicas", "address", s.peersAt.Addr().String())
	if err := s.peers.Serve(ctx, s.peersAt, seed); err != nil {
		// They make objects for it to find instead.
		s.log.Error(err, "Answer other replicas")
	}
}

// loadKey loads the signing key; until then calls are answered with 503.
func (s *HTTPServer) loadKey(ctx context.Context) {
	for {
		err := s.signer.Load(ctx)
		if err == nil || ctx.Err() != nil {
			return
		}
		s.log.Error(err, "Load the key that signs lease ids")
		timer := s.clock.NewTimer(signingRetry)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}
