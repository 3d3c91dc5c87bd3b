// Command origin is the web site that the demo and the end-to-end tests crawl: an HTTPS server that answers with the
// address it was reached from and logs it, so that a test can see through which proxy a request went.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// shutdownGrace is how long running requests may take after a signal to end.
const shutdownGrace = 2 * time.Second

// readHeaderTimeout bounds how long a client may take to send its request header.
const readHeaderTimeout = 10 * time.Second

func main() {
	var (
		addr       = flag.String("addr", ":8443", "address of the HTTPS site")
		certFile   = flag.String("tls-cert", "", "PEM file with the site's certificate chain (required)")
		keyFile    = flag.String("tls-key", "", "PEM file with the certificate's private key (required)")
		healthAddr = flag.String("health-addr", ":8080", "address of plain-HTTP /healthz; empty for none")
	)
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *addr, *certFile, *keyFile, *healthAddr); err != nil {
		fmt.Fprintln(os.Stderr, "origin:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends or a server fails.
func run(ctx context.Context, out io.Writer, addr, certFile, keyFile, healthAddr string) error {
	if certFile == "" || keyFile == "" {
		return errors.New("--tls-cert and --tls-key are required")
	}
	logger := slog.New(slog.NewJSONHandler(out, nil))
	site := &http.Server{Addr: addr, Handler: newSite(logger), ReadHeaderTimeout: readHeaderTimeout}
	health := &http.Server{Addr: healthAddr, Handler: newHealth(), ReadHeaderTimeout: readHeaderTimeout}

	failed := make(chan error, 2)
	go func() {
		failed <- fmt.Errorf("serving the site on %s: %w", addr, site.ListenAndServeTLS(certFile, keyFile))
	}()
	if healthAddr != "" {
		go func() { failed <- fmt.Errorf("serving health on %s: %w", healthAddr, health.ListenAndServe()) }()
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), shutdownGrace)
	defer cancel()
	return errors.Join(site.Shutdown(grace), health.Shutdown(grace))
}

// Answer is the body of every page but /generate_204.
type Answer struct {
	// Source is the IP address from which the request's connection came.
	Source string `json:"source"`
	Host   string `json:"host"`
	Method string `json:"method"`
	Path   string `json:"path"`
	// Header is what the client sent; a proxy that gives itself away (Via, X-Forwarded-For) shows here.
	Header http.Header `json:"header"`
}

// newSite answers 204 to /generate_204 and 200 with an Answer to everything else; every request is one log line.
func newSite(logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		if r.URL.Path == "/generate_204" {
			status = http.StatusNoContent
		}
		logger.Info("request", "remoteAddr", r.RemoteAddr, "method", r.Method, "host", r.Host, "path", r.URL.Path,
			"status", status, "userAgent", r.UserAgent())
		if status == http.StatusNoContent {
			w.WriteHeader(status)
			return
		}
		source, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			source = r.RemoteAddr
		}
		w.Header().Set("Content-Type", "application/json")
		answer := Answer{Source: source, Host: r.Host, Method: r.Method, Path: r.URL.Path, Header: r.Header}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			logger.Error("writing an answer", "remoteAddr", r.RemoteAddr, "error", err)
		}
	})
}

// newHealth answers 200 to /healthz; probes do not appear in the site's log.
func newHealth() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}
