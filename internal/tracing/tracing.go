// Package tracing sets OpenTelemetry up and starts the spans that controllers share.
//
// Nothing is exported unless OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_TRACES_EXPORTER says
// so; everything else follows the standard OTEL_* variables.
package tracing

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"crawl.example.com/egress-proxies-operator/internal/version"
)

// Name is the instrumentation scope of all spans of the operator.
const Name = "crawl.example.com/egress-proxies-operator"

// enablingVariables switch exporting on when one of them is set.
var enablingVariables = []string{
	"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER",
}

// Enabled tells whether the environment asks for spans to be exported.
func Enabled() bool {
	for _, name := range enablingVariables {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

// Setup installs the global tracer provider and returns what flushes it. Without a wish to export it does nothing.
func Setup(ctx context.Context, service string) (shutdown func(context.Context) error, err error) {
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
	if !Enabled() {
		return func(context.Context) error { return nil }, nil
	}
	exporter, err := autoexport.NewSpanExporter(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up span exporter from OTEL_* variables: %w", err)
	}
	res, err := resource.Merge(resource.Default(), resource.NewWithAttributes(semconv.SchemaURL,
		semconv.ServiceName(service), semconv.ServiceVersion(version.Version)))
	if err != nil {
		return nil, fmt.Errorf("describe the service for tracing: %w", err)
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(res))
	otel.SetTracerProvider(provider)
	return provider.Shutdown, nil
}

// Start starts a span and puts its ids into the logger of the context, as traceID and spanID.
func Start(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	ctx, span := otel.Tracer(Name).Start(ctx, name, trace.WithAttributes(attributes...))
	if sc := span.SpanContext(); sc.IsValid() {
		ctx = log.IntoContext(ctx, log.FromContext(ctx).WithValues("traceID", sc.TraceID().String(), "spanID", sc.SpanID().String()))
	}
	return ctx, span
}

// End ends a span with the outcome of what it covers.
func End(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// Reconciler makes a span of every reconcile of the named controller.
func Reconciler(name string, inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		ctx, span := Start(ctx, "reconcile "+name,
			attribute.String("k8s.namespace.name", req.Namespace), attribute.String("k8s.object.name", req.Name))
		result, err := inner.Reconcile(ctx, req)
		End(span, err)
		return result, err
	})
}

// Transport makes a child span of every Kubernetes call that happens within a span; informers' calls stay out.
func Transport(next http.RoundTripper) http.RoundTripper {
	if !Enabled() {
		return next
	}
	return otelhttp.NewTransport(next,
		otelhttp.WithFilter(func(r *http.Request) bool { return trace.SpanContextFromContext(r.Context()).IsValid() }),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return "kubernetes " + r.Method }))
}
