// Package guard puts around any Provider what none of them should do itself: a timeout for each call, a rate limit and a
// circuit breaker for the class, metrics, spans, and the translation of stray errors and of panics into the taxonomy.
//
// The breaker and the limit belong to the class and not to the Proxy, so that five hundred Proxies behind a dead
// provider make one call now and then instead of five hundred ladders of retries. They are those of one generation of the
// class: a changed specification, with mended credentials for instance, starts with new ones.
package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
)

// Timeouts of the calls. That of Create is an upper bound: the controller ends it with the attempt's window.
const (
	DefaultCheckTimeout  = 15 * time.Second
	DefaultCreateTimeout = 30 * time.Second
	DefaultGetTimeout    = 15 * time.Second
	DefaultDeleteTimeout = 30 * time.Second
	DefaultListTimeout   = 90 * time.Second
)

// fairTime is how long a provider must have had for an answer before a deadline of the caller's own counts against it.
const fairTime = 3 * time.Second

// scope is the instrumentation scope of the spans.
const scope = "crawl.example.com/egress-proxies-operator/providers/guard"

// Options of a guard. Only Clock is required; zero fields mean the default.
type Options struct {
	// Type and Class name what is guarded, in metrics, spans and logs.
	Type  v1alpha1.ProviderType
	Class string
	Clock clock.WithTicker
	// Limits of the class; zero fields mean the default.
	Limits providers.Limits
	// Metrics may be nil.
	Metrics *Metrics
}

// Wrap puts the guard around p. The result is as safe for concurrent use as p is.
func Wrap(p providers.Provider, o Options) providers.Provider {
	g := &guard{
		inner:   p,
		options: o,
		breaker: newBreaker(o.Clock),
		limiter: newLimiter(o.Clock, o.Limits),
		places:  &places{clock: o.Clock, gap: gap(o.Limits)},
	}
	g.series = o.Metrics.open(o)
	return g
}

type guard struct {
	inner   providers.Provider
	options Options
	breaker *breaker
	limiter *limiter
	places  *places
	series  *series
}

// Unwrap implements providers.Wrapper: optional interfaces of the provider are found through the guard.
func (g *guard) Unwrap() providers.Provider { return g.inner }

// Check implements providers.Provider.
func (g *guard) Check(ctx context.Context) error {
	return g.call(ctx, methodCheck, DefaultCheckTimeout, "", g.inner.Check)
}

// ValidateSpec implements providers.Provider.
func (g *guard) ValidateSpec(spec *v1alpha1.ProxySpec) error {
	return g.recovered(context.Background(), "ValidateSpec", func(context.Context) error { return g.inner.ValidateSpec(spec) })
}

// Create implements providers.Provider.
func (g *guard) Create(ctx context.Context, req providers.CreateRequest) (receipt providers.Receipt, err error) {
	err = g.call(ctx, methodCreate, DefaultCreateTimeout, req.Name, func(ctx context.Context) (err error) {
		receipt, err = g.inner.Create(ctx, req)
		return err
	})
	return receipt, err
}

// Get implements providers.Provider.
func (g *guard) Get(ctx context.Context, ref providers.Ref) (instance providers.Instance, err error) {
	err = g.call(ctx, methodGet, DefaultGetTimeout, ref.Name, func(ctx context.Context) (err error) {
		instance, err = g.inner.Get(ctx, ref)
		return err
	})
	return instance, err
}

// Delete implements providers.Provider.
func (g *guard) Delete(ctx context.Context, ref providers.Ref) error {
	return g.call(ctx, methodDelete, DefaultDeleteTimeout, ref.Name, func(ctx context.Context) error {
		return g.inner.Delete(ctx, ref)
	})
}

// List implements providers.Provider.
func (g *guard) List(ctx context.Context) (instances []providers.Instance, err error) {
	err = g.call(ctx, methodList, DefaultListTimeout, "", func(ctx context.Context) (err error) {
		instances, err = g.inner.List(ctx)
		return err
	})
	if err != nil {
		// A partial list must not look like a whole one.
		return nil, err
	}
	return instances, nil
}

// Place implements providers.Provider.
func (g *guard) Place(spec *v1alpha1.ProxySpec, owner types.UID, tried []string) (place string, err error) {
	err = g.recovered(context.Background(), "Place", func(context.Context) (err error) {
		place, err = g.inner.Place(spec, owner, tried)
		return err
	})
	return place, err
}

// Close implements providers.Provider.
func (g *guard) Close() error {
	g.series.close()
	return g.recovered(context.Background(), "Close", func(context.Context) error { return g.inner.Close() })
}

// call makes one call with everything around it. instance is the name it is about, for the span; "" for none.
func (g *guard) call(ctx context.Context, method string, timeout time.Duration, instance string, do func(context.Context) error) error {
	attributes := []attribute.KeyValue{
		attribute.String("provider.type", string(g.options.Type)), attribute.String("provider.class", g.options.Class),
	}
	if instance != "" {
		attributes = append(attributes, attribute.String("provider.instance", instance))
	}
	ctx, span := otel.Tracer(scope).Start(ctx, "provider "+method, trace.WithAttributes(attributes...), trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()

	if err := g.admit(ctx, method); err != nil {
		g.series.refused(method, err)
		span.SetStatus(codes.Error, err.Error())
		return err
	}
	start := g.options.Clock.Now()
	bounded, cancel := context.WithTimeout(ctx, timeout)
	raw := g.recovered(bounded, method, do)
	cancel()
	took := g.options.Clock.Since(start)
	err := normalise(raw, method)
	g.judge(ctx, method, err, took)
	reason := providers.ReasonOf(err)
	g.series.called(method, reason, took, g.breaker.isOpen())
	if reason != "" {
		span.SetAttributes(attribute.String("provider.reason", string(reason)))
	}
	if raw != nil && !expected(reason) {
		span.RecordError(raw)
		span.SetStatus(codes.Error, err.Error())
		g.logger(ctx).Info("A call to the provider failed", "method", method, "instance", instance, "reason", reason, "error", providers.RawText(raw))
	}
	return err
}

// judge tells the breaker and the limiter what came of a call.
func (g *guard) judge(ctx context.Context, method string, err error, took time.Duration) {
	check := method == methodCheck
	var known *providers.Error
	switch reason := providers.ReasonOf(err); {
	case reason == providers.Unavailable && ctx.Err() != nil && (took < fairTime || errors.Is(ctx.Err(), context.Canceled)):
		// The caller gave up, which says nothing about the provider.
		g.breaker.forgive(check)
	case errors.As(err, &known) && known.Local:
		// One host of several is down, which says nothing about the others.
		g.breaker.forgive(check)
	case (reason == providers.Unavailable || reason == providers.Auth) && errors.As(err, &known):
		g.breaker.failure(known, check)
	default:
		g.breaker.success()
		if reason == providers.RateLimited {
			g.limiter.pause(providers.RetryAfterOf(err))
		}
	}
}

// admit is the breaker's and the limiter's say before a call.
func (g *guard) admit(ctx context.Context, method string) error {
	check := method == methodCheck
	if !check {
		if until, cause := g.breaker.allow(); cause != nil {
			return &providers.Error{Reason: cause.Reason, Op: opOf(method), Message: cause.Message,
				RetryAfter: g.places.next(until), Err: providers.ErrBreakerOpen}
		}
	}
	until, err := g.limiter.wait(ctx)
	if err != nil {
		// The place that the breaker gave was not used.
		g.breaker.forgive(check)
		return &providers.Error{Reason: providers.RateLimited, Op: opOf(method), RetryAfter: g.places.next(until), Err: err,
			Message: "the class has used up its rate of calls"}
	}
	return nil
}

// recovered calls do and makes a panic an error: one provider's mistake must not end the manager, which serves all
// classes of the type.
func (g *guard) recovered(ctx context.Context, method string, do func(context.Context) error) (err error) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		g.series.panicked(method)
		raw := fmt.Errorf("panic: %v", cause)
		g.logger(ctx).Error(raw, "The provider panicked", "method", method, "stack", string(debug.Stack()))
		err = providers.NewError(providers.Unavailable, opOf(method), "the provider failed unexpectedly; the log of its manager has the details", raw)
	}()
	return do(ctx)
}

func (g *guard) logger(ctx context.Context) logr.Logger {
	return log.FromContext(ctx).WithValues("providerType", g.options.Type, "providerClass", g.options.Class)
}

// expected outcomes are steps of every life and no failures.
func expected(reason providers.Reason) bool {
	return reason == providers.NotFound || reason == providers.AlreadyExists
}

// normalise makes any error one of the taxonomy; what is not is Unavailable, a passed deadline included.
func normalise(err error, method string) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*providers.Error](err); ok {
		if known.Op != "" {
			return known
		}
		named := *known
		named.Op = opOf(method)
		return &named
	}
	message := ""
	if errors.Is(err, context.DeadlineExceeded) {
		message = "the provider did not answer in time"
	}
	return providers.NewError(providers.Unavailable, opOf(method), message, err)
}

// Methods that call the provider, as metrics and spans name them.
const (
	methodCheck  = "Check"
	methodCreate = "Create"
	methodGet    = "Get"
	methodDelete = "Delete"
	methodList   = "List"
)

var operations = map[string]string{
	methodCheck: "check the class", methodCreate: "create instance", methodGet: "get instance", methodDelete: "delete instance",
	methodList: "list instances",
}

func opOf(method string) string { return cmp.Or(operations[method], method) }

// ForSet is the wrap function of a providers.Set: a guard for each class, with the limits of the factory.
func ForSet(factory providers.Factory, c clock.WithTicker, m *Metrics) func(*v1alpha1.ProviderClass, providers.Provider) providers.Provider {
	limits := providers.LimitsOf(factory)
	return func(class *v1alpha1.ProviderClass, p providers.Provider) providers.Provider {
		return Wrap(p, Options{Type: factory.Type(), Class: class.Name, Clock: c, Limits: limits, Metrics: m})
	}
}
