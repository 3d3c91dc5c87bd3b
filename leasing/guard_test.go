package leasing

import (
	"errors"
	"net/http"
	"testing"

	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

type guardOf struct {
	ok     bool
	reason string
}

func (g guardOf) Protected() (bool, string) { return g.ok, g.reason }

// Whatever the replica does otherwise, it grants nothing over HTTP as long as others could write grants.
func TestNothingIsGrantedWithoutThePolicy(t *testing.T) {
	for _, c := range []struct {
		guard        guardOf
		code, reason string
	}{
		{guardOf{}, wire.CodeNotReady, ""},
		{guardOf{reason: "PolicyNotFound"}, wire.CodePolicyMissing, "PolicyNotFound"},
	} {
		for _, r := range []role{follows, leads, recovers} {
			b := newBackend(t, true)
			b.Guard = c.guard
			b.role.Store(int32(r))
			var problem *httpapi.Error
			if _, _, err := b.Lease(t.Context(), httpapi.LeaseRequest{Namespace: "team", Key: "k"}); !errors.As(err, &problem) ||
				problem.Status != http.StatusServiceUnavailable || problem.Code != c.code || problem.Reason != c.reason || problem.RetryAfter <= 0 {
				t.Errorf("%+v, role %d: answered %v", c.guard, r, err)
			}
		}
	}
	b := newBackend(t, true)
	b.Guard = guardOf{ok: true}
	b.role.Store(int32(leads))
	var problem *httpapi.Error
	if _, _, err := b.Lease(t.Context(), httpapi.LeaseRequest{Namespace: "team"}); !errors.As(err, &problem) || problem.Code != wire.CodeNoProxy {
		t.Errorf("with the policy: answered %v", err)
	}
}
