package computetest

import (
	"net/http"
	"strings"
	"testing"
)

// Metadata is the metadata server of a VM or of a pod with workload identity.
type Metadata struct {
	*Issuer
}

// NewMetadata starts one that hands out the token.
func NewMetadata(t testing.TB, token string) *Metadata {
	t.Helper()
	m := &Metadata{}
	m.Issuer = newIssuer(t, token, m.answer)
	return m
}

// Host is the value for GCE_METADATA_HOST.
func (m *Metadata) Host() string { return host(m.URL) }

func (m *Metadata) answer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Metadata-Flavor", "Google")
	path, ok := strings.CutPrefix(r.URL.Path, "/computeMetadata/v1/")
	if ok && r.Header.Get("Metadata-Flavor") != "Google" {
		http.Error(w, "Missing required header \"Metadata-Flavor\": \"Google\"", http.StatusForbidden)
		return
	}
	plain := map[string]string{
		"project/project-id": "demo-project", "universe/universe-domain": "googleapis.com", "instance/zone": "projects/1000/zones/europe-west3-a",
		"instance/service-accounts/default/email": serviceAccountEmail,
	}
	switch text, known := plain[path]; {
	case path == "instance/service-accounts/default/token":
		m.grant(w, nil)
	case known:
		w.Header().Set("Content-Type", "application/text")
		_, _ = w.Write([]byte(text)) // the client may be gone
	case r.URL.Path == "/":
		_, _ = w.Write([]byte("computeMetadata/\n")) // the client may be gone
	default:
		http.NotFound(w, r)
	}
}
