// Package coretest runs core processes of the real binary for tests and benchmarks, and talks to their HTTP API.
package coretest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"syscall"

	"crawl.example.com/egress-proxies-operator/internal/testenv"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// recoveredLog is in the log of a core that leads and knows all leases.
const recoveredLog = "Leasing has recovered"

// Core is a running core process.
type Core struct {
	*testenv.Process

	url, token string
	http       *http.Client
}

// Start starts a core on free addresses of its own. The first of the arguments is the subcommand. token is what the API asks for,
// and connections is how many to it are kept open.
func Start(binary string, arguments []string, token string, connections int) (*Core, error) {
	address, err := testenv.FreeAddress()
	if err != nil {
		return nil, err
	}
	peers, err := testenv.FreeAddress()
	if err != nil {
		return nil, err
	}
	own := []string{"--api-bind-address=" + address, "--peer-bind-address=" + peers, "--peer-advertise-address=" + peers}
	// Behind the subcommand, so that the arguments may say otherwise.
	process, err := testenv.StartProcess(binary, slices.Insert(slices.Clone(arguments), 1, own...), nil)
	if err != nil {
		return nil, fmt.Errorf("start a core: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: connections}}
	return &Core{Process: process, url: "http://" + address, token: token, http: client}, nil
}

// Answers tells whether the API answers.
func (c *Core) Answers(ctx context.Context) bool {
	status, _, err := c.Call(ctx, http.MethodGet, wire.PathLeases+"/none", nil, "")
	return err == nil && status == http.StatusNotFound
}

// Led tells whether the core has ever led: one that has led and lost it ends.
func (c *Core) Led() bool { return strings.Contains(c.Output(), recoveredLog) }

// Call sends a request of the HTTP API; body is left out when it is nil, and so is an empty Idempotency-Key.
func (c *Core) Call(ctx context.Context, method, path string, body any, key string) (status int, answer []byte, err error) {
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
	request.Header.Set("Authorization", "Bearer "+c.token)
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

// Kill ends the process, if it runs, and its connections.
func (c *Core) Kill() {
	c.Signal(syscall.SIGKILL)
	<-c.Done()
	c.http.CloseIdleConnections()
}
