package health

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/controllers/health/classify"
	"crawl.example.com/egress-proxies-operator/controllers/health/proxyzoo"
)

type check = v1alpha1.HealthCheck

func mustDefaults(t *testing.T) Defaults {
	t.Helper()
	d, err := NewDefaults(nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestResolveSettings_Defaults(t *testing.T) {
	got, err := ResolveSettings(nil, nil, mustDefaults(t))
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Targets: []TargetSettings{
			{TargetKey: TargetKey{URL: DefaultTargetURLs[0], SystemRoots: true}},
			{TargetKey: TargetKey{URL: DefaultTargetURLs[1], SystemRoots: true}},
		},
		Period: time.Minute, Timeout: 10 * time.Second, FastPeriod: 5 * time.Second, UnhealthyPeriodMax: 5 * time.Minute,
		FailureThreshold: 3, SuccessThreshold: 2, MaxBodyBytes: 65536, ReportExitIP: true,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Each field comes from the proxy, else from its class, else from the flags.
func TestResolveSettings_Fallback(t *testing.T) {
	ca := proxyzoo.NewCA(t, "ca").PEM()
	flags := mustDefaults(t)
	flags.Check.FailureThreshold = new(int32(7))
	flags.Check.SuccessThreshold = new(int32(7))
	class := &check{
		PeriodSeconds: new(int32(30)), FailureThreshold: new(int32(5)), ExitIP: &v1alpha1.ExitIP{Mode: "Ignore"},
		Targets: []v1alpha1.ProbeTarget{{URL: "https://class.example/", CABundle: ca, Owned: new(true), Expect: &v1alpha1.ProbeExpect{
			Statuses: []int32{204}, Strict: new(true), Nonce: new(true), BodyContains: "x",
		}}},
	}
	proxy := &check{PeriodSeconds: new(int32(20)), MaxBodyBytes: new(int32(100))}
	got, err := ResolveSettings(proxy, class, flags)
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Targets: []TargetSettings{{
			TargetKey: TargetKey{URL: "https://class.example/", CABundle: ca, Owned: true, Nonce: true},
			Expect:    classify.Expect{Strict: true, Statuses: []int32{204}, BodyContains: "x"},
		}},
		Period: 20 * time.Second, Timeout: 10 * time.Second, FastPeriod: 5 * time.Second, UnhealthyPeriodMax: 5 * time.Minute,
		FailureThreshold: 5, SuccessThreshold: 7, MaxBodyBytes: 100,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestResolveSettings_Mode(t *testing.T) {
	for _, tc := range []struct {
		proxy, class v1alpha1.HealthCheckMode
		disabled     bool
	}{
		{"", "", false}, {"Disabled", "", true}, {"", "Disabled", true}, {"Enabled", "Disabled", false}, {"Disabled", "Enabled", true},
	} {
		got, err := ResolveSettings(&check{Mode: tc.proxy}, &check{Mode: tc.class}, mustDefaults(t))
		if err != nil || got.Disabled != tc.disabled {
			t.Errorf("%q over %q: disabled %v, error %v", tc.proxy, tc.class, got.Disabled, err)
		}
	}
}

// A default gives way to what a user sets.
func TestResolveSettings_DefaultsGiveWay(t *testing.T) {
	for _, tc := range []struct {
		name                                string
		check                               check
		period, timeout, fast, unhealthyMax int
	}{
		{"short period", check{PeriodSeconds: new(int32(3))}, 3, 2, 3, 300},
		{"shortest period", check{PeriodSeconds: new(int32(1))}, 1, 1, 1, 300},
		{"long timeout", check{TimeoutSeconds: new(int32(90))}, 91, 90, 5, 300},
		{"long period", check{PeriodSeconds: new(int32(3600))}, 3600, 10, 5, 3600},
		{"slow fast period", check{FastPeriodSeconds: new(int32(120))}, 120, 10, 120, 300},
		{"small maximum", check{UnhealthyPeriodMaxSeconds: new(int32(2))}, 60, 10, 2, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ResolveSettings(&tc.check, nil, mustDefaults(t))
			if err != nil {
				t.Fatal(err)
			}
			s := func(n int) time.Duration { return time.Duration(n) * time.Second }
			if got.Period != s(tc.period) || got.Timeout != s(tc.timeout) || got.FastPeriod != s(tc.fast) || got.UnhealthyPeriodMax != s(tc.unhealthyMax) {
				t.Errorf("got period %s, timeout %s, fast %s, unhealthy max %s", got.Period, got.Timeout, got.FastPeriod, got.UnhealthyPeriodMax)
			}
		})
	}
}

// Every refusal names the field and where it stands.
func TestE58_ResolveSettingsErrors(t *testing.T) {
	n := func(v int32) *int32 { return &v }
	url := func(u string) check { return check{Targets: []v1alpha1.ProbeTarget{{URL: u}}} }
	target := func(x v1alpha1.ProbeTarget) check { return check{Targets: []v1alpha1.ProbeTarget{x}} }
	for _, tc := range []struct {
		name  string
		check check
		want  string
	}{
		{"E58 timeout not below the period", check{PeriodSeconds: n(10), TimeoutSeconds: n(10)}, "spec.healthCheck.timeoutSeconds: 10 must be less than the 10 of"},
		{"E58 fast above the period", check{PeriodSeconds: n(10), FastPeriodSeconds: n(11)}, "spec.healthCheck.fastPeriodSeconds"},
		{"E58 maximum below fast", check{UnhealthyPeriodMaxSeconds: n(5), FastPeriodSeconds: n(6)}, "spec.healthCheck.unhealthyPeriodMaxSeconds"},
		{"E58 threshold zero", check{FailureThreshold: n(0)}, "spec.healthCheck.failureThreshold: 0 is not between 1 and 100"},
		{"E58 negative body", check{MaxBodyBytes: n(-1)}, "spec.healthCheck.maxBodyBytes"},
		{"E58 five targets", check{Targets: make([]v1alpha1.ProbeTarget, 5)}, "spec.healthCheck.targets: 5 targets"},
		{"E58 http", url("http://example.com/"), "spec.healthCheck.targets[0].url: scheme must be https"},
		{"E58 user information", url("https://u:hunter2@example.com/"), "spec.healthCheck.targets[0].url: must not contain user information"},
		{"E58 loopback target", url("https://127.0.0.1/"), "spec.healthCheck.targets[0].url: address is not allowed"},
		{"E58 private target", url("https://10.0.0.1/"), "--allow-probe-target-cidrs"},
		{"E58 localhost", url("https://localhost/"), "loopback name"},
		{"E58 metadata", url("https://[::ffff:169.254.169.254]/"), "metadata"},
		{"E58 no certificate", target(v1alpha1.ProbeTarget{URL: "https://a.example/", CABundle: "x"}), "targets[0].caBundle: contains no PEM certificate"},
		{"E58 broken certificate", target(v1alpha1.ProbeTarget{URL: "https://a.example/", CABundle: "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}), "targets[0].caBundle: certificate 1 cannot be parsed"},
		{"E58 private key", target(v1alpha1.ProbeTarget{URL: "https://a.example/", CABundle: "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"}), "targets[0].caBundle: contains a PEM block of type"},
		{"E58 text longer than the body", check{MaxBodyBytes: n(2), Targets: []v1alpha1.ProbeTarget{{URL: "https://a.example/", Expect: &v1alpha1.ProbeExpect{BodyContains: "xyz"}}}}, "targets[0].expect.bodyContains"},
		{"E58 mode", check{Mode: "Off"}, `spec.healthCheck.mode: "Off" is neither`},
		{"E58 exit mode of a later version", check{ExitIP: &v1alpha1.ExitIP{Mode: "Match"}}, "spec.healthCheck.exitIP.mode"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for kind, err := range map[string]error{
				"Proxy ":         errOf(ResolveSettings(&tc.check, nil, mustDefaults(t))),
				"ProviderClass ": errOf(ResolveSettings(nil, &tc.check, mustDefaults(t))),
			} {
				if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.HasPrefix(err.Error(), kind) {
					t.Errorf("got error %v, want %q of %s", err, tc.want, kind)
				} else if strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error repeats a password: %v", err)
				}
			}
		})
	}
}

func errOf(_ Settings, err error) error { return err }

func TestNewDefaults(t *testing.T) {
	ca := proxyzoo.NewCA(t, "ca").PEM()
	allowed := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	d, err := NewDefaults([]string{"https://10.1.2.3:8443/ip"}, ca, allowed)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ResolveSettings(nil, nil, d)
	if err != nil || len(s.Targets) != 1 || s.Targets[0].CABundle != ca || !s.Targets[0].SystemRoots {
		t.Errorf("got %+v, error %v", s.Targets, err)
	}
	for _, tc := range []struct {
		urls []string
		ca   string
		want string
	}{
		{[]string{"https://a.example/", "http://b.example/"}, "", "--health-check-urls: URL 2: scheme must be https"},
		{[]string{"https://10.0.0.1/"}, "", "--health-check-urls: URL 1: address is not allowed"},
		{make([]string, 5), "", "--health-check-urls: 5 targets"},
		{nil, "rubbish", "--health-check-ca-file: contains no PEM certificate"},
	} {
		if _, err := NewDefaults(tc.urls, tc.ca, nil); err == nil || !strings.HasPrefix(err.Error(), tc.want) {
			t.Errorf("got error %v, want %q", err, tc.want)
		}
	}
}

func TestSettingsHash(t *testing.T) {
	a, _ := ResolveSettings(nil, nil, mustDefaults(t))
	b, _ := ResolveSettings(&check{}, &check{}, mustDefaults(t))
	c, _ := ResolveSettings(&check{PeriodSeconds: new(int32(61))}, nil, mustDefaults(t))
	if a.Hash() != b.Hash() || a.Hash() == c.Hash() {
		t.Errorf("hashes %s %s %s", a.Hash(), b.Hash(), c.Hash())
	}
}
