package client

import (
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
)

// redacted is what Credentials print as.
const redacted = "REDACTED"

// Credentials are a proxy's user name and password. They print as REDACTED whatever asks them to; the content sits in a
// function because fmt reads unexported fields and does not ask their methods.
type Credentials struct {
	reveal func() (username, password string)
}

// NewCredentials makes credentials; nil when there is neither a user name nor a password.
func NewCredentials(username, password string) *Credentials {
	if username == "" && password == "" {
		return nil
	}
	return &Credentials{reveal: func() (string, string) { return username, password }}
}

// Reveal gives the user name and the password; both are empty for nil.
func (c *Credentials) Reveal() (username, password string) {
	if c == nil || c.reveal == nil {
		return "", ""
	}
	return c.reveal()
}

// authorization is the value of Proxy-Authorization; empty for none.
func (c *Credentials) authorization() string {
	username, password := c.Reveal()
	if username == "" && password == "" {
		return ""
	}
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(username+":"+password))
}

// Format implements fmt.Formatter for every verb and flag.
func (c Credentials) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// MarshalText implements encoding.TextMarshaler.
func (c Credentials) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements slog.LogValuer.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(redacted) }
