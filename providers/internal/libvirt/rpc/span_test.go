package rpc_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
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
	v := volume(t, c, "seed", "raw")
	h.Frames.Reset()
	_, _ = c.LibVersion(ctx)
	// libvirt quotes what it cannot parse.
	_, err := c.DomainDefine(ctx, "<domain><"+secret+" '</domain>")
	if err == nil || !strings.Contains(err.Error(), secret) {
		t.Errorf("%v does not quote the XML, so this test shows nothing", err)
	}
	domain, _ := c.DomainLookupByName(ctx, "test")
	_, _ = c.DomainLookupByName(ctx, secret)
	_, _ = c.Capabilities(ctx)
	_, _ = c.DomainCapabilities(ctx, secret)
	_, _, _ = c.DomainState(ctx, domain)
	_, _ = c.DomainXML(ctx, domain)
	_, _ = c.DomainAddresses(ctx, domain, 0)
	_ = c.DomainSetAutostart(ctx, domain, true)
	_ = c.DomainDestroy(ctx, domain)
	_ = c.DomainCreate(ctx, domain)
	_ = c.DomainUndefine(ctx, domain)
	_, _ = c.NetworkActive(ctx, libvirttest.Network)
	pool, _ := c.PoolLookupByName(ctx, libvirttest.Pool)
	_, _ = c.PoolInfo(ctx, pool)
	_ = c.PoolRefresh(ctx, pool)
	_, _ = c.Volumes(ctx, pool)
	_, _ = c.VolumeLookup(ctx, pool, secret)
	_, _ = c.VolumeCreate(ctx, pool, "<volume><name>"+secret+"</name>")
	if err := c.VolumeUpload(ctx, v, strings.NewReader(secret), int64(len(secret))); err != nil {
		t.Error(err)
	}
	_ = c.VolumeUpload(ctx, v, iotest.ErrReader(errors.New(secret)), 100)
	_, _ = c.VolumeXML(ctx, v)
	_ = c.VolumeDelete(ctx, v)
	h.Frames.Decide(func(libvirttest.Call) libvirttest.Fault { return libvirttest.Fault{Action: libvirttest.CutAfter} })
	_, _ = c.Domains(ctx)
	parent.End()
	var called, traced []string
	for _, procedure := range h.Frames.Calls() {
		called = append(called, "libvirt/"+procedure.String())
	}
	for _, span := range recorder.Ended() {
		if span.Name() != "parent" {
			traced = append(traced, span.Name())
		}
	}
	if diff := cmp.Diff(called, traced); diff != "" {
		t.Errorf("calls (-) and spans (+), in their order:\n%s", diff)
	}

	// Of several calls of a procedure the last one's code counts.
	want := map[string]int{
		"ConnectGetLibVersion": 0, "DomainDefineXMLFlags": rpc.XMLDetail, "DomainLookupByName": rpc.NoDomain, "StorageVolLookupByName": rpc.NoVolume,
		"StorageVolUpload": rpc.CodeLost, "StorageVolDelete": 0, "ConnectListAllDomains": rpc.CodeLost,
	}
	got := map[string]int{}
	for _, span := range recorder.Ended() {
		if strings.Contains(fmt.Sprint(span.Name(), span.Attributes(), span.Status(), span.Events()), secret) {
			t.Errorf("%s has the secret: %v %v %v", span.Name(), span.Attributes(), span.Status(), span.Events())
		}
		if span.Name() == "parent" {
			continue
		}
		attributes := attribute.NewSet(span.Attributes()...)
		procedure, _ := attributes.Value("libvirt.procedure")
		code, _ := attributes.Value("libvirt.error_code")
		host, _ := attributes.Value("libvirt.host")
		if span.Parent().SpanID() != parent.SpanContext().SpanID() || host.AsString() != "h1" || "libvirt/"+procedure.AsString() != span.Name() {
			t.Errorf("%s: parent %v, attributes %v", span.Name(), span.Parent().SpanID(), span.Attributes())
		}
		got[procedure.AsString()] = int(code.AsInt64())
	}
	for procedure, code := range want {
		if got[procedure] != code || seen[procedure] != code {
			t.Errorf("%s: code %d in its span, %d observed, want %d", procedure, got[procedure], seen[procedure], code)
		}
	}
}
