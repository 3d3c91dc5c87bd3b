package httpapi

import (
	"context"
	_ "embed" // the description of the API
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"github.com/julienschmidt/httprouter"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crawl.example.com/egress-proxies-operator/internal/tracing"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// requestTimeout bounds a request, on top of the time it asks to wait.
const requestTimeout = 20 * time.Second

// OpenAPI is the description of the API.
//
//go:embed openapi.json
var OpenAPI []byte

// Server is the API as a handler.
type Server struct {
	Backend Backend
	Auth    *Auth
	Signer  *Signer
	// DefaultNamespace is meant by requests that name none.
	DefaultNamespace string
	// Namespaces are the ones that are served; empty: all.
	Namespaces []string
	Log        logr.Logger
	Metrics    *Metrics
}

// Route is one call of the API.
type Route struct{ Method, Path string }

// call is what a route does. It writes its answer or returns an error.
type call func(w http.ResponseWriter, r *http.Request, p httprouter.Params) error

// routes are all calls, with the paths as httprouter writes them.
func (s *Server) routes() map[Route]call {
	return map[Route]call{
		{http.MethodGet, wire.PathProxies}:                               s.list,
		{http.MethodPost, wire.PathLeases}:                               s.lease,
		{http.MethodGet, wire.PathLeases + "/:id"}:                       s.get,
		{http.MethodDelete, wire.PathLeases + "/:id"}:                    s.release,
		{http.MethodPost, wire.PathLeases + "/:id/" + wire.ActionRenew}:  s.renew,
		{http.MethodPost, wire.PathLeases + "/:id/" + wire.ActionReport}: s.report,
		{http.MethodGet, "/openapi.json"}:                                s.openapi,
	}
}

// Handler is the API.
func (s *Server) Handler() http.Handler {
	router := httprouter.New()
	router.RedirectTrailingSlash, router.RedirectFixedPath, router.HandleOPTIONS = false, false, false
	for route, do := range s.routes() {
		router.Handle(route.Method, route.Path, func(w http.ResponseWriter, r *http.Request, p httprouter.Params) {
			s.serve(w, r, route.Path, func(w http.ResponseWriter, r *http.Request) error { return do(w, r, p) })
		})
	}
	refuse := func(e *Error) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			s.serve(w, r, "other", func(http.ResponseWriter, *http.Request) error { return e })
		})
	}
	router.NotFound = refuse(&Error{Status: http.StatusNotFound, Code: wire.CodeNotFound, Detail: "There is no such path; see /openapi.json"})
	router.MethodNotAllowed = refuse(&Error{Status: http.StatusMethodNotAllowed, Code: wire.CodeMethodNotAllowed, Detail: "The path does not have this method; see the Allow header"})
	return router
}

// serve runs one call within a span, with a deadline, and answers its error.
func (s *Server) serve(w http.ResponseWriter, r *http.Request, route string, do func(http.ResponseWriter, *http.Request) error) {
	start := time.Now()
	ctx := otel.GetTextMapPropagator().Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := tracing.Start(log.IntoContext(ctx, s.Log), r.Method+" "+route,
		attribute.String("http.request.method", r.Method), attribute.String("http.route", route))
	ctx, cancel := context.WithTimeout(ctx, requestTimeout+wire.MaxWaitSeconds*time.Second)
	defer cancel()
	logger := log.FromContext(ctx)
	recorder := &statusRecorder{ResponseWriter: w}
	defer func() {
		if p := recover(); p != nil {
			logger.Error(fmt.Errorf("panic: %v", p), "A request failed", "route", route, "stack", string(debug.Stack()))
			if recorder.status == 0 {
				writeError(recorder, Failed())
			}
		}
		span.SetAttributes(attribute.Int("http.response.status_code", recorder.status))
		if recorder.status >= 500 {
			span.SetStatus(codes.Error, http.StatusText(recorder.status))
		}
		span.End()
		s.Metrics.observe(r.Method, route, recorder.status, time.Since(start))
	}()
	recorder.Header().Set("Cache-Control", "no-store")
	recorder.Header().Set("X-Content-Type-Options", "nosniff")
	if err := do(recorder, r.WithContext(ctx)); err != nil {
		answerError(recorder, logger, err)
	}
}

func answerError(w http.ResponseWriter, logger logr.Logger, err error) {
	var known *Error
	if !errors.As(err, &known) {
		logger.Error(err, "A request failed")
		known = Failed()
	}
	writeError(w, known)
}

func writeError(w http.ResponseWriter, e *Error) {
	p := wire.Problem{
		Type: "about:blank", Title: http.StatusText(e.Status), Status: e.Status, Detail: e.Detail,
		Code: e.Code, Field: e.Field, Reason: e.Reason,
	}
	if e.RetryAfter > 0 {
		p.RetryAfterSeconds = int(math.Ceil(e.RetryAfter.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(p.RetryAfterSeconds))
	}
	if e.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="egress-proxies-operator"`)
	}
	writeJSON(w, e.Status, wire.ProblemType, p)
}

func writeJSON(w http.ResponseWriter, status int, contentType string, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	// The client may be gone; there is nobody to tell.
	_, _ = w.Write(append(body, '\n'))
}

// statusRecorder remembers the status code.
type statusRecorder struct {
	http.ResponseWriter
	status int
}

func (r *statusRecorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *statusRecorder) Write(b []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the connection.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// Metrics of the API.
type Metrics struct {
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "proxy_operator_api_requests_total", Help: "Requests to the HTTP API by route, method and status code.",
		}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "proxy_operator_api_request_duration_seconds", Help: "Duration of requests to the HTTP API by route, the time they asked to wait included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, []string{"route", "method"}),
	}
	for _, c := range []prometheus.Collector{m.requests, m.duration} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of the HTTP API: %w", err)
		}
	}
	return m, nil
}

func (m *Metrics) observe(method, route string, status int, took time.Duration) {
	if m == nil {
		return
	}
	if route == "other" {
		method = "other" // strangers may send any word
	}
	m.requests.WithLabelValues(route, method, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route, method).Observe(took.Seconds())
}
