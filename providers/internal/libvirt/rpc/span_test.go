package rpc_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/libvirttest"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// TestV28_EveryCallHasASpanWithItsCodeAndNoSecret: of a connection that was opened with spans, within a span.
func TestV28_EveryCallHasASpanWithItsCodeAndNoSecret(t *testing.T) {
	h := libvirttest.Start(t, 1)[0]
	recorder := tracetest.NewSpanRecorder()
	previous := otel.GetTracerProvider()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	otel.SetTracerProvider(tracer)
	t.Cleanup(func() { otel.SetTracerProvider(previous) })

	const secret = "hunter2"
	var mu sync.Mutex
	seen := map[string]int{}
	observe := func(procedure string, code int, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		seen[procedure] = code
	}
	c := open(t, h, rpc.Options{Host: "h1", Spans: true, Observe: observe})
	if _, err := c.LibVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	if spans := recorder.Ended(); len(spans) != 0 {
		t.Errorf("spans without a parent: %v", spans)
	}
	ctx, parent := tracer.Tracer("test").Start(t.Context(), "parent")
	_, _ = c.LibVersion(ctx)
	// libvirt quotes what it cannot parse.
	_, err := c.DomainDefine(ctx, "<domain><"+secret+" '</domain>")
	if err == nil || !strings.Contains(err.Error(), secret) {
		t.Errorf("%v does not quote the XML, so this test shows nothing", err)
	}
	_, _ = c.DomainLookupByName(ctx, secret)
	h.Frames.Decide(func(libvirttest.Call) libvirttest.Fault { return libvirttest.Fault{Action: libvirttest.CutAfter} })
	_, _ = c.Domains(ctx)
	parent.End()

	want := map[string]int{
		"libvirt/ConnectGetLibVersion": 0, "libvirt/DomainDefineXMLFlags": rpc.XMLDetail, "libvirt/DomainLookupByName": rpc.NoDomain,
		"libvirt/ConnectListAllDomains": rpc.CodeLost,
	}
	for _, span := range recorder.Ended() {
		if strings.Contains(fmt.Sprint(span.Name(), span.Attributes(), span.Status(), span.Events()), secret) {
			t.Errorf("%s has the secret: %v %v %v", span.Name(), span.Attributes(), span.Status(), span.Events())
		}
		code, ok := want[span.Name()]
		if !ok {
			continue
		}
		delete(want, span.Name())
		attributes := map[string]string{}
		for _, a := range span.Attributes() {
			attributes[string(a.Key)] = a.Value.Emit()
		}
		if span.Parent().SpanID() != parent.SpanContext().SpanID() || attributes["libvirt.host"] != "h1" ||
			"libvirt/"+attributes["libvirt.procedure"] != span.Name() || attributes["libvirt.error_code"] != fmt.Sprint(code) {
			t.Errorf("%s: %v, want code %d", span.Name(), attributes, code)
		}
		if got := seen[attributes["libvirt.procedure"]]; got != code {
			t.Errorf("%s was observed with code %d, want %d", span.Name(), got, code)
		}
	}
	if len(want) > 0 {
		t.Errorf("no spans: %v", want)
	}
}
