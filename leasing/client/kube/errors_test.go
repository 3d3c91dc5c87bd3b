package kube

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/client"
)

// A lease that failed because of a cooldown says when it ends, as the HTTP API does.
func TestAFailedLeaseSaysWhenToTryAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		for name, c := range map[string]struct {
			at   *metav1.MicroTime
			want time.Duration
		}{
			"not said": {nil, 0},
			"soon":     {new(metav1.NewMicroTime(now.Add(20 * time.Second))), 20 * time.Second},
			"late":     {new(metav1.NewMicroTime(now.Add(time.Hour))), time.Minute},
			"over":     {new(metav1.NewMicroTime(now.Add(-time.Hour))), time.Second},
		} {
			lease := &v1alpha1.ProxyLease{}
			lease.Status.Phase, lease.Status.RetryTime = v1alpha1.LeaseFailed, c.at
			if e, ok := errors.AsType[*client.Error](failed(lease)); !ok || e.RetryAfter != c.want {
				t.Errorf("%s: %v, want %s", name, e, c.want)
			}
		}
	})
}
