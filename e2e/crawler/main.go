// Command crawler is the crawler of the end-to-end tests: it runs as a Job in the cluster, leases a proxy by a ProxyLease
// that its Pod owns, fetches one page through it, prints what it got, and keeps the lease until it is ended.
//
// It has no rights but those of the role lease-user; the proxies' credentials are mounted.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"crawl.example.com/egress-proxies-operator/leasing/client"
	"crawl.example.com/egress-proxies-operator/leasing/client/kube"
)

const (
	// acquireTimeout bounds the wait for a proxy, fetchTimeout that for the page.
	acquireTimeout, fetchTimeout = 5 * time.Minute, 30 * time.Second
	// maxPage bounds what is read of a page, in bytes.
	maxPage = 64 << 10
)

type options struct {
	namespace, geo, page, caFile, credentials string
}

// result is the line that is printed.
type result struct {
	Lease    string `json:"lease"`
	ProxyURL string `json:"proxyURL"`
	Status   int    `json:"status"`
	Body     string `json:"body"`
}

func main() {
	var o options
	flag.StringVar(&o.namespace, "namespace", "", "namespace of the proxies")
	flag.StringVar(&o.geo, "geo", "", "label geo of the proxy to lease")
	flag.StringVar(&o.page, "page", "", "https URL to fetch")
	flag.StringVar(&o.caFile, "ca", "", "PEM file with the site's authority")
	flag.StringVar(&o.credentials, "credentials", "", "folder in which the Secrets with credentials are mounted, each under its name")
	flag.Parse()
	if err := run(context.Background(), o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "crawler:", err)
		os.Exit(1)
	}
}

// run ends when the lease does.
func run(ctx context.Context, o options, out io.Writer) error {
	page, err := url.Parse(o.page)
	if err != nil || page.Host == "" {
		return fmt.Errorf("--page: %q is not a URL", o.page)
	}
	pem, err := os.ReadFile(o.caFile)
	if err != nil {
		return fmt.Errorf("--ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("--ca: %s has no certificate", o.caFile)
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("find the cluster: %w", err)
	}
	c, err := kube.NewForConfig(config, kube.Options{
		Namespace: o.namespace,
		Owner:     kube.PodOwner(os.Getenv("POD_NAME"), types.UID(os.Getenv("POD_UID"))),
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
		Credentials: func(_ context.Context, _, secret string) (username, password string, err error) {
			return mounted(filepath.Join(o.credentials, secret))
		},
	})
	if err != nil {
		return err
	}
	acquiring, cancel := context.WithTimeout(ctx, acquireTimeout)
	defer cancel()
	lease, err := c.Acquire(acquiring, client.Request{Selector: map[string]string{"geo": o.geo}, Targets: []string{page.Hostname()}, Holder: "crawler"})
	if err != nil {
		return fmt.Errorf("lease a proxy: %w", err)
	}
	if err := fetch(ctx, lease, page, out); err != nil {
		return errors.Join(err, lease.Close(ctx))
	}
	// The lease is not given back: that it goes away with the Pod is what is tried out.
	<-lease.Done()
	return lease.Err()
}

// fetch gets the page through the leased proxy and prints what came.
func fetch(ctx context.Context, lease *client.Lease, page *url.URL, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page.String(), nil)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	answer, err := (&http.Client{Transport: lease.Transport()}).Do(request)
	if err != nil {
		return fmt.Errorf("fetch the page: %w", err)
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxPage))
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}
	r := result{Lease: lease.ID(), ProxyURL: lease.Proxy().URL, Status: answer.StatusCode, Body: string(body)}
	if err := json.NewEncoder(out).Encode(r); err != nil {
		return fmt.Errorf("print the result: %w", err)
	}
	return nil
}

// mounted reads the credentials of a Secret that is mounted.
func mounted(dir string) (username, password string, err error) {
	user, err := os.ReadFile(filepath.Join(dir, "username"))
	if err != nil {
		return "", "", fmt.Errorf("read the user name: %w", err)
	}
	pass, err := os.ReadFile(filepath.Join(dir, "password"))
	if err != nil {
		return "", "", fmt.Errorf("read the password: %w", err)
	}
	return string(user), string(pass), nil
}
