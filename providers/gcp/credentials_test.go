package gcp

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
	"crawl.example.com/egress-proxies-operator/providers"
	"crawl.example.com/egress-proxies-operator/providers/gcp/computetest"
)

// source is a way to credentials.
type source struct {
	*computetest.Issuer
	// write makes the credentials what a look for them finds; anew after they were rotated.
	write func()
	// revoke makes what was written so far no good; nil where there is nothing to be revoked.
	revoke func()
	// deny refuses the last of several steps for want of a permission, or not; nil where there is one step.
	deny func(bool)
	// lead brings a provider to the server; nil where the credentials name it.
	lead func(*Provider)
}

// sources are all ways to credentials that can be had without Google, each with the servers behind it.
var sources = map[string]func(t *testing.T) source{
	"service account": func(t *testing.T) source {
		account, file := computetest.NewServiceAccount(t, testToken), keyFile(t)
		return source{Issuer: account.Issuer, write: func() { account.WriteFile(file) }, revoke: account.RotateKey}
	},
	"federation": func(t *testing.T) source {
		f, file := computetest.NewFederation(t, testToken, false), keyFile(t)
		return source{Issuer: f.Issuer, write: func() { f.WriteFile(file) }, revoke: func() { f.RotateSubject("the-next-projected-token") }}
	},
	"federation with impersonation": func(t *testing.T) source {
		f, file := computetest.NewFederation(t, testToken, true), keyFile(t)
		return source{Issuer: f.Issuer, write: func() { f.WriteFile(file) }, revoke: func() { f.RotateSubject("the-next-projected-token") }, deny: f.DenyImpersonation}
	},
	"metadata server": func(t *testing.T) source {
		m := computetest.NewMetadata(t, testToken)
		return source{Issuer: m.Issuer, write: func() { t.Setenv("GCE_METADATA_HOST", m.Host()) }}
	},
	"a person's login": func(t *testing.T) source {
		p := computetest.NewPerson(t, testToken)
		return source{Issuer: p.Issuer, write: p.Login, revoke: p.Logout, lead: func(provider *Provider) {
			provider.base.DialTLSContext = func(ctx context.Context, _, address string) (net.Conn, error) {
				if address != computetest.GoogleTokenHost {
					return nil, fmt.Errorf("a connection to %s", address)
				}
				return p.Dial(ctx)
			}
		}}
	},
}

func keyFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "credentials.json")
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	return file
}

// projectedToken is the file that a federation's credentials point to.
func projectedToken() string {
	return filepath.Join(filepath.Dir(os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")), computetest.ProjectedToken)
}

// open is a provider whose credentials come from a source, or from none.
func open(t *testing.T, s source) (*computetest.Server, *Provider) {
	t.Helper()
	server := computetest.New(t, computetest.Options{Token: testToken, Projects: []string{testProject}})
	p := openProvider(t, server.URL, clock.RealClock{}, newClass("a"))
	if s.lead != nil {
		s.lead(p)
	}
	return server, p
}

// TestGT11_EveryWayToCredentials works, keeps its token, and works again after it was refused and renewed, in one and the
// same provider.
func TestGT11_EveryWayToCredentials(t *testing.T) {
	for name, make := range sources {
		t.Run(name, func(t *testing.T) {
			computetest.Isolate(t)
			s := make(t)
			s.write()
			server, p := open(t, s)
			for range 3 {
				if err := p.Check(t.Context()); err != nil {
					t.Fatal(providers.RawText(err))
				}
			}
			asked := len(s.Asked())
			if asked == 0 || asked > 2 {
				t.Errorf("a token was asked for %d times: %v", asked, s.Asked())
			}
			// The API does not take the token any more, and nor does the token server what it was got by.
			server.SetToken("another")
			s.SetToken("another")
			if s.revoke != nil {
				s.revoke()
			}
			if err := p.Check(t.Context()); providers.ReasonOf(err) != providers.Auth {
				t.Errorf("a token that is no good: %v", err)
			}
			if s.revoke != nil {
				if err := p.Check(t.Context()); providers.ReasonOf(err) != providers.Auth {
					t.Errorf("credentials that are revoked: %v", err)
				}
				s.write()
			}
			if err := p.Check(t.Context()); err != nil {
				t.Errorf("renewed credentials: %v", providers.RawText(err))
			}
			requests := server.Requests()
			if pays := requests[len(requests)-1].Header.Get("X-Goog-User-Project"); (pays != "") != (s.lead != nil) {
				t.Errorf("the project that pays is %q; only people have one", pays)
			}
		})
	}
}

// TestGT11_BrokenAndMended: what is wrong with credentials is told, nothing is made meanwhile, and once it is mended all is
// well in the same provider.
func TestGT11_BrokenAndMended(t *testing.T) {
	invalidGrant := &computetest.IssuerFailure{Status: http.StatusBadRequest, Body: `{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`}
	for name, test := range map[string]struct {
		source  string
		breakIt func(s source)
		mend    func(s source)
		want    providers.Reason
	}{
		"refused":                {"service account", func(s source) { s.Fail(invalidGrant) }, nil, providers.Auth},
		"refused 401":            {"service account", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 401, Body: `{"error":"invalid_client"}`}) }, nil, providers.Auth},
		"token server 500":       {"service account", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 500}) }, nil, providers.Unavailable},
		"token server 503":       {"service account", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 503}) }, nil, providers.Unavailable},
		"token server 429":       {"service account", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 429}) }, nil, providers.Unavailable},
		"token server hangs":     {"service account", func(s source) { s.Fail(&computetest.IssuerFailure{Hang: true}) }, nil, providers.Unavailable},
		"logged out":             {"a person's login", func(s source) { s.revoke() }, func(s source) { s.write() }, providers.Auth},
		"login 503":              {"a person's login", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 503}) }, nil, providers.Unavailable},
		"federation refused":     {"federation", func(s source) { s.Fail(invalidGrant) }, nil, providers.Auth},
		"federation 401":         {"federation", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 401, Body: `{"error":"invalid_client"}`}) }, nil, providers.Auth},
		"federation 429":         {"federation", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 429}) }, nil, providers.Unavailable},
		"federation 500":         {"federation", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 500}) }, nil, providers.Unavailable},
		"federation hangs":       {"federation", func(s source) { s.Fail(&computetest.IssuerFailure{Hang: true}) }, nil, providers.Unavailable},
		"no projected token":     {"federation", func(source) { _ = os.Remove(projectedToken()) }, func(s source) { s.write() }, providers.Auth},
		"a stale one":            {"federation", func(s source) { s.revoke() }, func(s source) { s.write() }, providers.Auth},
		"federation 503":         {"federation", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 503}) }, nil, providers.Unavailable},
		"impersonation 503":      {"federation with impersonation", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 503}) }, nil, providers.Unavailable},
		"impersonation refused":  {"federation with impersonation", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 403}) }, nil, providers.Auth},
		"impersonation denied":   {"federation with impersonation", func(s source) { s.deny(true) }, func(s source) { s.deny(false) }, providers.Auth},
		"metadata 403":           {"metadata server", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 403, Body: "forbidden"}) }, nil, providers.Auth},
		"metadata 404":           {"metadata server", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 404}) }, nil, providers.Auth},
		"metadata 429":           {"metadata server", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 429}) }, nil, providers.Unavailable},
		"metadata 500":           {"metadata server", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 500}) }, nil, providers.Unavailable},
		"metadata hangs":         {"metadata server", func(s source) { s.Fail(&computetest.IssuerFailure{Hang: true}) }, nil, providers.Unavailable},
		"metadata 503":           {"metadata server", func(s source) { s.Fail(&computetest.IssuerFailure{Status: 503}) }, nil, providers.Unavailable},
		"the file is missing":    {"service account", func(source) { _ = os.Remove(os.Getenv("GOOGLE_APPLICATION_CREDENTIALS")) }, func(s source) { s.write() }, providers.Auth},
		"the file is half there": {"service account", func(source) { _ = os.WriteFile(os.Getenv("GOOGLE_APPLICATION_CREDENTIALS"), []byte("{"), 0o600) }, func(s source) { s.write() }, providers.Auth},
		"there are none":         {"metadata server", func(source) { _ = os.Setenv("GCE_METADATA_HOST", "127.0.0.1:1") }, func(s source) { s.write() }, providers.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			computetest.Isolate(t)
			s := sources[test.source](t)
			s.write()
			test.breakIt(s)
			server, p := open(t, s)
			request := newRequest("px", zoneA)
			// The client of the metadata server tries for about two seconds before it says what is wrong.
			patience := 20 * time.Second
			if strings.HasSuffix(name, "hangs") {
				patience = 300 * time.Millisecond
			}
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				checkErr := p.Check(ctx)
				_, createErr := p.Create(ctx, request)
				for what, err := range map[string]error{"check": checkErr, "create": createErr} {
					if providers.ReasonOf(err) != test.want {
						t.Errorf("%s: got %s, want %s", what, providers.RawText(err), test.want)
					}
					if text := providers.StableMessage(err); strings.Contains(text, "127.0.0.1") || !strings.Contains(text, "redentials") && !strings.Contains(text, "metadata") {
						t.Errorf("%s says %q", what, text)
					}
				}
				cancel()
			}
			if n := server.Count(""); n != 0 {
				t.Errorf("%d calls without a token", n)
			}
			s.Fail(nil)
			if test.mend != nil {
				test.mend(s)
			}
			if err := p.Check(t.Context()); err != nil {
				t.Errorf("mended: %v", providers.RawText(err))
			}
			if _, err := p.Create(t.Context(), request); err != nil {
				t.Errorf("mended: %v", providers.RawText(err))
			}
		})
	}
}

// TestOpen_NeedsNoCredentials: a manager without calls never looks for any, and an endpoint that would give tokens away is
// refused.
func TestOpen_NeedsNoCredentials(t *testing.T) {
	computetest.Isolate(t)
	m := computetest.NewMetadata(t, testToken)
	t.Setenv("GCE_METADATA_HOST", m.Host())
	_, p := open(t, source{})
	spec := newSpec()
	if err := p.ValidateSpec(&spec); err != nil {
		t.Error(err)
	}
	if asked := m.Asked(); len(asked) != 0 {
		t.Errorf("asked %v", asked)
	}
	for endpoint, good := range map[string]bool{
		DefaultEndpoint: true, "https://compute.private.example": true, "http://127.0.0.1:8080": true, "http://[::1]:8080": true, "http://localhost:1": true,
		"http://compute.googleapis.com": false, "http://10.0.0.1": false, "http://127.0.0.1.example.com": false, "compute.googleapis.com": false,
		"ftp://127.0.0.1": false, "https://user:secret@compute.googleapis.com": false, "": false, "http://localhost.example": false,
	} {
		opened, err := (&Factory{Endpoint: endpoint}).Open(t.Context(), newClass("a"), providers.Runtime{ClusterID: "cluster", Clock: clock.RealClock{}})
		if (err == nil) != good {
			t.Errorf("%q: %v", endpoint, err)
		}
		if opened != nil {
			_ = opened.Close()
		}
	}
}

// TestBadInput_Classes: by the path of the field, and a class without its block too.
func TestBadInput_Classes(t *testing.T) {
	for path, change := range map[string]func(*v1alpha1.ProviderClassSpec){
		"spec.gcp":                   func(s *v1alpha1.ProviderClassSpec) { s.GCP = nil },
		"spec.gcp.project":           func(s *v1alpha1.ProviderClassSpec) { s.GCP.Project = "" },
		"spec.gcp.networkTag":        func(s *v1alpha1.ProviderClassSpec) { s.GCP.NetworkTag = "-x" },
		"spec.gcp.subnetwork":        func(s *v1alpha1.ProviderClassSpec) { s.GCP.Subnetwork = "regions/x" },
		"spec.gcp.diskType":          func(s *v1alpha1.ProviderClassSpec) { s.GCP.DiskType = "zones/a/diskTypes/x" },
		"spec.gcp.provisioningModel": func(s *v1alpha1.ProviderClassSpec) { s.GCP.ProvisioningModel = "PREEMPTIBLE" },
		"spec.gcp.networkTier":       func(s *v1alpha1.ProviderClassSpec) { s.GCP.NetworkTier = "GOLD" },
		"spec.exposure":              func(s *v1alpha1.ProviderClassSpec) { s.Exposure = &v1alpha1.Exposure{} },
	} {
		problems := (&Factory{}).Validate(newClass("a", change))
		if len(problems) != 1 || problems[0].Field != path {
			t.Errorf("%s: got %v", path, problems)
		}
	}
}
