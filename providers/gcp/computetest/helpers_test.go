package computetest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

const (
	project = "demo-project"
	zoneA   = "europe-west3-a"
	zoneB   = "europe-west3-b"
)

// complaints is a test that only notes what it is blamed for.
type complaints struct {
	testing.TB
	mu  sync.Mutex
	all []string
}

func (c *complaints) Errorf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, args...))
}

func (c *complaints) want(t *testing.T, part string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) == 0 || !strings.Contains(strings.Join(c.all, "\n"), part) {
		t.Errorf("the server complained of %q, want something of %q", c.all, part)
	}
}

// client calls a server as a program would.
type client struct {
	t     *testing.T
	s     *Server
	clock *clocktesting.FakeClock
	http  *http.Client
	token string
	// header goes with every call.
	header http.Header
}

func newClient(t *testing.T, options Options) *client {
	t.Helper()
	return clientOf(t, t, options)
}

// clientOf lets another than the test be blamed.
func clientOf(t *testing.T, blamed testing.TB, options Options) *client {
	t.Helper()
	fake := clocktesting.NewFakeClock(time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC))
	options.Clock = fake
	// On a connection that was used before, net/http would repeat a call that got no answer.
	transport := &http.Transport{DisableKeepAlives: true}
	return &client{t: t, s: New(blamed, options), clock: fake, http: &http.Client{Transport: transport, Timeout: 10 * time.Second}, header: http.Header{"X-Goog-Api-Version": {partialSince}}}
}

// do makes a call. An answer of 0 says that the connection broke.
func (c *client) do(method, path string, query url.Values, body obj) (status int, answer obj) {
	c.t.Helper()
	var reader io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			c.t.Fatal(err)
		}
		reader = bytes.NewReader(text)
	}
	u := c.s.URL + "/compute/v1/projects/" + project + "/" + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	request, err := http.NewRequestWithContext(c.t.Context(), method, u, reader)
	if err != nil {
		c.t.Fatal(err)
	}
	request.Header = c.header.Clone()
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	return response.StatusCode, answer
}

func (c *client) insert(zone string, body obj, requestID string) (int, obj) {
	c.t.Helper()
	query := url.Values{}
	if requestID != "" {
		query.Set("requestId", requestID)
	}
	return c.do(http.MethodPost, "zones/"+zone+"/instances", query, body)
}

func (c *client) get(zone, name string) (int, obj) {
	c.t.Helper()
	return c.do(http.MethodGet, "zones/"+zone+"/instances/"+name, nil, nil)
}

func (c *client) delete(zone, name, requestID string) (int, obj) {
	c.t.Helper()
	query := url.Values{}
	if requestID != "" {
		query.Set("requestId", requestID)
	}
	return c.do(http.MethodDelete, "zones/"+zone+"/instances/"+name, query, nil)
}

func (c *client) operation(zone string, operation obj) obj {
	c.t.Helper()
	status, answer := c.do(http.MethodGet, "zones/"+zone+"/operations/"+operation["name"].(string), nil, nil)
	if status != http.StatusOK {
		c.t.Fatalf("get operation: %d %v", status, answer)
	}
	return answer
}

// create inserts a VM, which must be accepted.
func (c *client) create(zone, name string) obj {
	c.t.Helper()
	status, answer := c.insert(zone, asked(zone, name), "")
	if status != http.StatusOK {
		c.t.Fatalf("insert: %d %v", status, answer)
	}
	return answer
}

// asked is a VM as a provider asks for it.
func asked(zone, name string) obj {
	return obj{
		"name": name, "machineType": "zones/" + zone + "/machineTypes/e2-micro", "description": "a proxy",
		"labels": obj{"owner": "u1"}, "tags": obj{"items": []any{"egress-proxy"}},
		"metadata":          obj{"items": []any{obj{"key": "user-data", "value": "#cloud-config\n"}}},
		"disks":             []any{obj{"boot": true, "autoDelete": true, "initializeParams": obj{"sourceImage": "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404", "diskSizeGb": "10"}}},
		"networkInterfaces": []any{obj{"network": "global/networks/default", "accessConfigs": []any{obj{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}}}},
		"scheduling":        obj{"provisioningModel": "STANDARD", "automaticRestart": true, "onHostMaintenance": "MIGRATE"},
	}
}

// natIP is the external address in an answer; "" is none.
func natIP(answer obj) string {
	nic := answer["networkInterfaces"].([]any)[0].(obj)
	configs, _ := nic["accessConfigs"].([]any)
	if len(configs) == 0 {
		return ""
	}
	return text(configs[0].(obj)["natIP"])
}

// reason is error.errors[0].reason.
func reason(answer obj) string {
	inner, _ := answer["error"].(obj)
	list, _ := inner["errors"].([]any)
	if len(list) == 0 {
		return ""
	}
	return text(list[0].(obj)["reason"])
}

// wants checks status and reason of an answer that is an error.
func wants(t *testing.T, what string, status int, answer obj, wantStatus int, wantReason string) {
	t.Helper()
	if status != wantStatus || reason(answer) != wantReason {
		t.Errorf("%s: got %d %v, want %d %s", what, status, answer, wantStatus, wantReason)
	}
}
