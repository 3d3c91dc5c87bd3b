package httpapi

import (
	"net/http"
	"testing"

	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// The refusals that a newcomer meets say what to write instead.
func TestRefusedBodiesSayWhatToWrite(t *testing.T) {
	h, b, s := newServer(t)
	id, err := s.Signer.ID(Ref{Namespace: "default", Name: "l", UID: testUID})
	if err != nil {
		t.Fatal(err)
	}
	const lease, direct = "/v1/leases", `; labels go directly into selector, as in {"geo": "eu"}`
	report := lease + "/" + id + "/report"
	for _, c := range []struct{ path, body, code, field, detail string }{
		// Another way to write a selector.
		{lease, `{"selector":{"matchLabels":{"geo":"eu"}}}`, wire.CodeInvalidBody, "selector.matchLabels", "must be a string, not an object" + direct},
		{lease, `{"selector":{"matchExpressions":[]}}`, wire.CodeInvalidBody, "selector.matchExpressions", "must be a string, not a list" + direct},
		{lease, `{"selector":"geo=eu"}`, wire.CodeInvalidBody, "selector", "must be an object of strings, not a string" + direct},
		{lease, `{"selector":["geo"]}`, wire.CodeInvalidBody, "selector", "must be an object of strings, not a list" + direct},
		{lease, `{"selector":{"a":"b","tier":3}}`, wire.CodeInvalidBody, "selector.tier", "must be a string, not a number"},
		{lease, `{"selector":{"a":"b","c b":[]}}`, wire.CodeInvalidBody, "selector", "must be a string, not a list" + direct},
		// A value of the wrong type within a list, or instead of one.
		{lease, `{"targets":["a.example",{}]}`, wire.CodeInvalidBody, "targets[1]", "must be a string, not an object"},
		{lease, `{"exclude":[true]}`, wire.CodeInvalidBody, "exclude[0]", "must be a string, not true or false"},
		{lease, `{"targets":"a.example"}`, wire.CodeInvalidBody, "targets", "must be a list of strings, not a string"},
		{lease, `{"pool":{"name":"eu"}}`, wire.CodeInvalidBody, "pool", "must be a string, not an object"},
		{report, `{"result":["ok"],"target":"a.example"}`, wire.CodeInvalidBody, "result", "must be a string, not a list"},
		// Numbers.
		{lease, `{"ttlSeconds":"5m"}`, wire.CodeInvalidBody, "ttlSeconds", "must be a whole number of seconds from 10 to 86400, not a string"},
		{lease, `{"ttlSeconds":1e9}`, wire.CodeInvalidBody, "ttlSeconds", "must be a whole number of seconds from 10 to 86400, not 1e9"},
		{lease, `{"ttlSeconds":300.5}`, wire.CodeInvalidBody, "ttlSeconds", "must be a whole number of seconds from 10 to 86400, not 300.5"},
		{lease, `{"ttlSeconds":99999999999}`, wire.CodeInvalidBody, "ttlSeconds", "must be a whole number of seconds from 10 to 86400, not 99999999999"},
		{lease, `{"ttlSeconds":9}`, wire.CodeInvalidField, "ttlSeconds", "must be a whole number of seconds from 10 to 86400, not 9"},
		{lease, `{"waitSeconds":{}}`, wire.CodeInvalidBody, "waitSeconds", "must be a whole number of seconds from 0 to 300, not an object"},
		{lease, `{"waitSeconds":-1}`, wire.CodeInvalidField, "waitSeconds", "must be a whole number of seconds from 0 to 300, not -1"},
		{report, `{"result":"ok","target":"a.example","retryAfterSeconds":1e2}`, wire.CodeInvalidBody, "retryAfterSeconds", "must be a whole number of seconds from 0 to 604800, not 1e2"},
		{report, `{"result":"ok","target":"a.example","retryAfterSeconds":604801}`, wire.CodeInvalidField, "retryAfterSeconds", "must be a whole number of seconds from 0 to 604800, not 604801"},
		// What a shell makes of a variable that is not set.
		{lease, `{"target":""}`, wire.CodeInvalidField, "target", "must not be empty"},
		{lease, `{"pool":"" , "ttlSeconds":60}`, wire.CodeInvalidField, "pool", "must not be empty"},
		{lease, `{"proxy":""}`, wire.CodeInvalidField, "proxy", "must not be empty"},
		{lease, `{"namespace": ""}`, wire.CodeInvalidField, "namespace", "must not be empty"},
		{lease, `{"mode":""}`, wire.CodeInvalidField, "mode", "must not be empty"},
		{lease, `{"holder":""}`, wire.CodeInvalidField, "holder", "must not be empty"},
		{report, `{"result":"ok","target":""}`, wire.CodeInvalidField, "target", "must not be empty"},
		{report, `{"result":"","target":"a.example"}`, wire.CodeInvalidField, "result", "must not be empty"},
	} {
		w := send(h, http.MethodPost, c.path, c.body)
		if p := answerProblem(t, w.Body.String()); p.Code != c.code || p.Field != c.field || p.Detail != c.detail {
			t.Errorf("%s: %q %q %q\nwant %q %q %q", c.body, p.Code, p.Field, p.Detail, c.code, c.field, c.detail)
		}
	}
	if asked := b.take(); len(asked) != 0 {
		t.Fatalf("the backend was asked %v", asked)
	}
	// An empty label is a label.
	if w := send(h, http.MethodPost, lease, `{"selector":{"geo":""}}`); w.Code != http.StatusCreated {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}
