package images

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/internal/libvirt/rpc"
)

// breaking sends part of an image and hangs up.
func breaking(data []byte, after int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "600000")
		_, _ = w.Write(data[:after])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// TestV16_NothingHalfOrWrongIsEverUsed: whatever is wrong with the download, it is told with the field if one is wrong, leaves
// nothing behind, and the next one works.
func TestV16_NothingHalfOrWrongIsEverUsed(t *testing.T) {
	good := qcow2(imageBytes)
	with := func(change func(data []byte)) http.HandlerFunc {
		data := qcow2(imageBytes)
		change(data)
		return whole(data)
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		pool    func(*pool)
		reason  providers.Reason
		field   string
	}{
		"breaks off midway":        {breaking(good, imageBytes/2), nil, providers.Unavailable, ""},
		"breaks off in the header": {breaking(good, 50), nil, providers.Unavailable, ""},
		"breaks off at once":       {breaking(good, 0), nil, providers.Unavailable, ""},
		"wrong bytes":              {with(func(d []byte) { d[imageBytes-1]++ }), nil, providers.InvalidSpec, "images[debian].sha256"},
		"a short image":            {whole(good[:imageBytes-1]), nil, providers.InvalidSpec, "images[debian].sha256"},
		"a long image":             {whole(append(qcow2(imageBytes), 0)), nil, providers.InvalidSpec, "images[debian].sha256"},
		"a web page":               {whole([]byte(strings.Repeat("<html>", 100))), nil, providers.InvalidSpec, "images[debian].url"},
		"hardly anything":          {whole(good[:20]), nil, providers.InvalidSpec, "images[debian].url"},
		"nothing":                  {whole(nil), nil, providers.InvalidSpec, "images[debian].url"},
		"another file below": {with(func(d []byte) { binary.BigEndian.PutUint64(d[8:], 512) }), nil,
			providers.InvalidSpec, "images[debian].url"},
		"another file for data": {with(func(d []byte) { binary.BigEndian.PutUint64(d[72:], externalDataFile) }), nil,
			providers.InvalidSpec, "images[debian].url"},
		"no size": {with(func(d []byte) { clear(d[24:32]) }), nil, providers.InvalidSpec, "images[debian].url"},
		"no length": {func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).Flush()
			_, _ = w.Write(good)
		}, nil, providers.InvalidSpec, "images[debian].url"},
		"not there":       {status(http.StatusNotFound), nil, providers.InvalidSpec, "images[debian].url"},
		"gone":            {status(http.StatusGone), nil, providers.InvalidSpec, "images[debian].url"},
		"not for us":      {status(http.StatusForbidden), nil, providers.InvalidSpec, "images[debian].url"},
		"a broken server": {status(http.StatusInternalServerError), nil, providers.Unavailable, ""},
		"a busy server":   {status(http.StatusTooManyRequests), nil, providers.Unavailable, ""},
		"redirects for ever": {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, r.URL.Path, http.StatusFound) }, nil,
			providers.InvalidSpec, "images[debian].url"},
		"a host that takes less": {whole(good), func(p *pool) { p.taken = imageBytes / 2 }, providers.Unavailable, ""},
		"a host without space": {whole(good), func(p *pool) {
			p.written = func(string) error {
				return &rpc.Error{Procedure: "StorageVolUpload", Code: rpc.SystemError, Err: errors.New("cannot write: No space left on device")}
			}
		}, providers.Capacity, ""},
		"a lost connection": {whole(good), func(p *pool) {
			p.written = func(string) error {
				return &rpc.Error{Procedure: "StorageVolUpload", Lost: true, Err: errors.New("reset")}
			}
		}, providers.Unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server := serve(t, c.handler)
			p := newPool()
			if c.pool != nil {
				c.pool(p)
			}
			r := newRig(t, map[string]*pool{"a": p})
			image := Image{Name: "debian", URL: server.URL + "/x.qcow2", SHA256: sumOf(good)}
			_, progress, err := r.fetch("a", image)
			known, ok := errors.AsType[*providers.Error](err)
			if !ok || known.Reason != c.reason || known.Field != c.field || progress.Done || known.Message == "" {
				t.Fatalf("%+v, %v, want %s of %q", progress, err, c.reason, c.field)
			}
			if strings.ContainsAny(strings.ReplaceAll(known.Message, "qcow2", ""), "0123456789") {
				t.Errorf("the message is not stable: %s", known.Message)
			}
			if names := p.names(); len(names) != 0 {
				t.Errorf("left are %v", names)
			}
			server.set(whole(good))
			p.taken, p.written = 0, nil
			r.clock.Step(retryMin)
			if _, progress, err = r.fetch("a", image); err != nil || !progress.Done || len(usable(p)) != 1 {
				t.Errorf("the next one: %+v, %v, usable are %v", progress, err, usable(p))
			}
		})
	}
}

// TestV16_SourceThatStalls: a server that says nothing for long is given up, and so is one that never answers.
func TestV16_SourceThatStalls(t *testing.T) {
	good := qcow2(imageBytes)
	for name, answers := range map[string]bool{"in the image": true, "before it answers": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPool()
				r := newRig(t, map[string]*pool{"a": p}, func(o *Options) {
					o.HTTP = &http.Client{Transport: transport(func(request *http.Request) (*http.Response, error) {
						if !answers {
							<-request.Context().Done()
							return nil, request.Context().Err()
						}
						body := io.MultiReader(strings.NewReader(string(good[:imageBytes/2])), stalled{request.Context()})
						return &http.Response{StatusCode: http.StatusOK, ContentLength: imageBytes, Body: io.NopCloser(body)}, nil
					})}
				})
				began := time.Now()
				image := Image{Name: "debian", URL: "http://images.example/x"}
				if _, _, err := r.ensure("a", image); err != nil {
					t.Fatal(err)
				}
				<-r.woken
				_, _, err := r.ensure("a", image)
				if providers.ReasonOf(err) != providers.Unavailable || providers.StableMessage(err) != messageServer {
					t.Errorf("%v", err)
				}
				if took := time.Since(began); took < IdleTimeout || took > IdleTimeout+time.Second {
					t.Errorf("it was given up after %s", took)
				}
				if names := p.names(); len(names) != 0 {
					t.Errorf("left are %v", names)
				}
			})
		})
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type stalled struct{ ctx context.Context }

func (s stalled) Read([]byte) (int, error) {
	<-s.ctx.Done()
	return 0, s.ctx.Err()
}

// TestV16_RedirectsKeepToTLS: what was asked for over TLS does not come without.
func TestV16_RedirectsKeepToTLS(t *testing.T) {
	good := qcow2(imageBytes)
	plain := serve(t, whole(good))
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/away":
			http.Redirect(w, r, plain.URL, http.StatusFound)
		case "/moved":
			http.Redirect(w, r, "/image", http.StatusFound)
		default:
			whole(good)(w, r)
		}
	}))
	defer secure.Close()
	r := newRig(t, map[string]*pool{"a": newPool()}, func(o *Options) { o.HTTP = secure.Client() })
	_, _, err := r.fetch("a", Image{Name: "debian", URL: secure.URL + "/away"})
	if known, ok := errors.AsType[*providers.Error](err); !ok || known.Field != "images[debian].url" || plain.gets.Load() != 0 {
		t.Errorf("%v, %d requests without TLS", err, plain.gets.Load())
	}
	if _, p, err := r.fetch("a", Image{Name: "debian", URL: secure.URL + "/moved"}); err != nil || !p.Done {
		t.Errorf("a redirect within TLS: %+v, %v", p, err)
	}
	to := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, secure.URL+"/image", http.StatusFound)
	})
	if _, p, err := r.fetch("a", Image{Name: "debian", URL: to.URL}); err != nil || !p.Done {
		t.Errorf("a redirect to TLS: %+v, %v", p, err)
	}
}

// TestV16_FilesOfTheManager as sources.
func TestV16_FilesOfTheManager(t *testing.T) {
	dir := t.TempDir()
	good := qcow2(imageBytes)
	file := filepath.Join(dir, "image with spaces.qcow2")
	if err := os.WriteFile(file, good, 0o600); err != nil {
		t.Fatal(err)
	}
	p := newPool()
	r := newRig(t, map[string]*pool{"a": p})
	of := func(path string) Image {
		return Image{Name: "debian", URL: (&url.URL{Scheme: "file", Path: path}).String(), SHA256: sumOf(good)}
	}
	if base, progress, err := r.fetch("a", of(file)); err != nil || !progress.Done || base.Capacity != 1<<30 {
		t.Errorf("%+v, %+v, %v", base, progress, err)
	}
	for _, path := range []string{filepath.Join(dir, "missing"), dir, "/dev/null"} {
		_, _, err := r.fetch("a", of(path))
		if known, ok := errors.AsType[*providers.Error](err); !ok || known.Reason != providers.InvalidSpec || known.Field != "images[debian].url" {
			t.Errorf("%s: %v", path, err)
		}
	}
	// One that is cut while it is read is tried again, and is not the host's fault.
	cut := filepath.Join(dir, "cut.qcow2")
	if err := os.WriteFile(cut, good, 0o600); err != nil {
		t.Fatal(err)
	}
	p.created = func(string) error { return os.Truncate(cut, imageBytes/2) }
	_, _, err := r.fetch("a", of(cut))
	if providers.ReasonOf(err) != providers.Unavailable || providers.StableMessage(err) != messageServer || len(p.names()) != 2 {
		t.Errorf("%v, there are %v", err, p.names())
	}
}

// TestV16_AddressesOfImagesAreNotLogged: what follows the question mark may be a licence to read.
func TestV16_AddressesOfImagesAreNotLogged(t *testing.T) {
	server := serve(t, status(http.StatusNotFound))
	down := httptest.NewServer(nil)
	down.Close()
	var logged strings.Builder
	r := newRig(t, map[string]*pool{"a": newPool()}, func(o *Options) {
		o.Logger = funcr.New(func(_, args string) { logged.WriteString(args) }, funcr.Options{})
	})
	for _, base := range []string{server.URL, down.URL} {
		if _, _, err := r.fetch("a", Image{Name: "debian", URL: base + "/x?signature=s3cret"}); err == nil || strings.Contains(providers.RawText(err), "s3cret") {
			t.Errorf("%v", err)
		}
	}
	r.Close()
	if logged.Len() == 0 || strings.Contains(logged.String(), "s3cret") {
		t.Errorf("logged was %q", logged.String())
	}
}

// FuzzV16_Header: nothing that a server sends breaks the reading, and only qcow2 without other files is taken.
func FuzzV16_Header(f *testing.F) {
	f.Add(qcow2(headerBytes))
	f.Add([]byte(qcow2Magic))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &source{Reader: strings.NewReader(string(data)), length: int64(len(data)), left: int64(len(data)), image: Image{Name: "x"}}
		h, err := readHeader(s)
		if err == nil && (string(h.raw[:4]) != qcow2Magic || h.capacity <= 0 || binary.BigEndian.Uint64(h.raw[8:]) != 0) {
			t.Errorf("taken was %x", h.raw)
		}
		if err != nil && providers.ReasonOf(err) != providers.InvalidSpec {
			t.Errorf("%v", err)
		}
	})
}
