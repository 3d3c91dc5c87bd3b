//go:build bench

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	apiToken = "a-token-for-benchmarks-only"
	// recoveredLog is in the log of a core that leads and knows all leases.
	recoveredLog = "Leasing has recovered"
	// poll is the pause between two looks for something.
	poll = 20 * time.Millisecond
)

// cores runs core processes of the real binary.
type cores struct {
	t         *testing.T
	binary    string
	arguments []string
	all       []*core
}

// core is one of them.
type core struct {
	*testenv.Process
	url  string
	http *http.Client
}

// start starts a core and waits until it answers.
func (c *cores) start() *core {
	c.t.Helper()
	address, err := testenv.FreeAddress()
	if err != nil {
		c.t.Fatal(err)
	}
	one := &core{url: "http://" + address, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: burst}}}
	if one.Process, err = testenv.StartProcess(c.binary, append(slices.Clone(c.arguments), "--api-bind-address="+address), nil); err != nil {
		c.t.Fatal(err)
	}
	c.all = append(c.all, one)
	c.await("a core answers", func(ctx context.Context) bool {
		status, _, err := one.call(ctx, http.MethodGet, wire.PathLeases+"/none", nil, "")
		return err == nil && status == http.StatusNotFound
	})
	return one
}

// leader waits until one of two cores leads and gives both, that one first.
func (c *cores) leader(a, b *core) (leader, follower *core) {
	c.t.Helper()
	c.await("a core leads", func(context.Context) bool { return a.led() || b.led() })
	if b.led() {
		return b, a
	}
	return a, b
}

// led tells whether the core leads: one that has led and lost it ends.
func (c *core) led() bool { return strings.Contains(c.Output(), recoveredLog) }

func (c *cores) await(what string, is func(ctx context.Context) bool) {
	c.t.Helper()
	err := wait.PollUntilContextTimeout(c.t.Context(), poll, patience, true, func(ctx context.Context) (bool, error) { return is(ctx), nil })
	if err != nil {
		c.t.Fatalf("waited in vain until %s; the end of the cores' logs:\n%s", what, c.logs())
	}
}

func (c *cores) logs() string {
	var all strings.Builder
	for i, one := range c.all {
		fmt.Fprintf(&all, "core %d:\n%s\n", i, one.Tail())
	}
	return all.String()
}

// stop kills what still runs.
func (c *cores) stop() {
	for _, one := range c.all {
		one.Signal(syscall.SIGKILL)
		<-one.Done()
		one.http.CloseIdleConnections()
	}
	if c.t.Failed() {
		c.t.Log(c.logs())
	}
}

// call sends a request of the HTTP API; body is left out when it is nil.
func (c *core) call(ctx context.Context, method, path string, body any, key string) (status int, answer []byte, err error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return 0, nil, err
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.url+path, content)
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Authorization", "Bearer "+apiToken)
	if key != "" {
		request.Header.Set(wire.HeaderKey, key)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// granted is a lease that was promised over HTTP.
type granted struct{ id, name, proxy string }

// acquire leases; only a grant is no error.
func (c *core) acquire(ctx context.Context, ttlSeconds int32, key string) (granted, error) {
	status, answer, err := c.call(ctx, http.MethodPost, wire.PathLeases, wire.LeaseRequest{Holder: "bench", TTLSeconds: &ttlSeconds}, key)
	if err != nil {
		return granted{}, err
	}
	lease := wire.Lease{}
	if status != http.StatusCreated && status != http.StatusOK {
		return granted{}, fmt.Errorf("lease: %d %s", status, answer)
	}
	if err := json.Unmarshal(answer, &lease); err != nil {
		return granted{}, fmt.Errorf("read the answer: %w", err)
	}
	parts := strings.Split(lease.LeaseID, ".")
	if len(parts) != 3 {
		return granted{}, fmt.Errorf("the id %q has not three parts", lease.LeaseID)
	}
	return granted{id: lease.LeaseID, name: parts[1], proxy: lease.Proxy.Name}, nil
}

func (c *core) release(ctx context.Context, g granted) error {
	status, answer, err := c.call(ctx, http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(g.id), nil, "")
	if err == nil && status != http.StatusNoContent {
		err = fmt.Errorf("release: %d %s", status, answer)
	}
	return err
}

func (c *core) renew(ctx context.Context, g granted) error {
	status, answer, err := c.call(ctx, http.MethodPost, wire.PathLeases+"/"+url.PathEscape(g.id)+"/"+wire.ActionRenew, nil, "")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("renew: %d %s", status, answer)
	}
	return err
}

// file writes a file that ends with the test.
func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
