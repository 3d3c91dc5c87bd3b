package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
)

// apiPatience bounds each wait of the test: files are looked at every ten seconds at the latest.
const apiPatience = time.Minute

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T, serial int64) (certPEM, keyPEM []byte, pool *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: fmt.Sprint("api ", serial)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return certPEM, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), pool
}

// mount is a folder as the kubelet mounts a Secret: its files change at once, by a link that is replaced.
type mount struct {
	t       *testing.T
	dir     string
	version int
}

func (m *mount) write(files map[string][]byte) {
	m.t.Helper()
	m.version++
	data := fmt.Sprintf("..data-%d", m.version)
	err := os.Mkdir(filepath.Join(m.dir, data), 0o755)
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(m.dir, data, name), content, 0o600))
		if m.version == 1 {
			err = errors.Join(err, os.Symlink(filepath.Join("..data", name), filepath.Join(m.dir, name)))
		}
	}
	next := filepath.Join(m.dir, "..next")
	err = errors.Join(err, os.Symlink(data, next), os.Rename(next, filepath.Join(m.dir, "..data")))
	if err != nil {
		m.t.Fatal(err)
	}
}

// The real binary serves https, and takes up a certificate and a token that change while it runs, as mounted Secrets do.
func TestAPI_CertificateAndTokenAreRotated(t *testing.T) {
	env := testenv.New(t)
	ns := env.Namespace(t)
	address, err := testenv.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	files := &mount{t: t, dir: t.TempDir()}
	firstCert, firstKey, first := certificate(t, 1)
	secondCert, secondKey, second := certificate(t, 2)
	files.write(map[string][]byte{"tls.crt": firstCert, "tls.key": firstKey, "token": []byte("first-token\n")})
	core, err := testenv.StartProcess(testenv.BuildOperator(t), []string{
		"core", "--kubeconfig=" + testenv.Kubeconfig(t, env.Core(t)), "--watch-namespaces=" + ns, "--default-namespace=" + ns,
		"--leader-election-namespace=" + ns, "--metrics-bind-address=0", "--health-probe-bind-address=0",
		"--api-bind-address=" + address, "--api-auth=token", "--api-token-file=" + filepath.Join(files.dir, "token"),
		"--api-tls-cert-file=" + filepath.Join(files.dir, "tls.crt"), "--api-tls-key-file=" + filepath.Join(files.dir, "tls.key"),
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		core.Signal(syscall.SIGTERM)
		if err := core.Wait(); err != nil {
			t.Errorf("core: %v\n%s", err, core.Tail())
		}
	})
	// A connection that is kept would hide a new certificate.
	call := func(roots *x509.CertPool, token, method, path, body string) (int, string, error) {
		web := &http.Client{Timeout: apiPatience, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+address+path, bytes.NewBufferString(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		answer, err := web.Do(request)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text), err
	}
	await := func(what string, holds func() string) {
		t.Helper()
		deadline, tick := time.After(apiPatience), time.NewTicker(50*time.Millisecond)
		defer tick.Stop()
		for {
			problem := holds()
			if problem == "" {
				return
			}
			select {
			case <-tick.C:
			case <-core.Done():
				t.Fatalf("%s: core has ended: %s", what, core.Tail())
			case <-deadline:
				t.Fatalf("%s: %s\n%s", what, problem, core.Tail())
			}
		}
	}
	answers := func(roots *x509.CertPool, token string, want int) func() string {
		return func() string {
			status, body, err := call(roots, token, http.MethodGet, "/v1/proxies", "")
			if err == nil && status == want {
				return ""
			}
			return fmt.Sprintf("%d %s %v", status, body, err)
		}
	}
	await("the first certificate and token", answers(first, "first-token", http.StatusOK))
	if why := answers(first, "second-token", http.StatusUnauthorized)(); why != "" {
		t.Errorf("a token of later: %s", why)
	}
	if _, _, err := call(second, "first-token", http.MethodGet, "/v1/proxies", ""); err == nil {
		t.Error("a certificate of later")
	}
	if answer, err := http.Get("http://" + address + "/openapi.json"); err == nil {
		_ = answer.Body.Close()
		if answer.StatusCode < http.StatusBadRequest {
			t.Errorf("without TLS: %d", answer.StatusCode)
		}
	}
	await("grants are protected, and there is no proxy", func() string {
		if status, body, err := call(first, "first-token", http.MethodPost, "/v1/leases", "{}"); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "no_proxy_available") {
			return fmt.Sprintf("%d %s %v", status, body, err)
		}
		return ""
	})
	files.write(map[string][]byte{"tls.crt": secondCert, "tls.key": secondKey, "token": []byte("second-token")})
	await("the second certificate and token", answers(second, "second-token", http.StatusOK))
	await("the first token is worth nothing any more", answers(second, "first-token", http.StatusUnauthorized))
	if _, _, err := call(first, "second-token", http.MethodGet, "/v1/proxies", ""); err == nil {
		t.Error("the first certificate is still served")
	}
	// A key that does not fit, or a file that is none, leaves what there is.
	files.write(map[string][]byte{"tls.crt": firstCert, "tls.key": secondKey, "token": []byte("third-token")})
	await("the third token", answers(second, "third-token", http.StatusOK))
	if text := core.Output(); strings.Contains(text, "first-token") || strings.Contains(text, "second-token") || strings.Contains(text, "PRIVATE KEY") {
		t.Errorf("a secret is in the log:\n%s", text)
	}
}
