package libvirtlab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"time"
)

const (
	// ProxyPort is the port of the proxy in both images; in the full one if user-data says so.
	ProxyPort = 3128
	// requestLimit bounds one request to a guest, which may be dead.
	requestLimit = 10 * time.Second
	// certified is a name in httptest's certificate, which knows nothing of the lab's addresses.
	certified = "example.com"
	// bodyLimit bounds what is read of an answer.
	bodyLimit = 1 << 20
)

// Guest is a machine with the mini image, by its address.
type Guest string

// Seed returns a file of the guest's NoCloud seed.
func (g Guest) Seed(ctx context.Context, file string) (string, error) {
	return g.own(ctx, http.MethodGet, "/seed/"+file)
}

// Fill lets the guest write to its disk until it is full, Panic lets its kernel panic, PowerOff switches it off.
func (g Guest) Fill(ctx context.Context) error { return g.order(ctx, "/fill") }

// Panic lets the guest's kernel panic.
func (g Guest) Panic(ctx context.Context) error { return g.order(ctx, "/panic") }

// PowerOff switches the guest off from within.
func (g Guest) PowerOff(ctx context.Context) error { return g.order(ctx, "/poweroff") }

func (g Guest) order(ctx context.Context, path string) error {
	_, err := g.own(ctx, http.MethodPost, path)
	return err
}

func (g Guest) proxy() *url.URL {
	return &url.URL{Scheme: "http", Host: net.JoinHostPort(string(g), strconv.Itoa(ProxyPort))}
}

func (g Guest) own(ctx context.Context, method, path string) (string, error) {
	return do(ctx, &http.Transport{DisableKeepAlives: true}, method, g.proxy().String()+path)
}

// Fetch gets a page through the proxy at the guest's address, whichever program that is.
func (g Guest) Fetch(ctx context.Context, origin *httptest.Server, path string) (string, error) {
	transport := origin.Client().Transport.(*http.Transport).Clone()
	transport.Proxy = http.ProxyURL(g.proxy())
	transport.DisableKeepAlives = true
	if transport.TLSClientConfig != nil {
		transport.TLSClientConfig.ServerName = certified
	}
	return do(ctx, transport, http.MethodGet, origin.URL+path)
}

func do(ctx context.Context, transport *http.Transport, method, target string) (string, error) {
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return "", err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyLimit))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return "", err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return "", fmt.Errorf("%s %s: %s", method, target, response.Status)
	}
	return string(body), nil
}

// Origin is an HTTPS site in the lab that guests reach: it answers with the address that asked. Its client trusts it.
func Origin(t testing.TB, host Host) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(host.LabAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _, _ := net.SplitHostPort(r.RemoteAddr)
		_, _ = io.WriteString(w, address)
	}))
	_ = server.Listener.Close()
	server.Listener = listener
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}
