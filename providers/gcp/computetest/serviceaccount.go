package computetest

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

const (
	serviceAccountEmail = "operator@demo-project.iam.gserviceaccount.com"
	jwtBearer           = "urn:ietf:params:oauth:grant-type:jwt-bearer"
)

// ServiceAccount is the token endpoint of a service account with keys. It checks what clients sign.
type ServiceAccount struct {
	*Issuer
	key   *rsa.PrivateKey
	keyID string
}

// NewServiceAccount starts the endpoint; it hands out the token.
func NewServiceAccount(t testing.TB, token string) *ServiceAccount {
	t.Helper()
	a := &ServiceAccount{}
	a.Issuer = newIssuer(t, token, a.answer)
	a.RotateKey()
	return a
}

// RotateKey revokes the key of all files written so far.
func (a *ServiceAccount) RotateKey() {
	a.t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		a.t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.key, a.keyID = key, rand.Text()
}

// WriteFile writes the key file, for GOOGLE_APPLICATION_CREDENTIALS.
func (a *ServiceAccount) WriteFile(path string) {
	a.t.Helper()
	a.mu.Lock()
	key, keyID := a.key, a.keyID
	a.mu.Unlock()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writeJSON(a.t, path, obj{
		"type": "service_account", "project_id": "demo-project", "private_key_id": keyID, "client_email": serviceAccountEmail, "client_id": "1000",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), "token_uri": a.tokenURI(),
	})
}

func (a *ServiceAccount) tokenURI() string { return a.URL + "/token" }

func (a *ServiceAccount) answer(w http.ResponseWriter, r *http.Request) {
	if grant := r.Form.Get("grant_type"); r.URL.Path != "/token" || grant != jwtBearer {
		a.refuse(w, "unsupported_grant_type", "Invalid grant_type: "+grant)
		return
	}
	if err := a.verify(r.Form.Get("assertion")); err != nil {
		a.refuse(w, "invalid_grant", err.Error())
		return
	}
	a.grant(w, nil)
}

// verify looks at a signed statement.
func (a *ServiceAccount) verify(assertion string) error {
	a.mu.Lock()
	key := &a.key.PublicKey
	a.mu.Unlock()
	parts := strings.Split(assertion, ".")
	if len(parts) != 3 {
		return fmt.Errorf("Invalid JWT: %d parts", len(parts)) //nolint:staticcheck // as Google words it
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	if err != nil {
		return fmt.Errorf("Invalid JWT: %w", err) //nolint:staticcheck // as Google words it
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	if rsa.VerifyPKCS1v15(key, crypto.SHA256, digest[:], signature) != nil {
		return fmt.Errorf("Invalid JWT Signature.") //nolint:staticcheck,revive // as Google words it
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return fmt.Errorf("Invalid JWT: %w", err) //nolint:staticcheck // as Google words it
	}
	var claims struct {
		Issuer   string `json:"iss"`
		Audience string `json:"aud"`
		Scope    string `json:"scope"`
		Issued   int64  `json:"iat"`
		Expires  int64  `json:"exp"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return fmt.Errorf("Invalid JWT: %w", err) //nolint:staticcheck // as Google words it
	}
	if claims.Issuer != serviceAccountEmail || claims.Audience != a.tokenURI() || claims.Scope == "" || claims.Expires-claims.Issued > 3660 {
		return fmt.Errorf("Invalid JWT claims: %+v", claims) //nolint:staticcheck // as Google words it
	}
	return nil
}
