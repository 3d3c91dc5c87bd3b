package httpapi

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

func loadOpenAPI(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// The description has exactly the routes that the server has.
func TestOpenAPIHasTheRoutes(t *testing.T) {
	doc := loadOpenAPI(t)
	_, _, s := newServer(t)
	if doc.OpenAPI != "3.1.0" {
		t.Fatalf("version %s", doc.OpenAPI)
	}
	served, described := map[Route]bool{}, map[Route]bool{}
	parameter := regexp.MustCompile(`:(\w+)`)
	for route := range s.routes() {
		served[Route{route.Method, parameter.ReplaceAllString(route.Path, "{$1}")}] = true
	}
	for path, item := range doc.Paths.Map() {
		for method := range item.Operations() {
			described[Route{method, path}] = true
		}
	}
	if !maps.Equal(served, described) {
		t.Fatalf("served %v, described %v", served, described)
	}
}

// What the server takes and answers is what the description says, for a call of every route and for an error of each.
func TestOpenAPIDescribesTheAnswers(t *testing.T) {
	doc := loadOpenAPI(t)
	h, _, s := newServer(t)
	id, _ := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
	for _, c := range []struct {
		method, path, route, body string
		status                    int
	}{
		{http.MethodGet, "/v1/proxies?healthy=true", "/v1/proxies", "", 200},
		{http.MethodGet, "/v1/proxies?healthy=perhaps", "/v1/proxies", "", 400},
		{http.MethodPost, "/v1/leases", "/v1/leases", `{"target":"a.example","ttlSeconds":60}`, 201},
		{http.MethodPost, "/v1/leases", "/v1/leases", `{"target":"A"}`, 422},
		{http.MethodGet, "/v1/leases/" + id, "/v1/leases/{id}", "", 200},
		{http.MethodGet, "/v1/leases/x", "/v1/leases/{id}", "", 404},
		{http.MethodDelete, "/v1/leases/" + id, "/v1/leases/{id}", "", 204},
		{http.MethodPost, "/v1/leases/" + id + "/renew", "/v1/leases/{id}/renew", "", 200},
		{http.MethodPost, "/v1/leases/" + id + "/report", "/v1/leases/{id}/report", `{"result":"rate_limited","target":"a.example"}`, 204},
		{http.MethodPost, "/v1/leases/" + id + "/report", "/v1/leases/{id}/report", `{"result":"?"}`, 422},
		{http.MethodGet, "/openapi.json", "/openapi.json", "", 200},
	} {
		w := send(h, c.method, c.path, c.body)
		if w.Code != c.status {
			t.Fatalf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
		item := doc.Paths.Value(c.route)
		request := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
		request.Header.Set("Content-Type", "application/json")
		input := &openapi3filter.RequestValidationInput{
			Request:    request,
			PathParams: map[string]string{"id": id},
			Route:      &routers.Route{Spec: doc, Path: c.route, PathItem: item, Method: c.method, Operation: item.GetOperation(c.method)},
			Options:    &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, IncludeResponseStatus: true},
		}
		if c.status < 300 {
			if err := openapi3filter.ValidateRequest(t.Context(), input); err != nil {
				t.Errorf("%s %s is not as described: %v", c.method, c.path, err)
			}
		}
		answer := &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: w.Code, Header: w.Header(), Options: input.Options}
		answer.SetBodyBytes(w.Body.Bytes())
		if err := openapi3filter.ValidateResponse(t.Context(), answer); err != nil {
			t.Errorf("the answer %d of %s %s is not as described: %v", w.Code, c.method, c.path, err)
		}
	}
}

// Every code that the server uses is described, and no other.
func TestOpenAPIHasTheCodes(t *testing.T) {
	doc := loadOpenAPI(t)
	var described []string
	for _, v := range doc.Components.Schemas["Problem"].Value.Properties["code"].Value.Enum {
		described = append(described, v.(string))
	}
	want := []string{
		wire.CodeInvalidBody, wire.CodeInvalidHeader, wire.CodeInvalidQuery, wire.CodeUnauthorized, wire.CodeForbidden, wire.CodeNotFound, wire.CodeLeaseNotFound, wire.CodeMethodNotAllowed,
		wire.CodeKeyConsumed, wire.CodeLeaseEnded, wire.CodeBodyTooLarge, wire.CodeUnsupportedMediaType, wire.CodeInvalidField, wire.CodeKeyReused, wire.CodeHolderLimit, wire.CodeQueueFull,
		wire.CodeTooManyRequests, wire.CodeInternal, wire.CodeNoProxy, wire.CodeNotReady, wire.CodeOutcomeUnknown, wire.CodePolicyMissing, wire.CodeTooManyLeases, wire.CodeUnavailable,
	}
	if !slices.Equal(described, want) {
		t.Fatalf("described %v", described)
	}
}

// Every route answers with each status that is described for it, and with no other.
func TestOpenAPIHasTheStatusesOfEveryRoute(t *testing.T) {
	doc := loadOpenAPI(t)
	_, b, s := newServer(t)
	id, _ := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
	const large = maxBody + 1
	at := func(status int, code string) error {
		return &Error{Status: status, Code: code, Detail: "As the test wants it"}
	}
	// What the backend says about leases, about one lease, and always.
	always := []error{at(429, wire.CodeTooManyRequests), at(503, wire.CodeUnavailable), errors.New("unexpected")}
	ofOne := append([]error{at(410, wire.CodeLeaseEnded)}, always...)
	ofNew := append([]error{at(409, wire.CodeKeyConsumed), at(422, wire.CodeKeyReused)}, ofOne...)
	report := `{"result":"ok","target":"a.example"}`
	for _, c := range []struct {
		method, route, path, body string
		bodies                    []string // that are refused
		paths                     []string // that are refused
		says                      []error
	}{
		{http.MethodGet, "/v1/proxies", "/v1/proxies", "", nil, []string{"/v1/proxies?healthy=perhaps"}, always},
		{http.MethodPost, "/v1/leases", "/v1/leases", "{}", []string{"[", `{"ttlSeconds":1}`, strings.Repeat(" ", large)}, nil, ofNew},
		{http.MethodGet, "/v1/leases/{id}", "/v1/leases/" + id, "", nil, []string{"/v1/leases/x"}, ofOne},
		{http.MethodDelete, "/v1/leases/{id}", "/v1/leases/" + id, "", nil, []string{"/v1/leases/x"}, always},
		{http.MethodPost, "/v1/leases/{id}/renew", "/v1/leases/" + id + "/renew", "", []string{"[", strings.Repeat(" ", large)}, []string{"/v1/leases/x/renew"}, ofOne},
		{http.MethodPost, "/v1/leases/{id}/report", "/v1/leases/" + id + "/report", report, []string{"[", `{"result":"?"}`, strings.Repeat(" ", large)}, []string{"/v1/leases/x/report"}, ofOne},
		{http.MethodGet, "/openapi.json", "/openapi.json", "", nil, nil, nil},
	} {
		served := map[string]bool{}
		try := func(path, body string, header ...string) {
			served[strconv.Itoa(send(s.Handler(), c.method, path, body, header...).Code)] = true
		}
		b.err, s.Namespaces = nil, nil
		try(c.path, c.body)
		for _, path := range c.paths {
			try(path, c.body)
		}
		for _, body := range c.bodies {
			try(c.path, body)
		}
		if c.method == http.MethodPost {
			try(c.path, c.body, "Content-Type", "text/xml")
		}
		try(c.path, c.body, "Idempotency-Key", "replayed")
		try(c.path, c.body, "Authorization", "Bearer another")
		for _, err := range c.says {
			b.err = err
			try(c.path, c.body)
		}
		s.Namespaces = []string{"other"}
		try(c.path, c.body)
		described := map[string]bool{}
		for status := range doc.Paths.Value(c.route).GetOperation(c.method).Responses.Map() {
			described[status] = true
		}
		if !maps.Equal(served, described) {
			t.Errorf("%s %s: served %v, described %v", c.method, c.route, slices.Sorted(maps.Keys(served)), slices.Sorted(maps.Keys(described)))
		}
	}
}

// docs/api.md lists exactly the codes of the API, and the answer of each of its routes.
func TestDocsHaveTheCodesAndRoutes(t *testing.T) {
	data, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := loadOpenAPI(t)
	documented, described := map[string]bool{}, map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| [45]\\d\\d \\| `(\\w+)` \\|").FindAllStringSubmatch(string(data), -1) {
		documented[row[1]] = true
	}
	for _, v := range doc.Components.Schemas["Problem"].Value.Properties["code"].Value.Enum {
		described[v.(string)] = true
	}
	if !maps.Equal(documented, described) {
		t.Errorf("documented %v, described %v", slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(described)))
	}
	_, _, s := newServer(t)
	for route := range s.routes() {
		call := "`" + route.Method + " " + strings.ReplaceAll(route.Path, ":id", "{id}") + "`"
		if !strings.Contains(string(data), "| "+call+" |") {
			t.Errorf("docs/api.md has no row of %s", call)
		}
	}
}
