package libvirt_test

import (
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt"
	"crawl.example.com/egress-proxies-operator/providers/kvm"
	"crawl.example.com/egress-proxies-operator/providers/kvm2"
)

// TestTraceOfACreateHasASpanForEachRPC: with kvm2, from the look at the name to the start of the machine, also of those that
// follow after Create has returned; none with kvm. No span carries user data.
func TestTraceOfACreateHasASpanForEachRPC(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	before := otel.GetTracerProvider()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	otel.SetTracerProvider(tracer)
	t.Cleanup(func() { otel.SetTracerProvider(before) })
	spans := func(factory func() *libvirt.Factory) map[string]int {
		b := newBed(t, factory, 1)
		b.settle(b.request("first"))
		req := b.request("px")
		req.UserData = []byte("#cloud-config\n# do-not-tell\n")
		ctx, root := tracer.Tracer("test").Start(t.Context(), "provider Create")
		_, err := b.Create(ctx, req)
		b.must(err)
		root.End()
		b.eventually("running", func() bool {
			i, err := b.Get(t.Context(), refOf(req))
			return err == nil && i.State == providers.StateRunning
		})
		names := map[string]int{}
		for _, span := range recorder.Ended() {
			if span.SpanContext().TraceID() != root.SpanContext().TraceID() || span.Name() == "provider Create" {
				continue
			}
			names[span.Name()]++
			if text := fmt.Sprint(span.Attributes(), span.Events(), span.Status()); strings.Contains(text, "do-not-tell") {
				t.Errorf("%s: %s", span.Name(), text)
			}
			if span.Parent().SpanID() != root.SpanContext().SpanID() {
				t.Errorf("%s hangs below another span", span.Name())
			}
		}
		return names
	}
	got := spans(kvm2.NewFactory)
	for name, want := range map[string]int{
		"libvirt/DomainLookupByName": 1, "libvirt/DomainDefineXMLFlags": 1, "libvirt/StorageVolCreateXML": 2, "libvirt/StorageVolUpload": 1,
		"libvirt/DomainSetAutostart": 1, "libvirt/DomainCreate": 1,
	} {
		if got["libvirt/StorageVolUpload"] == 0 || got[name] != want {
			t.Errorf("%d spans %s, want %d; all: %v", got[name], name, want, got)
		}
	}
	if got := spans(kvm.NewFactory); len(got) != 0 {
		t.Errorf("kvm has spans %v", got)
	}
}
