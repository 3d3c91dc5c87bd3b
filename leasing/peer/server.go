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
	// Noticed takes in, as the leader, what a call to another replica has written. The errors are those of Lease.
	Noticed func(ctx context.Context, n Notice) error
	Log     logr.Logger
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
	ctx := otel.GetTextMapPropagator().Extract(log.IntoContext(r.Context(), s.Log), propagation.HeaderCarrier(r.Header))
	switch {
	case r.Method != http.MethodPost || r.Header.Get(headerVersion) != version.String():
		http.Error(w, "another version", http.StatusMisdirectedRequest)
	case r.URL.Path == pathLease:
		ctx, span := tracing.Start(ctx, "Lease for another replica")
		defer span.End()
		handle(s, w, r, func(call Call) (Answer, error) {
			if call.Name == "" {
				return Answer{}, ErrNotAsked
			}
			call.Request.Identity = call.Identity
			return s.Lease(ctx, call)
		})
	case r.URL.Path == pathNotice:
		ctx, span := tracing.Start(ctx, "Notice of another replica")
		defer span.End()
		handle(s, w, r, func(n Notice) (struct{}, error) { return struct{}{}, s.Noticed(ctx, n) })
	default:
		http.Error(w, "another version", http.StatusMisdirectedRequest)
	}
}

// handle reads a request, does what it asks for and writes what came of it.
func handle[In, Out any](s *Server, w http.ResponseWriter, r *http.Request, do func(In) (Out, error)) {
	var in In
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		err = json.Unmarshal(body, &in)
	}
	if err != nil {
		http.Error(w, "not a call", http.StatusMisdirectedRequest)
		return
	}
	out, err := do(in)
	switch {
	case errors.Is(err, ErrNotAsked):
		http.Error(w, "not leading", http.StatusMisdirectedRequest)
		return
	case err != nil && r.Context().Err() != nil:
		return // nobody waits for it any more
	case err != nil:
		s.Log.Error(err, "Serve another replica", "path", r.URL.Path)
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	data, err := json.Marshal(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data) // of a lease, who asked settles by its name what became of it
}
