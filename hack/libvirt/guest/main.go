// Command guest runs in the mini test image: a forward proxy that also does to its machine what a test asks for.
//
//	CONNECT HOST:PORT, GET http://HOST/…   what a forward proxy does
//	GET /seed/FILE                         a file of the NoCloud seed
//	POST /fill                             writes to the machine's disk until it is full
//	POST /panic                            a kernel panic
//	POST /poweroff                         switches the machine off
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"time"
)

const (
	address     = ":3128"
	seedDir     = "/seed"
	disk        = "/dev/vda"
	sysrq       = "/proc/sysrq-trigger"
	dialTimeout = 10 * time.Second
	// headerTimeout bounds how long a client may take to send its request header.
	headerTimeout = 10 * time.Second
	// fillFrom is behind the image's own 48 MiB, so that the machine could boot again.
	fillFrom = 64 << 20
)

func main() {
	log.SetFlags(0)
	server := &http.Server{Addr: address, Handler: handler(seedDir), ReadHeaderTimeout: headerTimeout}
	log.Fatal("guest: ", server.ListenAndServe())
}

// handler is the proxy, and for requests without a host in their target the machine itself.
func handler(seed string) http.Handler {
	own := http.NewServeMux()
	own.HandleFunc("GET /seed/{file}", func(w http.ResponseWriter, r *http.Request) {
		data, err := os.ReadFile(filepath.Join(seed, filepath.Base(r.PathValue("file"))))
		if err != nil {
			http.Error(w, err.Error(), http.StatusNotFound)
			return
		}
		_, _ = w.Write(data)
	})
	own.HandleFunc("POST /fill", func(w http.ResponseWriter, _ *http.Request) {
		go func() { log.Print("guest: fill: ", fill(disk, fillFrom)) }()
		w.WriteHeader(http.StatusAccepted)
	})
	own.HandleFunc("POST /panic", trigger("c"))
	own.HandleFunc("POST /poweroff", trigger("o"))
	forward := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.Header.Del("Proxy-Authorization")
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect:
			connect(w, r)
		case r.URL.Host != "":
			forward.ServeHTTP(w, r)
		default:
			own.ServeHTTP(w, r)
		}
	})
}

// trigger answers first: the machine does not outlive it.
func trigger(key string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		_ = http.NewResponseController(w).Flush()
		time.AfterFunc(200*time.Millisecond, func() { _ = os.WriteFile(sysrq, []byte(key), 0) })
	}
}

// fill writes what no disk compresses or leaves out as a hole, past the page cache, until there is an error.
func fill(path string, from int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return err
	}
	block := make([]byte, 1<<20)
	for i := range block {
		block[i] = byte(i*7 + 1)
	}
	for {
		if _, err := file.Write(block); err != nil {
			return fmt.Errorf("write to %s: %w", path, err)
		}
	}
}

// connect ties the client to the target until one of them ends.
func connect(w http.ResponseWriter, r *http.Request) {
	target, err := net.DialTimeout("tcp", r.Host, dialTimeout)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer func() { _ = target.Close() }()
	client, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = client.Close() }()
	if _, err := client.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		return
	}
	done := make(chan struct{}, 2)
	go func() { _, _ = io.Copy(target, buffered); done <- struct{}{} }()
	go func() { _, _ = io.Copy(client, target); done <- struct{}{} }()
	<-done
}
