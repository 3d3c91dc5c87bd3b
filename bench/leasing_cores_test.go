//go:build bench

package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"crawl.example.com/egress-proxies-operator/internal/coretest"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

const (
	apiToken = "a-token-for-benchmarks-only"
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
type core struct{ *coretest.Core }

// start starts a core and waits until it answers.
func (c *cores) start(more ...string) *core {
	c.t.Helper()
	started, err := coretest.Start(c.binary, slices.Concat(c.arguments, more), apiToken, burst)
	if err != nil {
		c.t.Fatal(err)
	}
	one := &core{started}
	c.all = append(c.all, one)
	c.await("a core answers", one.Answers)
	return one
}

// leader waits until one of two cores leads and gives both, that one first.
func (c *cores) leader(a, b *core) (leader, follower *core) {
	c.t.Helper()
	c.await("a core leads", func(context.Context) bool { return a.Led() || b.Led() })
	if b.Led() {
		return b, a
	}
	return a, b
}

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
		one.Kill()
	}
	if c.t.Failed() {
		c.t.Log(c.logs())
	}
}

// granted is a lease that was promised over HTTP.
type granted struct{ id, name, proxy string }

// acquire leases; only a grant is no error.
func (c *core) acquire(ctx context.Context, ttlSeconds int32, key string) (granted, error) {
	status, answer, err := c.Call(ctx, http.MethodPost, wire.PathLeases, wire.LeaseRequest{Holder: "bench", TTLSeconds: &ttlSeconds}, key)
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
	status, answer, err := c.Call(ctx, http.MethodDelete, wire.PathLeases+"/"+url.PathEscape(g.id), nil, "")
	if err == nil && status != http.StatusNoContent {
		err = fmt.Errorf("release: %d %s", status, answer)
	}
	return err
}

func (c *core) renew(ctx context.Context, g granted) error {
	status, answer, err := c.Call(ctx, http.MethodPost, wire.PathLeases+"/"+url.PathEscape(g.id)+"/"+wire.ActionRenew, nil, "")
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
