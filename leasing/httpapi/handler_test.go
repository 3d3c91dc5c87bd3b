package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// answerProblem reads an error answer.
func answerProblem(t *testing.T, body string) wire.Problem {
	t.Helper()
	var p wire.Problem
	if err := json.Unmarshal([]byte(body), &p); err != nil {
		t.Fatalf("%q is not a problem: %v", body, err)
	}
	return p
}

func TestH10_BadLeaseRequestsNameTheFieldAndDoNothing(t *testing.T) {
	h, b, _ := newServer(t)
	long := strings.Repeat("a", 300)
	list := func(n int, format string) string {
		items := make([]string, n)
		for i := range items {
			items[i] = fmt.Sprintf("%q", fmt.Sprintf(format, i))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	for name, c := range map[string]struct {
		body   string
		status int
		field  string
		header []string
	}{
		"empty":                    {"", 400, "", nil},
		"blank":                    {" \n ", 400, "", nil},
		"not JSON":                 {`{"pool":`, 400, "", nil},
		"two values":               {`{} {}`, 400, "", nil},
		"a list":                   {`[]`, 400, "", nil},
		"a string":                 {`"x"`, 400, "", nil},
		"null":                     {`null`, 400, "", nil},
		"not UTF-8":                {"{\"holder\":\"\xff\"}", 400, "", nil},
		"unknown field":            {`{"ttl":300}`, 400, "ttl", nil},
		"other case":               {`{"ttlseconds":300}`, 400, "ttlseconds", nil},
		"repeated field":           {`{"pool":"a","pool":"b"}`, 400, "pool", nil},
		"number for a string":      {`{"pool":7}`, 400, "pool", nil},
		"string for a number":      {`{"ttlSeconds":"300"}`, 400, "ttlSeconds", nil},
		"fraction":                 {`{"ttlSeconds":10.5}`, 400, "ttlSeconds", nil},
		"overflow":                 {`{"ttlSeconds":99999999999999999999}`, 400, "ttlSeconds", nil},
		"exponent":                 {`{"ttlSeconds":1e400}`, 400, "ttlSeconds", nil},
		"object for a list":        {`{"targets":{}}`, 400, "targets", nil},
		"number in a list":         {`{"targets":["a.example",1]}`, 400, "targets[1]", nil},
		"nested selector":          {`{"selector":{"geo":{"in":["eu"]}}}`, 400, "selector.geo", nil},
		"deeply nested":            {strings.Repeat(`{"selector":`, 2000) + "1" + strings.Repeat("}", 2000), 400, "selector.selector", nil},
		"large":                    {`{"holder":"` + strings.Repeat("a", maxBody) + `"}`, 413, "", nil},
		"another media type":       {`{}`, 415, "Content-Type", []string{"Content-Type", "text/xml"}},
		"malformed media type":     {`{}`, 415, "Content-Type", []string{"Content-Type", ";;"}},
		"another charset":          {`{}`, 415, "Content-Type", []string{"Content-Type", "application/json; charset=utf-16"}},
		"compressed":               {`{}`, 415, "Content-Encoding", []string{"Content-Encoding", "gzip"}},
		"TTL zero":                 {`{"ttlSeconds":0}`, 422, "ttlSeconds", nil},
		"TTL negative":             {`{"ttlSeconds":-1}`, 422, "ttlSeconds", nil},
		"TTL too short":            {`{"ttlSeconds":9}`, 422, "ttlSeconds", nil},
		"TTL too long":             {`{"ttlSeconds":86401}`, 422, "ttlSeconds", nil},
		"wait negative":            {`{"waitSeconds":-1}`, 422, "waitSeconds", nil},
		"wait too long":            {`{"waitSeconds":301}`, 422, "waitSeconds", nil},
		"mode":                     {`{"mode":"exclusive"}`, 422, "mode", nil},
		"target with port":         {`{"target":"a.example:443"}`, 422, "target", nil},
		"target with scheme":       {`{"target":"https://a.example"}`, 422, "target", nil},
		"target with path":         {`{"target":"a.example/x"}`, 422, "target", nil},
		"target in upper case":     {`{"target":"A.example"}`, 422, "target", nil},
		"target IDN":               {`{"target":"bücher.example"}`, 422, "target", nil},
		"target CRLF":              {`{"target":"a.example\r\nx"}`, 422, "target", nil},
		"target NUL":               {`{"target":"a\u0000b"}`, 422, "target", nil},
		"target blank":             {`{"target":" "}`, 422, "target", nil},
		"target trailing dot":      {`{"target":"a.example."}`, 422, "target", nil},
		"target bracketed address": {`{"target":"[2001:db8::1]"}`, 422, "target", nil},
		"target mapped address":    {`{"target":"::ffff:192.0.2.1"}`, 422, "target", nil},
		"target long address":      {`{"target":"2001:db8:0:0:0:0:0:1"}`, 422, "target", nil},
		"target with zone":         {`{"target":"fe80::1%eth0"}`, 422, "target", nil},
		"target wildcard":          {`{"target":"*.example"}`, 422, "target", nil},
		"target long":              {`{"target":"` + long + `"}`, 422, "target", nil},
		"second target":            {`{"targets":["a.example","b.example:80"]}`, 422, "targets[1]", nil},
		"target beside targets":    {`{"target":"a.example","targets":["B"]}`, 422, "targets[0]", nil},
		"empty target in a list":   {`{"targets":[""]}`, 422, "targets[0]", nil},
		"too many targets":         {`{"targets":` + list(17, "t%d.example") + `}`, 422, "targets", nil},
		"namespace":                {`{"namespace":"Not_One"}`, 422, "namespace", nil},
		"namespace with dots":      {`{"namespace":"a.b"}`, 422, "namespace", nil},
		"selector key":             {`{"selector":{"a b":"c"}}`, 422, "selector", nil},
		"selector value":           {`{"selector":{"geo":"e u"}}`, 422, "selector.geo", nil},
		"pool":                     {`{"pool":"Not_One"}`, 422, "pool", nil},
		"pool name too long":       {`{"pool":"` + strings.Repeat("a", 41) + `"}`, 422, "pool", nil},
		"proxy":                    {`{"proxy":"a/b/c"}`, 422, "proxy", nil},
		"proxy elsewhere":          {`{"proxy":"other/p"}`, 422, "proxy", nil},
		"proxy and pool":           {`{"proxy":"p","pool":"q"}`, 422, "proxy", nil},
		"proxy and selector":       {`{"proxy":"p","selector":{"geo":"eu"}}`, 422, "proxy", nil},
		"holder control":           {`{"holder":"a\nb"}`, 422, "holder", nil},
		"holder next line":         {"{\"holder\":\"a\u0085b\"}", 422, "holder", nil},
		"holder right to left":     {"{\"holder\":\"a\u202eb\"}", 422, "holder", nil},
		"selector null":            {`{"selector":{"geo":null}}`, 400, "selector.geo", nil},
		"pool twice":               {`{"selector":{"crawl.example.com/pool":"a"},"pool":"b"}`, 422, "pool", nil},
		"two content types":        {`{}`, 415, "Content-Type", []string{"Content-Type", "application/json", "Content-Type", "text/plain"}},
		"holder long":              {`{"holder":"` + long + `"}`, 422, "holder", nil},
		"exclude":                  {`{"exclude":["ok","Not_One"]}`, 422, "exclude[1]", nil},
		"exclude elsewhere":        {`{"exclude":["other/p"]}`, 422, "exclude[0]", nil},
		"too many excluded":        {`{"exclude":` + list(33, "p%d") + `}`, 422, "exclude", nil},
		"key empty":                {`{}`, 400, "Idempotency-Key", []string{"Idempotency-Key", ""}},
		"key long":                 {`{}`, 400, "Idempotency-Key", []string{"Idempotency-Key", long}},
		"key with a space":         {`{}`, 400, "Idempotency-Key", []string{"Idempotency-Key", "a b"}},
		"key twice":                {`{}`, 400, "Idempotency-Key", []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := send(h, http.MethodPost, "/v1/leases", c.body, c.header...)
			p := answerProblem(t, w.Body.String())
			if w.Code != c.status || p.Field != c.field || p.Code == "" || p.Detail == "" || w.Header().Get("Content-Type") != "application/problem+json" {
				t.Fatalf("%d %s, want %d and field %q", w.Code, w.Body, c.status, c.field)
			}
			if asked := b.take(); len(asked) != 0 {
				t.Fatalf("the backend was asked %v", asked)
			}
		})
	}
}

func TestH10_BadReports(t *testing.T) {
	h, b, s := newServer(t)
	id, err := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		body   string
		status int
		field  string
	}{
		"no result":            {`{"target":"a.example"}`, 422, "result"},
		"unknown result":       {`{"result":"slow","target":"a.example"}`, 422, "result"},
		"no target":            {`{"result":"ok"}`, 422, "target"},
		"bad target":           {`{"result":"ok","target":"A.example:80"}`, 422, "target"},
		"negative retry":       {`{"result":"ok","target":"a.example","retryAfterSeconds":-1}`, 422, "retryAfterSeconds"},
		"endless retry":        {`{"result":"ok","target":"a.example","retryAfterSeconds":2000000000}`, 422, "retryAfterSeconds"},
		"overflowing retry":    {`{"result":"ok","target":"a.example","retryAfterSeconds":4000000000}`, 400, "retryAfterSeconds"},
		"unknown field":        {`{"result":"ok","target":"a.example","until":"tomorrow"}`, 400, "until"},
		"number for a result":  {`{"result":1,"target":"a.example"}`, 400, "result"},
		"large":                {`{"result":"` + strings.Repeat("a", maxBody) + `"}`, 413, ""},
		"nothing":              {``, 400, ""},
		"a body that is a lie": {`{"result":"ok"`, 400, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := send(h, http.MethodPost, "/v1/leases/"+id+"/report", c.body)
			if p := answerProblem(t, w.Body.String()); w.Code != c.status || p.Field != c.field {
				t.Fatalf("%d %s, want %d and field %q", w.Code, w.Body, c.status, c.field)
			}
			if asked := b.take(); len(asked) != 0 {
				t.Fatalf("the backend was asked %v", asked)
			}
		})
	}
	if w := send(h, http.MethodPost, "/v1/leases/"+id+"/renew", `{"ttlSeconds":5}`); w.Code != 400 {
		t.Fatalf("renew with a body: %d", w.Code)
	}
}

func TestBadQueriesNameTheKey(t *testing.T) {
	h, b, _ := newServer(t)
	for query, field := range map[string]string{
		"healthy=maybe": "healthy", "format=xml": "format", "target=A.example": "target", "namespace=Not_One": "namespace",
		"labelSelector=%3D%3D": "labelSelector", "geo=e%20u": "geo", "a%20b=c": "a b", "geo=eu&geo=us": "geo", "pool=": "pool", "%zz": "",
		"healthy=": "healthy", "healthy=1": "healthy", "healthy=T": "healthy",
	} {
		w := send(h, http.MethodGet, "/v1/proxies?"+query, "")
		if p := answerProblem(t, w.Body.String()); w.Code != 400 || p.Code != wire.CodeInvalidQuery || p.Field != field {
			t.Errorf("%s: %d %s, want field %q", query, w.Code, w.Body, field)
		}
	}
	if asked := b.take(); len(asked) != 0 {
		t.Fatalf("the backend was asked %v", asked)
	}
}

func TestLeaseRequestIsTranslated(t *testing.T) {
	h, b, _ := newServer(t)
	body := `{"namespace":"team","selector":{"geo":"eu","example.com/tier":"a"},"pool":"demo","target":"b.example","targets":["a.example","b.example","192.0.2.7","2001:db8::1"],
		"ttlSeconds":60,"mode":"Exclusive","holder":"crawler-7","waitSeconds":30,"exclude":["p1","team/p2","p1"]}`
	w := send(h, http.MethodPost, "/v1/leases", body, "Idempotency-Key", "k-1", "Content-Type", "application/json; charset=UTF-8")
	if w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	want := []any{LeaseRequest{
		Namespace: "team", Selector: map[string]string{"geo": "eu", "example.com/tier": "a"}, Pool: "demo",
		Targets: []string{"192.0.2.7", "2001:db8::1", "a.example", "b.example"}, TTLSeconds: 60, Mode: v1alpha1.LeaseExclusive,
		Identity: "token", Holder: "token/crawler-7", Wait: 30 * time.Second, Exclude: []string{"p1", "p2"}, Key: "k-1",
	}}
	if diff := cmp.Diff(want, b.take()); diff != "" {
		t.Fatal(diff)
	}
}

// What curl -d sends by itself works: the content type of a form, no namespace, no holder.
func TestCurlsDefaultsWork(t *testing.T) {
	h, b, _ := newServer(t)
	w := send(h, http.MethodPost, "/v1/leases", `{"selector":{"geo":"local"},"ttlSeconds":300}`, "Content-Type", "application/x-www-form-urlencoded")
	if w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if got := b.take()[0].(LeaseRequest); got.Namespace != "default" || got.Holder != "token" || got.Mode != v1alpha1.LeaseShared {
		t.Fatalf("asked %+v", got)
	}
	var answer map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	proxy := answer["proxy"].(map[string]any)
	if proxy["id"] != "default/p" || proxy["ip"] != "192.0.2.1" || proxy["port"] != 3128.0 || proxy["username"] != "user" || proxy["password"] != "secret" ||
		answer["expiresAt"] != "2030-01-02T03:04:05.000678Z" {
		t.Fatalf("answered %s", w.Body)
	}
	if w := send(h, http.MethodPost, "/v1/leases", `{}`, "Idempotency-Key", "replayed"); w.Code != http.StatusOK {
		t.Fatalf("a replay is answered by %d", w.Code)
	}
}

func TestListQueryIsTranslated(t *testing.T) {
	h, b, _ := newServer(t)
	w := send(h, http.MethodGet, "/v1/proxies?healthy=true&geo=eu&pool=demo&namespace=team&target=a.example&labelSelector=tier+in+(a,b)", "")
	if w.Code != 200 || strings.Contains(w.Body.String(), "password") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	q := b.take()[0].(ListQuery)
	for set, want := range map[string]bool{
		"geo=eu,crawl.example.com/pool=demo,tier=a": true, "geo=us,crawl.example.com/pool=demo,tier=a": false,
		"geo=eu,crawl.example.com/pool=x,tier=a": false, "geo=eu,crawl.example.com/pool=demo,tier=c": false,
	} {
		parsed, err := labels.ConvertSelectorToLabelsMap(set)
		if err != nil {
			t.Fatal(err)
		}
		if q.Selector.Matches(parsed) != want {
			t.Errorf("%s matches %s: want %v", q.Selector, set, want)
		}
	}
	if q.Namespace != "team" || q.Target != "a.example" || q.Healthy == nil || !*q.Healthy {
		t.Fatalf("asked %+v", q)
	}
	w = send(h, http.MethodGet, "/v1/proxies?format=txt", "")
	if w.Body.String() != "http://192.0.2.1:3128\n" || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/plain") {
		t.Fatalf("%s %q", w.Header(), w.Body)
	}
}

func TestErrorsOfTheBackend(t *testing.T) {
	h, b, s := newServer(t)
	id, _ := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
	b.err = &Error{Status: 503, Code: wire.CodeNoProxy, Reason: "Cooling", Detail: "All cool", RetryAfter: 1500 * time.Millisecond}
	w := send(h, http.MethodPost, "/v1/leases", `{}`)
	if p := answerProblem(t, w.Body.String()); w.Code != 503 || w.Header().Get("Retry-After") != "2" || p.Reason != "Cooling" || p.RetryAfterSeconds != 2 {
		t.Fatalf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	b.err = errors.New("password=hunter2")
	w = send(h, http.MethodGet, "/v1/leases/"+id, "")
	if w.Code != 500 || strings.Contains(w.Body.String(), "hunter2") {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	b.err, b.panics = nil, true
	if w = send(h, http.MethodGet, "/v1/leases/"+id, ""); w.Code != 500 || answerProblem(t, w.Body.String()).Code != wire.CodeInternal {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

func TestUnknownPathsAndMethods(t *testing.T) {
	h, b, _ := newServer(t)
	for _, c := range []struct {
		method, path string
		status       int
		code         string
	}{
		{http.MethodGet, "/", 404, wire.CodeNotFound},
		{http.MethodGet, "/v1/proxies/", 404, wire.CodeNotFound},
		{http.MethodGet, "/V1/proxies", 404, wire.CodeNotFound},
		{http.MethodGet, "/v1//leases", 404, wire.CodeNotFound},
		{http.MethodPost, "/v1/leases/x/unknown", 404, wire.CodeNotFound},
		{http.MethodPut, "/v1/leases", 405, wire.CodeMethodNotAllowed},
		{http.MethodOptions, "/v1/leases", 405, wire.CodeMethodNotAllowed},
		{http.MethodPatch, "/v1/leases/x", 405, wire.CodeMethodNotAllowed},
	} {
		w := send(h, c.method, c.path, "")
		if p := answerProblem(t, w.Body.String()); w.Code != c.status || p.Code != c.code {
			t.Errorf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
		if c.status == 405 && w.Header().Get("Allow") == "" {
			t.Errorf("%s %s: no Allow header", c.method, c.path)
		}
	}
	if asked := b.take(); len(asked) != 0 {
		t.Fatalf("the backend was asked %v", asked)
	}
}

func TestNamespacesThatAreNotServedAreRefused(t *testing.T) {
	_, b, s := newServer(t)
	s.Namespaces = []string{"default"}
	h := s.Handler()
	for _, w := range []int{
		send(h, http.MethodPost, "/v1/leases", `{"namespace":"other"}`).Code,
		send(h, http.MethodGet, "/v1/proxies?namespace=other", "").Code,
	} {
		if w != 403 {
			t.Fatalf("answered %d", w)
		}
	}
	if asked := b.take(); len(asked) != 0 {
		t.Fatalf("the backend was asked %v", asked)
	}
}

func TestNothingIsPromisedBeforeTheSigningKeyIsThere(t *testing.T) {
	_, b, s := newServer(t)
	s.Signer = &Signer{}
	h := s.Handler()
	for _, call := range [][2]string{{http.MethodPost, "/v1/leases"}, {http.MethodGet, "/v1/leases/x"}, {http.MethodDelete, "/v1/leases/x"}} {
		if w := send(h, call[0], call[1], "{}"); w.Code != 503 || w.Header().Get("Retry-After") == "" {
			t.Fatalf("%v: %d", call, w.Code)
		}
	}
	if asked := b.take(); len(asked) != 0 {
		t.Fatalf("the backend was asked %v", asked)
	}
}

// A request never makes the handler panic or answer 5xx by itself, whatever it is.
func FuzzRequests(f *testing.F) {
	h, _, s := newServer(f)
	id, _ := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
	f.Add("POST", "/v1/leases", `{"target":"a.example"}`)
	f.Add("POST", "/v1/leases/"+id+"/report", `{"result":"ok","target":"a.example"}`)
	f.Add("GET", "/v1/proxies?geo=eu", ``)
	f.Add("DELETE", "/v1/leases/"+id, ``)
	f.Fuzz(func(t *testing.T, method, path, body string) {
		if r, err := http.NewRequest(method, "http://x"+path, nil); err != nil || r.URL.Host != "x" || !strings.HasPrefix(path, "/") || strings.ContainsAny(path, " \r\n\t") {
			t.Skip()
		}
		defer func() {
			if p := recover(); p != nil && !strings.Contains(fmt.Sprint(p), "invalid NewRequest arguments") {
				panic(p)
			}
		}()
		if w := send(h, method, path, body); w.Code >= 500 {
			t.Fatalf("%s %s: %d %s", method, path, w.Code, w.Body)
		}
	})
}
