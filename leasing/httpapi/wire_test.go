package httpapi

import (
	"testing"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// The words of the HTTP API are those of the kinds.
func TestWireHasTheWordsOfTheKinds(t *testing.T) {
	for got, want := range map[string]string{
		wire.ModeShared:           string(v1alpha1.LeaseShared),
		wire.ModeExclusive:        string(v1alpha1.LeaseExclusive),
		wire.ResultRateLimited:    string(v1alpha1.ReportRateLimited),
		wire.ResultBanned:         string(v1alpha1.ReportBanned),
		wire.ResultFailed:         string(v1alpha1.ReportFailed),
		wire.ResultOK:             string(v1alpha1.ReportOK),
		wire.ReasonExpired:        v1alpha1.ReasonExpired,
		wire.ReasonProxyReplaced:  v1alpha1.ReasonProxyReplaced,
		wire.ReasonProxyDeleted:   v1alpha1.ReasonProxyDeleted,
		wire.ReasonProxyUnhealthy: v1alpha1.ReasonProxyUnhealthy,
		wire.ReasonDrainDeadline:  v1alpha1.ReasonDrainDeadline,
		wire.ReasonConflict:       v1alpha1.ReasonConflict,
	} {
		if got != want {
			t.Errorf("%q and %q mean the same", got, want)
		}
	}
}
