package leasing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/leasing/httpapi"
	"crawl.example.com/egress-proxies-operator/leasing/internal/fixture"
	"crawl.example.com/egress-proxies-operator/leasing/wire"
)

// cools makes a proxy rest for a target.
func cools(target string, until time.Time) func(*v1alpha1.Proxy) {
	return func(px *v1alpha1.Proxy) {
		px.Status.Cooldowns = []v1alpha1.Cooldown{{Target: target, UntilTime: &metav1.Time{Time: until}, InstanceID: px.Status.Instance.ID, Hits: 1}}
	}
}

// Which replica a caller has reached makes no difference to what it is told, nor does it whether the lease was asked for by an
// object.
func TestRefusalsAreTheSameAtEveryReplicaAndByObject(t *testing.T) {
	kind := func(change func(r *httpapi.LeaseRequest)) httpapi.LeaseRequest {
		r := httpapi.LeaseRequest{Namespace: "team", Mode: v1alpha1.LeaseShared, Identity: "h", Holder: "h"}
		change(&r)
		return r
	}
	for name, c := range map[string]struct {
		request httpapi.LeaseRequest
		want    httpapi.Error
		// ends is the moment that RetryAfter means, from when the world began; 0: RetryAfter is always the same.
		ends time.Duration
	}{
		"cooling": {
			request: kind(func(r *httpapi.LeaseRequest) {
				r.Selector, r.Targets = map[string]string{"geo": "cool"}, []string{"shop.example"}
			}),
			want: httpapi.Error{Reason: v1alpha1.ReasonCooling, Detail: "All 2 matching proxies that take leases cool down for a target"},
			ends: 40 * time.Second,
		},
		"cooling for long": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Proxy, r.Targets = "cool-long", []string{"shop.example"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonCooling, Detail: "Proxy cool-long cools down for a target", RetryAfter: wire.MaxNoProxyRetry},
		},
		"at capacity, and one cools": {
			request: kind(func(r *httpapi.LeaseRequest) {
				r.Selector, r.Targets = map[string]string{"tier": "mixed"}, []string{"shop.example"}
			}),
			want: httpapi.Error{Reason: v1alpha1.ReasonAtCapacity, Detail: "None of 2 matching proxies that take leases is free"},
			ends: 40 * time.Second,
		},
		"at capacity": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Selector = map[string]string{"geo": "busy"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonAtCapacity, Detail: "None of 1 matching proxies that take leases is free"},
		},
		"pinned": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Proxy = "busy" }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonPinnedBusy, Detail: "Proxy busy is not free"},
		},
		"closed": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Selector = map[string]string{"geo": "closed"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonNoProxy, Detail: "The only matching proxy takes no leases: LeasingDisabled"},
		},
		"no label matches": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Selector = map[string]string{"tier": "x", "geo": "nowhere"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonNoProxy, Detail: "No Proxy in namespace team has geo=nowhere,tier=x"},
		},
		"all are excluded": {
			request: kind(func(r *httpapi.LeaseRequest) {
				r.Selector, r.Exclude = map[string]string{"geo": "busy"}, []string{"busy"}
			}),
			want: httpapi.Error{Reason: v1alpha1.ReasonNoProxy, Detail: "No Proxy in namespace team has geo=busy, but for those that are excluded"},
		},
		"no such proxy": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Proxy = "nosuch" }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonProxyNotFound, Detail: "Proxy nosuch does not exist"},
		},
		"no such pool": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Pool = "nosuch" }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonPoolNotFound, Detail: "ProxyPool nosuch does not exist"},
		},
		"no such pool, and labels": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Pool, r.Selector = "nosuch", map[string]string{"geo": "busy"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonPoolNotFound, Detail: "ProxyPool nosuch does not exist"},
		},
		"pool without proxies": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Pool = "empty" }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonNoProxy, Detail: "No Proxy in namespace team is of pool empty"},
		},
		"pool without such proxies": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Pool, r.Selector = "empty", map[string]string{"geo": "busy"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonNoProxy, Detail: "No Proxy in namespace team is of pool empty and has geo=busy"},
		},
		"namespace without proxies": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Namespace = "other" }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonNoProxy, Detail: "There is no Proxy in namespace other"},
		},
		"no such namespace": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Namespace = "nosuch" }),
			want:    httpapi.Error{Status: 422, Code: wire.CodeInvalidField, Field: "namespace", Detail: "The namespace does not exist, or not for long"},
		},
		"credentials that cannot be read": {
			request: kind(func(r *httpapi.LeaseRequest) { r.Selector = map[string]string{"geo": "locked"} }),
			want:    httpapi.Error{Reason: v1alpha1.ReasonCredentialsNotFound, Detail: "The credentials of the proxy cannot be read"},
		},
	} {
		for _, wait := range []time.Duration{0, 3 * time.Second} {
			t.Run(fmt.Sprint(name, "/wait ", wait), func(t *testing.T) {
				story(t, func(t *testing.T, w *simWorld) {
					began := time.Now()
					in := func(labels ...string) func(*v1alpha1.Proxy) {
						set := map[string]string{}
						for i := 0; i < len(labels); i += 2 {
							set[labels[i]] = labels[i+1]
						}
						return fixture.Labels(set)
					}
					for _, px := range []*v1alpha1.Proxy{
						fixture.Proxy("team", "cool-a", in("geo", "cool"), cools("shop.example", began.Add(40*time.Second))),
						fixture.Proxy("team", "cool-b", in("geo", "cool"), cools("shop.example", began.Add(50*time.Second))),
						fixture.Proxy("team", "cool-long", in(), cools("shop.example", began.Add(time.Hour))),
						fixture.Proxy("team", "busy", in("geo", "busy", "tier", "mixed"), fixture.Capacity(1)),
						fixture.Proxy("team", "cool-c", in("tier", "mixed"), cools("shop.example", began.Add(40*time.Second))),
						fixture.Proxy("team", "closed", in("geo", "closed"), func(px *v1alpha1.Proxy) { px.Spec.Leasing = v1alpha1.LeasingDisabled }),
						fixture.Proxy("team", "locked", in("geo", "locked"), func(px *v1alpha1.Proxy) {
							px.Spec.CredentialsSecretRef = &v1alpha1.LocalSecretRef{Name: "nosuch"}
						}),
					} {
						_ = w.api.create(px)
					}
					_ = w.api.create(&v1alpha1.ProxyPool{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "empty"}})
					leader, follower, asking := w.reign(t, "one"), w.replica("other"), w.replica("asking")
					follower.backend.Leader, asking.backend.Leader = nil, &simPeer{proc: asking}
					_ = pause(t.Context(), 5*time.Second)
					if _, _, err := leader.backend.Lease(t.Context(), kind(func(r *httpapi.LeaseRequest) { r.Proxy, r.Key = "busy", "busy" })); err != nil {
						t.Fatal(err)
					}
					c.request.Wait = wait
					c.want.Status, c.want.Code = cmp.Or(c.want.Status, 503), cmp.Or(c.want.Code, wire.CodeNoProxy)
					if c.want.RetryAfter == 0 && c.want.Status == 503 {
						c.want.RetryAfter = noProxyRetry
					}
					for _, p := range []*simProcess{leader, follower, asking} {
						asked := time.Now()
						_, _, err := p.backend.Lease(t.Context(), c.request)
						told, ok := errors.AsType[*httpapi.Error](err)
						if !ok {
							t.Fatalf("%s: %v", p.name, err)
						}
						want := c.want
						if c.ends > 0 {
							want.RetryAfter = time.Until(began.Add(c.ends))
							if late := told.RetryAfter - want.RetryAfter; late > 0 && late < 10*time.Millisecond { // on its way
								want.RetryAfter = told.RetryAfter
							}
						}
						if *told != want {
							t.Errorf("%s answered\n%+v, want\n%+v", p.name, *told, want)
						}
						if took := time.Since(asked); c.want.Status == 503 && c.want.Reason != v1alpha1.ReasonCredentialsNotFound && (took < wait || took > wait+time.Second) {
							t.Errorf("%s answered after %s", p.name, took)
						}
					}
					if left := w.leasesStored(); len(left) > 1 { // the one that keeps a proxy busy
						t.Errorf("%v is left behind", left)
					}
				})
			})
		}
	}
}

// leasesStored are the names of all leases.
func (w *simWorld) leasesStored() (names []string) {
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	for id := range w.api.objects {
		if id.kind == "ProxyLease" {
			names = append(names, id.key.Name)
		}
	}
	return names
}

// The object of a lease that has waited in vain says why in the words that it would have been refused with by HTTP.
func TestALeaseThatFailedSaysWhatItWaitedFor(t *testing.T) {
	story(t, func(t *testing.T, w *simWorld) {
		ends := time.Now().Add(40 * time.Second)
		_ = w.api.create(fixture.Proxy("team", "cool", fixture.Labels(map[string]string{"geo": "cool"}), cools("shop.example", ends)))
		w.reign(t, "one")
		for name, want := range map[string]struct {
			change  func(l *v1alpha1.ProxyLease)
			reason  string
			message string
			retry   bool
		}{
			"cooling": {func(l *v1alpha1.ProxyLease) {
				l.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"geo": "cool"}}
				l.Spec.Targets = []string{"shop.example"}
			}, v1alpha1.ReasonCooling, "All 1 matching proxies that take leases cool down for a target", true},
			"no-pool": {func(l *v1alpha1.ProxyLease) {
				l.Spec.Selector, l.Spec.PoolRef = nil, &v1alpha1.LocalRef{Name: "nosuch"}
			}, v1alpha1.ReasonPoolNotFound, "ProxyPool nosuch does not exist", false},
			"no-label": {func(l *v1alpha1.ProxyLease) {
				l.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "geo", Operator: metav1.LabelSelectorOpIn, Values: []string{"us", "jp"}}}}
			}, v1alpha1.ReasonNoProxy, "No Proxy in namespace team has geo in (jp,us)", false},
		} {
			for _, wait := range []int32{0, 3} {
				lease := fixture.Lease("team", fmt.Sprint(name, wait), want.change, func(l *v1alpha1.ProxyLease) { l.Spec.WaitSeconds = &wait })
				_ = w.api.create(lease)
				eventually(t, "it fails", func() bool { return w.stored(lease.Name).Status.Phase == v1alpha1.LeaseFailed })
				told := endedBy(w.stored(lease.Name))
				retry := w.stored(lease.Name).Status.RetryTime
				if told.Reason != want.reason || told.Detail != want.message || want.retry != (retry != nil) || retry != nil && !retry.Time.Equal(ends) {
					t.Errorf("%s: %+v, retry at %v", lease.Name, told, retry)
				}
			}
		}
		_ = pause(context.Background(), time.Second)
	})
}
