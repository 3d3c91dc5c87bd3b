package health

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

// trace records a probe as a span with a child per stage. Spans carry no URL, no address and no error text.
func (e *Engine) trace(ctx context.Context, t Target, r probe.Result, o classify.Outcome) {
	if e.tracer == nil {
		return
	}
	ctx, span := e.tracer.Start(ctx, "healthcheck.probe", trace.WithTimestamp(r.Start), trace.WithAttributes(
		attribute.String("k8s.namespace.name", t.Key.Namespace),
		attribute.String("proxy.name", t.Key.Name),
		attribute.String("healthcheck.result", o.Class.String()),
		attribute.String("healthcheck.reason", o.Reason),
		attribute.String("healthcheck.stage", r.Stage.String()),
	))
	begin := time.Duration(0)
	for s, end := range r.Ends {
		if end == 0 {
			continue
		}
		_, child := e.tracer.Start(ctx, "healthcheck."+probe.Stage(s).String(), trace.WithTimestamp(r.Start.Add(begin)))
		child.End(trace.WithTimestamp(r.Start.Add(end)))
		begin = end
	}
	if o.Class == classify.Failure {
		span.SetStatus(codes.Error, o.Reason)
	}
	span.End(trace.WithTimestamp(r.Start.Add(r.Total)))
}
