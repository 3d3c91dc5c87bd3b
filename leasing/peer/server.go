package peer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/propagation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/internal/version"
)

const (
	headerTimeout = 5 * time.Second
	// shutdownTimeout is how long calls that run may go on when the process stops.
	shutdownTimeout = 5 * time.Second
	// maxConcurrent calls of one replica.
	maxConcurrent = 16_384
)

// Server answers other replicas. Every replica runs one, since each may come to lead.
type Server struct {
	// Lease makes a lease as the leader. An error says that it was not asked (ErrNotAsked: this replica does not lead) or
	// that the outcome is not known (any other one).
	Lease func(ctx context.Context, call Call) (Answer, error)
	Log   logr.Logger
}

// Serve answers on a listener, for those who know the secret, until ctx ends; then calls that run may finish.
func (s *Server) Serve(ctx context.Context, listener net.Listener, seed []byte) error {
	config, err := serverTLS(seed)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: http.HandlerFunc(s.serve), TLSConfig: config, ReadHeaderTimeout: headerTimeout,
		// The pings end the calls of a replica that is gone, which would else be granted for nobody.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxConcurrent, SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		// Strangers who knock are no event.
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(s.Log), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-served:
		return fmt.Errorf("serve other replicas: %w", err)
	case <-ctx.Done():
	}
	ending, stop := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer stop()
	if server.Shutdown(ending) != nil {
		_ = server.Close()
	}
	return nil
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	ctx, span := tracing.Start(otel.GetTextMapPropagator().Extract(log.IntoContext(r.Context(), s.Log), propagation.HeaderCarrier(r.Header)), "Lease for another replica")
	defer span.End()
	if r.Method != http.MethodPost || r.URL.Path != path || r.Header.Get(headerVersion) != version.String() {
		http.Error(w, "another version", http.StatusMisdirectedRequest)
		return
	}
	var call Call
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &call)
	}
	if err != nil || call.Name == "" {
		http.Error(w, "not a call", http.StatusMisdirectedRequest)
		return
	}
	call.Request.Identity = call.Identity
	answer, err := s.Lease(ctx, call)
	switch {
	case errors.Is(err, ErrNotAsked):
		http.Error(w, "not leading", http.StatusMisdirectedRequest)
		return
	case err != nil:
		s.Log.Error(err, "Lease for another replica", "lease", call.Request.Namespace+"/"+call.Name)
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	data, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // who asked settles by the lease's name what became of it
}
