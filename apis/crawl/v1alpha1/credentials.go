package v1alpha1

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// Keys of the Secret that spec.credentialsSecretRef of a Proxy names. Both must be there; only the password may be empty, as
// with proxies that take an API key for a user name.
const (
	CredentialsUsername = "username"
	CredentialsPassword = "password"
)

// ParseCredentials reads the user name and password of a proxy from the data of a Secret. The error names the key at fault and
// never its content.
func ParseCredentials(data map[string][]byte) (username, password string, err error) {
	for _, key := range []string{CredentialsUsername, CredentialsPassword} {
		if _, ok := data[key]; !ok {
			return "", "", fmt.Errorf("has no key %s", key)
		}
	}
	username, password = string(data[CredentialsUsername]), string(data[CredentialsPassword])
	return username, password, CheckCredentials(username, password)
}

// CheckCredentials admits what HTTP's Basic scheme can carry: a user name that is not empty and has no colon, which would end
// it (RFC 7617, section 2), and no control characters in either.
func CheckCredentials(username, password string) error {
	switch {
	case username == "":
		return errors.New("username is empty")
	case strings.Contains(username, ":"):
		return errors.New("username contains a colon, which Basic authentication cannot carry")
	case strings.ContainsFunc(username, unicode.IsControl):
		return errors.New("username contains a control character")
	case strings.ContainsFunc(password, unicode.IsControl):
		return errors.New("password contains a control character")
	}
	return nil
}
