package health

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/probe"
)

var errExpired = &tls.CertificateVerificationError{Err: x509.CertificateInvalidError{Reason: x509.Expired}}

func managed(t *Target) { t.Managed = true }

func code(n int) probe.Result {
	r := probe.Result{Stage: probe.StageConnect, Code: n}
	return r
}

func TestAccessRestricted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		knock  func(probe.Knock) probe.Result
		change func(*Target)
		want   *bool
		reason string
	}{
		{"refuses everything", nil, nil, new(true), classify.ReasonForbiddenTargetsRefused},
		{"tunnels to its own loopback", func(k probe.Knock) probe.Result {
			if k.Authority == "127.0.0.1:3128" {
				return code(200)
			}
			return code(403)
		}, nil, new(false), classify.ReasonLoopbackReachable},
		{"tunnels to metadata", func(k probe.Knock) probe.Result {
			if k.Authority == "169.254.169.254:80" && !k.Plain {
				return code(200)
			}
			return code(403)
		}, nil, new(false), classify.ReasonMetadataReachable},
		{"serves metadata to plain requests", func(k probe.Knock) probe.Result {
			if k.Plain {
				return code(200)
			}
			return code(403)
		}, nil, new(false), classify.ReasonMetadataReachable},
		{"tried and failed", func(k probe.Knock) probe.Result { return code(503) }, nil, nil, classify.ReasonInconclusive},
		{"one yes outweighs what is unclear", func(k probe.Knock) probe.Result {
			if k.Plain {
				return code(200)
			}
			return code(503)
		}, nil, new(false), classify.ReasonMetadataReachable},
		{"asks strangers for credentials", func(k probe.Knock) probe.Result {
			if k.Credentials == nil {
				return code(407)
			}
			return code(403)
		}, func(x *Target) { x.RequireAuth = true }, new(true), classify.ReasonForbiddenTargetsRefused},
		{"serves strangers", func(k probe.Knock) probe.Result {
			if k.Credentials == nil && k.Authority == targetA {
				return code(200)
			}
			return code(403)
		}, func(x *Target) { x.RequireAuth = true }, new(false), classify.ReasonAnonymousAccess},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := &fakeProber{knock: tc.knock}
			inBubble(t, f, func(b *bench) {
				credentials, _ := NewCredentials("u", "p")
				x := proxy(0, managed, func(x *Target) { x.Credentials = credentials })
				if tc.change != nil {
					tc.change(&x)
				}
				b.Upsert(x)
				if v := b.verdict(0); v.AccessRestricted != nil || v.AccessReason != ReasonAccessNotProbed {
					t.Errorf("before: %+v", v)
				}
				b.pass(time.Second)
				v := b.verdict(0)
				if !ptr.Equal(v.AccessRestricted, tc.want) || v.AccessReason != tc.reason {
					t.Errorf("got %v %s, want %v %s", ptr.Deref(v.AccessRestricted, false), v.AccessReason, tc.want, tc.reason)
				}
				// Health and access become known with one wake.
				if got := b.takeWakes(); len(got) != 1 || !v.Healthy {
					t.Errorf("%d wakes, healthy %v", len(got), v.Healthy)
				}
			})
		})
	}
}

func TestAccessOfExternalProxiesIsNotJudged(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		b.pass(time.Hour)
		if v := b.verdict(0); v.AccessRestricted != nil || v.AccessReason != "" || f.asked() != 0 {
			t.Errorf("got %+v after %d knocks", v, f.asked())
		}
	})
}

// Asked at the first success and then rarely; an unclear answer changes nothing, a clear one does.
func TestAccessIsAskedRarely(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0, managed))
		b.pass(time.Second)
		perRound := f.asked()
		b.pass(100 * time.Minute)
		if rounds := f.asked() / perRound; rounds < 9 || rounds > 12 {
			t.Errorf("%d rounds in 100 periods", rounds)
		}
		f.setKnock(func(probe.Knock) probe.Result {
			return probe.Result{Stage: probe.StageConnect, Err: fmt.Errorf("reset")}
		})
		b.pass(15 * time.Minute)
		if v := b.verdict(0); v.AccessRestricted == nil || !*v.AccessRestricted {
			t.Errorf("unclear answers changed it: %+v", v)
		}
		f.setKnock(func(probe.Knock) probe.Result { return code(200) })
		b.pass(3 * time.Minute)
		if v := b.verdict(0); v.AccessRestricted == nil || *v.AccessRestricted || !v.Healthy {
			t.Errorf("opened: %+v", v)
		}
		f.setKnock(nil)
		b.pass(3 * time.Minute)
		if v := b.verdict(0); v.AccessRestricted == nil || !*v.AccessRestricted {
			t.Errorf("closed again: %+v", v)
		}
		if got := b.takeWakes(); len(got) != 3 {
			t.Errorf("%d wakes", len(got))
		}
	})
}

// Another instance starts unjudged; a proxy that does not work is not asked.
func TestAccessOfAnotherInstance(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0, managed))
		b.pass(time.Second)
		f.set(refused)
		before := f.asked()
		b.Upsert(proxy(0, managed, func(x *Target) { x.InstanceID = "new" }))
		if v := b.verdict(0); v.AccessRestricted != nil || v.Known {
			t.Errorf("got %+v", v)
		}
		b.pass(time.Minute)
		if f.asked() != before {
			t.Error("asked a proxy that does not work")
		}
	})
}

func TestAccessSurvivesARestart(t *testing.T) {
	f := &fakeProber{}
	inBubble(t, f, func(b *bench) {
		x := restored(0, managed)
		x.Initial.AccessRestricted, x.Initial.AccessReason = new(true), classify.ReasonForbiddenTargetsRefused
		b.Upsert(x)
		if v := b.verdict(0); v.AccessRestricted == nil || !*v.AccessRestricted {
			t.Errorf("got %+v", v)
		}
		b.pass(time.Hour)
		if got := b.takeWakes(); len(got) != 0 {
			t.Errorf("%d wakes", len(got))
		}
	})
}

func withBody(body string) func(probe.Request) probe.Result {
	return func(probe.Request) probe.Result {
		return probe.Result{Stage: probe.StageDone, Code: 200, Body: []byte(body)}
	}
}

func TestE44_EgressIP(t *testing.T) {
	f := &fakeProber{do: withBody("203.0.113.7\n")}
	inBubble(t, f, func(b *bench) {
		b.Upsert(proxy(0))
		b.pass(time.Second)
		if v := b.verdict(0); v.EgressIP != "203.0.113.7" {
			t.Errorf("got %q", v.EgressIP)
		}
		b.pass(20 * time.Minute)
		f.set(withBody(`{"ip": "::ffff:203.0.113.8"}`))
		b.pass(2 * time.Minute)
		if v := b.verdict(0); v.EgressIP != "203.0.113.8" {
			t.Errorf("after a change: %q", v.EgressIP)
		}
		if got := b.takeWakes(); len(got) != 2 {
			t.Errorf("%d wakes", len(got))
		}
		// Exits that rotate cost a write per ten minutes, not per probe.
		n := 0
		f.set(func(r probe.Request) probe.Result {
			n++
			return withBody(fmt.Sprintf("198.51.100.%d", n%250))(r)
		})
		b.pass(time.Hour)
		if got := b.takeWakes(); len(got) > 6 {
			t.Errorf("%d wakes in an hour of rotation", len(got))
		}
		f.set(withBody("<html>no address</html>"))
		before := b.verdict(0).EgressIP
		b.pass(time.Hour)
		if v := b.verdict(0); v.EgressIP != before || !v.Healthy {
			t.Errorf("got %+v", v)
		}
		b.Upsert(proxy(0, func(x *Target) { x.Check.ReportExitIP = false }))
		b.pass(time.Minute)
		if v := b.verdict(0); v.EgressIP != "" {
			t.Errorf("ignored, but still %q", v.EgressIP)
		}
	})
}

func TestParseExitIP(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1": "192.0.2.1", " 192.0.2.1\r\n": "192.0.2.1", "2001:db8::1": "2001:db8::1", `{"ip":"192.0.2.1","x":1}`: "192.0.2.1",
		"": "", "x": "", "0.0.0.0": "", "fe80::1%eth0": "", "{": "", `{"ip": 7}`: "", `{"other":"192.0.2.1"}`: "", "192.0.2.1 192.0.2.2": "",
	} {
		got, ok := parseExitIP([]byte(in))
		if ok != (want != "") || ok && got.String() != want {
			t.Errorf("%q: got %s, %v", in, got, ok)
		}
	}
}
