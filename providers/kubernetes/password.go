package kubernetes

import (
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/crypto/bcrypt"

	"crawl.example.com/egress-proxies-operator/providers"
)

const (
	// bcryptCost makes one check take about 15 ms. The hash lies beside the Secret with the password itself, under the
	// same access rules, so a higher cost would protect nothing and let strangers keep Squid's helpers busy.
	bcryptCost = 8
	// bcryptBytes is how much of a password bcrypt looks at, here and in Squid's helper alike.
	bcryptBytes = 72
	// maxCredentialBytes bounds user names and passwords; Squid reads lines of 8 KiB.
	maxCredentialBytes = 512
	// bcryptPrefix is the one that Squid's libcrypt takes without the special cases of "$2a$".
	bcryptPrefix = "$2b$"
)

// credentialsField is the field of a Proxy that is wrong when its credentials are.
const credentialsField = "spec.credentialsSecretRef"

// passwordLine is one line of a password file of Squid's basic_ncsa_auth.
func passwordLine(c providers.Credentials) ([]byte, error) {
	if err := checkCredentials(c); err != nil {
		return nil, err
	}
	password := []byte(c.Password)
	hash, err := bcrypt.GenerateFromPassword(password[:min(len(password), bcryptBytes)], bcryptCost)
	if err != nil {
		return nil, fmt.Errorf("hash the password: %w", err)
	}
	return fmt.Appendf(nil, "%s:%s%s\n", c.Username, bcryptPrefix, hash[len(bcryptPrefix):]), nil
}

// checkCredentials admits what HTTP's Basic scheme and the password file can carry: any printable password, and any
// printable user name without a colon. The errors never contain a value.
func checkCredentials(c providers.Credentials) error {
	for _, key := range []struct{ name, value string }{{"username", c.Username}, {"password", c.Password}} {
		name, value := key.name, key.value
		switch {
		case value == "":
			return providers.InvalidField(credentialsField, "the Secret's key %s is empty", name)
		case len(value) > maxCredentialBytes:
			return providers.InvalidField(credentialsField, "the Secret's key %s is longer than %d bytes", name, maxCredentialBytes)
		case strings.ContainsFunc(value, unicode.IsControl):
			return providers.InvalidField(credentialsField, "the Secret's key %s contains a control character, perhaps a line end", name)
		}
	}
	if strings.Contains(c.Username, ":") {
		return providers.InvalidField(credentialsField, "the Secret's key username contains a colon, which HTTP's Basic scheme forbids")
	}
	// Squid's helper takes such lines for comments.
	if strings.HasPrefix(c.Username, "#") || strings.HasPrefix(c.Username, " ") {
		return providers.InvalidField(credentialsField, "the Secret's key username starts with '#' or a space")
	}
	return nil
}
