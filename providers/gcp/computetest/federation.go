package computetest

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	tokenExchange = "urn:ietf:params:oauth:grant-type:token-exchange"
	jwtType       = "urn:ietf:params:oauth:token-type:jwt"
	accessType    = "urn:ietf:params:oauth:token-type:access_token"
	audience      = "//iam.googleapis.com/projects/1000/locations/global/workloadIdentityPools/pool/providers/kubernetes"
	// federated is the token between the two steps of an impersonation.
	federated = "federated-token"
	exchanged = "/v1/token"
	// ProjectedToken is the name of the file with the token of the Kubernetes service account.
	ProjectedToken = "projected-token"
)

// Federation is workload identity federation: a security token service that takes the token of a Kubernetes service
// account, and the service that lets the result act as a Google service account.
type Federation struct {
	*Issuer
	impersonate bool
	subject     string // that is good
	denied      bool
}

// NewFederation starts both; the token is what comes out at the end.
func NewFederation(t testing.TB, token string, impersonate bool) *Federation {
	t.Helper()
	f := &Federation{impersonate: impersonate, subject: "kubernetes-token"}
	f.Issuer = newIssuer(t, token, f.answer)
	return f
}

// WriteFile writes a credentials file, for GOOGLE_APPLICATION_CREDENTIALS, and the token that it points to beside it.
func (f *Federation) WriteFile(path string) {
	f.t.Helper()
	projected := filepath.Join(filepath.Dir(path), ProjectedToken)
	f.mu.Lock()
	subject := f.subject
	f.mu.Unlock()
	if err := os.WriteFile(projected, []byte(subject), 0o600); err != nil {
		f.t.Fatal(err)
	}
	content := obj{
		"type": "external_account", "audience": audience, "subject_token_type": jwtType, "token_url": f.URL + exchanged,
		"credential_source": obj{"file": projected, "format": obj{"type": "text"}},
	}
	if f.impersonate {
		content["service_account_impersonation_url"] = f.URL + impersonation
	}
	writeJSON(f.t, path, content)
}

const impersonation = "/v1/projects/-/serviceAccounts/" + serviceAccountEmail + ":generateAccessToken"

// RotateSubject makes another projected token the good one; files written before have the old one.
func (f *Federation) RotateSubject(subject string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.subject = subject
}

// DenyImpersonation lets the second step fail for lack of a permission.
func (f *Federation) DenyImpersonation(denied bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.denied = denied
}

func (f *Federation) answer(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	subject, denied := f.subject, f.denied
	f.mu.Unlock()
	switch {
	case r.URL.Path == exchanged && (r.Form.Get("grant_type") != tokenExchange || r.Form.Get("audience") != audience || r.Form.Get("subject_token_type") != jwtType || r.Form.Get("scope") == ""):
		f.refuse(w, "invalid_request", "Invalid value for a parameter of the exchange.")
	case r.URL.Path == exchanged && strings.TrimSpace(r.Form.Get("subject_token")) != subject:
		f.refuse(w, "invalid_grant", "The given credential is rejected by the attribute condition.")
	case r.URL.Path == exchanged && f.impersonate:
		f.send(w, http.StatusOK, obj{"access_token": federated, "issued_token_type": accessType, "token_type": "Bearer", "expires_in": 3600})
	case r.URL.Path == exchanged:
		f.grant(w, obj{"issued_token_type": accessType})
	case r.URL.Path != impersonation || r.Header.Get("Authorization") != "Bearer "+federated:
		f.send(w, http.StatusUnauthorized, obj{"error": obj{"code": 401, "message": "Request had invalid authentication credentials.", "status": "UNAUTHENTICATED"}})
	case denied:
		f.send(w, http.StatusForbidden, obj{"error": obj{"code": 403, "message": "Permission 'iam.serviceAccounts.getAccessToken' denied on resource (or it may not exist).", "status": "PERMISSION_DENIED"}})
	default:
		token, lifetime := f.current()
		f.send(w, http.StatusOK, obj{"accessToken": token, "expireTime": time.Now().Add(lifetime).UTC().Format(time.RFC3339)})
	}
}
