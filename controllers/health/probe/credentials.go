package probe

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"

	"crawl.example.com/egress-proxies-operator/apis/crawl/v1alpha1"
)

// Redacted is what a Credentials prints as, whatever asks it to.
const Redacted = "REDACTED"

// Credentials are a proxy's user name and password, kept ready for a Proxy-Authorization header.
//
// They print as REDACTED with every fmt verb, in JSON and in slog. The content sits in a function: fmt cannot call the
// methods of a value in an unexported field, prints such a value raw, and follows pointers for some verbs.
type Credentials struct {
	reveal func() (authorization, fingerprint string)
}

// NewCredentials returns credentials for Basic authentication; v1alpha1.CheckCredentials says which there can be.
func NewCredentials(username, password string) (*Credentials, error) {
	if err := v1alpha1.CheckCredentials(username, password); err != nil {
		return nil, err
	}
	pair := username + ":" + password
	sum := sha256.Sum256([]byte(pair))
	authorization, fingerprint := "Basic "+base64.StdEncoding.EncodeToString([]byte(pair)), hex.EncodeToString(sum[:])
	return &Credentials{reveal: func() (string, string) { return authorization, fingerprint }}, nil
}

// Fingerprint tells one set of credentials from another, and is empty for none. It is a plain hash: keep it in memory
// only.
func (c *Credentials) Fingerprint() string {
	if c == nil || c.reveal == nil {
		return ""
	}
	_, fingerprint := c.reveal()
	return fingerprint
}

// authorization is the value of the Proxy-Authorization header, empty for no credentials. Base64 leaves no way to
// smuggle a second header in.
func (c *Credentials) authorization() string {
	if c == nil || c.reveal == nil {
		return ""
	}
	value, _ := c.reveal()
	return value
}

// Format implements fmt.Formatter for every verb and flag.
func (c Credentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, Redacted) }

// String implements fmt.Stringer.
func (c Credentials) String() string { return Redacted }

// MarshalText keeps encoders that prefer text away from the content.
func (c Credentials) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// MarshalJSON implements json.Marshaler.
func (c Credentials) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }

// LogValue implements slog.LogValuer.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(Redacted) }
