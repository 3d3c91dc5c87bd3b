package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
)

// TokenSource gives the bearer token of a call to the API. It is asked for each call.
type TokenSource func(ctx context.Context) (string, error)

// Token is a token that does not change.
func Token(token string) TokenSource {
	return func(context.Context) (string, error) { return token, nil }
}

// TokenFile reads the token from a file each time, so that a rotated one is used at once. The token of a Pod's
// ServiceAccount is such a file: /var/run/secrets/kubernetes.io/serviceaccount/token.
func TokenFile(path string) TokenSource {
	return func(context.Context) (string, error) {
		data, err := os.ReadFile(path)
		return strings.TrimSpace(string(data)), err
	}
}

// authorization is the value of the header Authorization; empty without a source.
func (s TokenSource) authorization(ctx context.Context) (string, error) {
	if s == nil {
		return "", nil
	}
	token, err := s(ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("get the token: %w", err)
	case token == "":
		return "", errors.New("the token is empty")
	case strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", errors.New("the token has characters other than printable ASCII without spaces")
	}
	return "Bearer " + token, nil
}
